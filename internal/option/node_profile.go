package option

import (
	"fmt"
	"strings"
)

// NodeProfileName is the name of the option whose value is the name of a profile.
const NodeProfileName = "node-profile"

// NodeProfileForms lists the accepted values, for messages.
const NodeProfileForms = "the name of a profile of gputune.toml: up to 32 of a-z, 0-9, _ and -, a letter first"

const maxProfileName = 32

// ParseNodeProfile reads the value of --node-profile. Whether there is such a
// profile the node's configuration tells.
func ParseNodeProfile(value string) (name string, err error) {
	ok := value != "" && len(value) <= maxProfileName && value[0] >= 'a' && value[0] <= 'z'
	if !ok || strings.Trim(value, "abcdefghijklmnopqrstuvwxyz0123456789_-") != "" {
		return "", fmt.Errorf("--%s: %s: want %s", NodeProfileName, Shown(value), NodeProfileForms)
	}
	return value, nil
}
