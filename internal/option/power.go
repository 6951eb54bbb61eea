package option

import (
	"errors"
	"fmt"
	"strconv"
)

// PowerName is the name of the option that Power is the value of.
const PowerName = "gpu-power"

// PowerForms lists the accepted values, for messages.
const PowerForms = "WATTS, max or default"

// maxWatts is beyond every GPU.
const maxWatts = 100_000

// Power is the value of --gpu-power: the power limit of a job's GPUs.
type Power struct {
	Word  string // "max", "default", or "" for Watts
	Watts uint32
}

// ParsePower reads the value of --gpu-power. An error names the value and what
// is accepted.
func ParsePower(value string) (Power, error) {
	var power Power
	err := parseItems(PowerName, value, func(item string) error {
		switch {
		case power != Power{}:
			return errors.New("given twice")
		case item == "max" || item == "default":
			power.Word = item
			return nil
		}
		var err error
		if power.Watts, err = parseUnsigned(item, maxWatts); err != nil {
			return fmt.Errorf("want %s (up to %d watts)", PowerForms, maxWatts)
		}
		return nil
	})
	return power, err
}

// String writes the value as the user could have given it.
func (p Power) String() string {
	if p.Word != "" {
		return p.Word
	}
	return strconv.FormatUint(uint64(p.Watts), 10)
}
