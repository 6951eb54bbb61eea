package setting

import (
	"errors"
	"path/filepath"
	"sync"

	"gputune/internal/mps"
)

// Environment is what settings work on: a tree with /sys and /proc, NVML, and
// the node that daemons run on. It may be used by several goroutines.
type Environment struct {
	// MPS is where MPS daemons are run, and how long that may take. It is set
	// before the environment is used.
	MPS mps.Host

	root string
	open func() (Devices, error)

	mu      sync.Mutex
	devices Devices // nil until a GPU was asked for
	byUUID  map[string]Device
	closed  bool
}

// Devices is NVIDIA's management library, initialised.
type Devices interface {
	// Device returns the GPU with this UUID. ErrGone if there is none.
	Device(uuid string) (Device, error)
	// Close shuts the library down. Its devices are of no use then.
	Close() error
}

// NewEnvironment returns an environment over the tree at root, "/" on a
// node, which also is where daemons are run. open is called when the first GPU is asked for and not before: work
// without a GPU setting never loads NVML.
func NewEnvironment(root string, open func() (Devices, error)) *Environment {
	return &Environment{MPS: mps.Host{Root: root}, root: root, open: open, byUUID: map[string]Device{}}
}

// Path returns a path of the machine, as /proc/sys/vm/swappiness, under the
// environment's root.
func (e *Environment) Path(path string) string { return filepath.Join(e.root, path) }

// Device returns the GPU with this UUID. The library is loaded at the first
// call and kept until Close, and so are the GPUs: finding one takes
// milliseconds.
func (e *Environment) Device(uuid string) (Device, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, errors.New("settings used after they were closed")
	}
	if device := e.byUUID[uuid]; device != nil {
		return device, nil
	}
	if e.devices == nil {
		if e.open == nil {
			return nil, ErrUnsupported
		}
		devices, err := e.open()
		if err != nil {
			return nil, err
		}
		e.devices = devices
	}
	device, err := e.devices.Device(uuid)
	if err != nil {
		return nil, err
	}
	e.byUUID[uuid] = device
	return device, nil
}

// Close shuts NVML down if it was loaded. The environment gives no more GPUs
// after it.
func (e *Environment) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	clear(e.byUUID)
	if e.devices == nil {
		return nil
	}
	devices := e.devices
	e.devices = nil
	return devices.Close()
}
