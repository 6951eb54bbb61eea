package option

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// MPSName is the name of the option that MPS is the value of.
const MPSName = "gpu-mps"

// MPSForms lists the accepted values, for messages.
const MPSForms = "PERCENT|auto|off, mem=SIZE with M, G or T behind it, or both with a comma between them"

// maxPinned is beyond every GPU, in MiB: it keeps nonsense out of messages.
const maxPinned = 1 << 30

// MPS is the value of --gpu-mps: NVIDIA's Multi-Process Service for the job's
// tasks. The zero value is the option given bare: a service that caps nothing.
type MPS struct {
	Off     bool // none; an inner step inherits what the job was given
	Percent int  // of a GPU's SMs for each client, 1 to 100; 0 is no cap
	Auto    bool // the percentage is 100 by the tasks on each GPU
	// PinnedMemory is how many bytes of each GPU's memory a client can have, a
	// multiple of 1 MiB; 0 is no limit.
	PinnedMemory uint64
}

// ParseMPS reads the value of --gpu-mps. The empty value, and "(null)" as Slurm
// writes an absent argument, mean that the option was given bare. An error names
// the item and the accepted values.
func ParseMPS(value string) (MPS, error) {
	var mps MPS
	if value == "" || value == "(null)" {
		return mps, nil
	}
	err := parseItems(MPSName, value, func(item string) error {
		if size, isSize := strings.CutPrefix(item, "mem="); isSize {
			if mps.PinnedMemory != 0 {
				return errors.New("given twice")
			}
			var err error
			mps.PinnedMemory, err = parseSize(size)
			return err
		}
		if mps.Off || mps.Auto || mps.Percent != 0 {
			return errors.New("given twice")
		}
		switch item {
		case "off":
			mps.Off = true
		case "auto":
			mps.Auto = true
		default:
			percent, err := parseUnsigned(item, 100)
			if err != nil {
				return fmt.Errorf("want %s (percentages from 1 to 100)", MPSForms)
			}
			mps.Percent = int(percent)
		}
		return nil
	})
	if err == nil && mps.Off && mps.PinnedMemory != 0 {
		err = fmt.Errorf("--%s: %s: off has no mem=", MPSName, Shown(value))
	}
	if err != nil {
		return MPS{}, err
	}
	return mps, nil
}

// sizes has the units of parseSize in MiB, the largest first.
var sizes = []struct {
	unit string
	mib  uint64
}{{"T", 1 << 20}, {"G", 1 << 10}, {"M", 1}}

// parseSize reads a number with its unit and returns bytes. The units are
// powers of 1024, as in nvidia-cuda-mps-control.
func parseSize(text string) (bytes uint64, err error) {
	if bytes, ok := readSize(text); ok {
		return bytes, nil
	}
	return 0, fmt.Errorf("want mem=SIZE, such as mem=4G: a number with M, G or T behind it, %dT at most", maxPinned>>20)
}

// String writes the value as the user could have given it.
func (m MPS) String() string {
	var items []string
	switch {
	case m.Off:
		items = append(items, "off")
	case m.Auto:
		items = append(items, "auto")
	case m.Percent != 0:
		items = append(items, strconv.Itoa(m.Percent))
	}
	if m.PinnedMemory != 0 {
		items = append(items, "mem="+writeSize(m.PinnedMemory))
	}
	return strings.Join(items, ",")
}
