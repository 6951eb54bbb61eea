package option

import (
	"errors"
	"fmt"
)

// ComputeModeName is the name of the option that ComputeMode is the value of.
const ComputeModeName = "gpu-compute-mode"

// ComputeModeForms lists the accepted values, for messages.
const ComputeModeForms = "shared|exclusive|prohibited"

// ComputeMode is the value of --gpu-compute-mode: how many programs may use
// each of the job's GPUs at the same time.
type ComputeMode string

// The compute modes, which NVIDIA calls DEFAULT, EXCLUSIVE_PROCESS and
// PROHIBITED.
const (
	ComputeShared     ComputeMode = "shared"     // any number
	ComputeExclusive  ComputeMode = "exclusive"  // one
	ComputeProhibited ComputeMode = "prohibited" // none
)

// ParseComputeMode reads the value of --gpu-compute-mode. An error names the
// value and what is accepted.
func ParseComputeMode(value string) (ComputeMode, error) {
	var mode ComputeMode
	err := parseItems(ComputeModeName, value, func(item string) error {
		switch ComputeMode(item) {
		case ComputeShared, ComputeExclusive, ComputeProhibited:
		default:
			return fmt.Errorf("want %s", ComputeModeForms)
		}
		if mode != "" {
			return errors.New("given twice")
		}
		mode = ComputeMode(item)
		return nil
	})
	return mode, err
}
