package slurm

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"gputune/internal/idset"
	"gputune/internal/topology"
)

// ValueError is a list of devices that cannot be read.
type ValueError struct {
	Value string // the whole list
	Piece string // what is wrong in it
	Want  string // what would work
}

func (e *ValueError) Error() string {
	return fmt.Sprintf("device list %q: %q: want %s", e.Value, e.Piece, e.Want)
}

// ParseGPUList reads SLURM_STEP_GPUS or SLURM_JOB_GPUS, "0,2-3": gres indices,
// see GPUOrder. Errors name the list and the piece.
func ParseGPUList(list string) (idset.Set, error) {
	set, err := idset.Parse(list)
	if err != nil {
		return idset.Set{}, fmt.Errorf("GPU indices: %w", err)
	}
	return set, nil
}

// DeviceKind says how a device of CUDA_VISIBLE_DEVICES is named.
type DeviceKind int

// The ways to name a device.
const (
	ByIndex    DeviceKind = iota // a number
	ByGPU                        // GPU-<uuid> or the first part of it
	ByMIG                        // MIG-<uuid> or the first part of it
	ByInstance                   // MIG-GPU-<uuid>/<gi>/<ci>, as drivers before R470 name MIG devices
)

// Device is one device of CUDA_VISIBLE_DEVICES.
type Device struct {
	Kind     DeviceKind
	Index    int    // ByIndex
	UUID     string // ByGPU, ByMIG and, of the GPU, ByInstance; may be the first part alone
	Instance [2]int // ByInstance: GPU instance and compute instance
}

// Visible is the value of CUDA_VISIBLE_DEVICES.
type Visible struct {
	All     bool     // the variable is not set: every device
	Devices []Device // in order, none: no device
}

const (
	maxVisibleDevices = 1024
	wantDevice        = "an index, GPU-<uuid> or MIG-<uuid>"
)

// ParseVisible reads CUDA_VISIBLE_DEVICES as CUDA does: set false is every
// device, "" and NoDevFiles (Slurm's word) are none, and an entry -1 or any other
// number below zero ends the list. What CUDA cannot read ends its list, too; here
// that is a *ValueError, with what came before beside it. Source: "CUDA
// environment variables" of the CUDA C++ programming guide.
func ParseVisible(value string, set bool) (Visible, error) {
	if !set {
		return Visible{All: true}, nil
	}
	var visible Visible
	list := strings.TrimSpace(value)
	if list == "" || strings.EqualFold(list, "NoDevFiles") {
		return visible, nil
	}
	for piece := range strings.SplitSeq(strings.TrimSuffix(list, ","), ",") {
		device, err := parseDevice(strings.TrimSpace(piece))
		if errors.Is(err, errEndOfList) {
			break
		}
		if err != nil {
			return visible, &ValueError{Value: value, Piece: piece, Want: err.Error()}
		}
		if len(visible.Devices) == maxVisibleDevices {
			return visible, &ValueError{Value: value, Piece: piece, Want: fmt.Sprintf("at most %d devices", maxVisibleDevices)}
		}
		visible.Devices = append(visible.Devices, device)
	}
	return visible, nil
}

var errEndOfList = errors.New("end of list")

func parseDevice(piece string) (Device, error) {
	if index, err := strconv.ParseInt(piece, 10, 32); err == nil {
		if index < 0 {
			return Device{}, errEndOfList
		}
		return Device{Kind: ByIndex, Index: int(index)}, nil
	}
	if rest, isInstance := cutPrefixFold(piece, "MIG-GPU-"); isInstance {
		return parseInstance(rest)
	}
	for _, form := range []struct {
		prefix string
		kind   DeviceKind
	}{{"GPU-", ByGPU}, {"MIG-", ByMIG}} {
		if rest, found := cutPrefixFold(piece, form.prefix); found {
			if !isUUIDPart(rest) {
				return Device{}, fmt.Errorf("%s and hexadecimal digits as in %s8932f937-d72c-4106-c12f-20bd9faed9f6", form.prefix, form.prefix)
			}
			return Device{Kind: form.kind, UUID: form.prefix + strings.ToLower(rest)}, nil
		}
	}
	return Device{}, errors.New(wantDevice)
}

func parseInstance(rest string) (Device, error) {
	words := strings.Split(rest, "/")
	if len(words) == 3 && isUUIDPart(words[0]) {
		gi, errGI := strconv.ParseUint(words[1], 10, 16)
		ci, errCI := strconv.ParseUint(words[2], 10, 16)
		if errGI == nil && errCI == nil {
			return Device{Kind: ByInstance, UUID: "GPU-" + strings.ToLower(words[0]), Instance: [2]int{int(gi), int(ci)}}, nil
		}
	}
	return Device{}, errors.New("MIG-GPU-<uuid>/<GPU instance>/<compute instance>")
}

func cutPrefixFold(text, prefix string) (string, bool) {
	if len(text) < len(prefix) || !strings.EqualFold(text[:len(prefix)], prefix) {
		return "", false
	}
	return text[len(prefix):], true
}

// isUUIDPart tells whether text can be the start of a UUID. One digit is enough
// for CUDA where it is enough to tell the node's devices apart.
func isUUIDPart(text string) bool {
	return text != "" && len(text) <= 36 && strings.Trim(text, "0123456789abcdefABCDEF-") == "" && text[0] != '-'
}

// GPUs returns the positions in machine.GPUs of the devices, in order and each
// once: a MIG device is its GPU. order is what an index means: order[i] is the
// position of the GPU with index i, -1 unknown; an index outside it ends the
// list, as for CUDA. A UUID that fits no device or several is an error.
func (v Visible) GPUs(machine *topology.Machine, order []int) ([]int, error) {
	var gpus []int
	add := func(gpu int) {
		if gpu >= 0 && !slices.Contains(gpus, gpu) {
			gpus = append(gpus, gpu)
		}
	}
	if v.All {
		for _, gpu := range order {
			add(gpu)
		}
		return gpus, nil
	}
	for _, device := range v.Devices {
		if device.Kind == ByIndex {
			if device.Index >= len(order) {
				break
			}
			add(order[device.Index])
			continue
		}
		gpu, err := device.find(machine)
		if err != nil {
			return gpus, err
		}
		add(gpu)
	}
	return gpus, nil
}

// RepeatedError is a list that names a GPU twice.
type RepeatedError struct{ GPU string } // its PCI address

func (e *RepeatedError) Error() string {
	return fmt.Sprintf("names gpu %s twice: CUDA gives its programs none then: want each once", e.GPU)
}

// Counted returns the positions in machine.GPUs of the devices in the order in
// which a CUDA program counts them: its device 0 first. order is what an index
// means: to CUDA the position among the GPUs that it may open, by PCI address. The
// list ends where an index is outside order, and where indices change to UUIDs or
// back. A UUID that fits no device or several ends it for CUDA, too; here that is
// an error, with what came before beside it. A GPU named twice is a
// *RepeatedError; several MIG devices of one GPU are not. Seen with driver 580.
func (v Visible) Counted(machine *topology.Machine, order []int) ([]int, error) {
	counted := v
	whole := make(map[int]bool)
	for i, device := range v.Devices {
		if (device.Kind == ByIndex) != (v.Devices[0].Kind == ByIndex) {
			counted.Devices = v.Devices[:i]
			break
		}
		one, err := Visible{Devices: v.Devices[i : i+1]}.GPUs(machine, order)
		if err != nil || len(one) == 0 {
			counted.Devices = v.Devices[:i]
			gpus, _ := counted.GPUs(machine, order) // each has been found
			return gpus, err
		}
		if device.Kind != ByIndex && device.Kind != ByGPU {
			continue
		}
		if whole[one[0]] {
			return nil, &RepeatedError{machine.GPUs[one[0]].PCI}
		}
		whole[one[0]] = true
	}
	return counted.GPUs(machine, order)
}

// find returns the position in machine.GPUs of the one device whose UUID starts
// with d.UUID.
func (d Device) find(machine *topology.Machine) (int, error) {
	var matches []string
	position := -1
	for i, gpu := range machine.GPUs {
		uuids := []string{gpu.UUID}
		if d.Kind == ByMIG {
			uuids = gpu.MIG
		}
		for _, uuid := range uuids {
			if _, fits := cutPrefixFold(uuid, d.UUID); fits {
				matches = append(matches, uuid)
				position = i
			}
		}
	}
	switch len(matches) {
	case 0:
		return -1, fmt.Errorf("device %s: no device of this node has that UUID", d.UUID)
	case 1:
		return position, nil
	default:
		return -1, fmt.Errorf("device %s: fits %s: want more of the UUID", d.UUID, strings.Join(matches, " and "))
	}
}
