package numavm

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// moduleLine is the first line of this repository's go.mod.
const moduleLine = "module gputune"

// FindTree returns the root of the repository's working tree that the current folder lies in. The image's recipe, the guest's
// scripts and the agent's source are taken from there.
func FindTree() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("current folder: %w", err)
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		b, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && bytes.HasPrefix(b, []byte(moduleLine+"\n")) {
			return dir, nil
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", err
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("%s lies in no working tree of this repository (a folder whose go.mod says %q): run it from there", start, moduleLine)
		}
	}
}
