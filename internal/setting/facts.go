package setting

// GPUFacts are the states of a GPU that gputune reads and does not change here.
// A nil pointer is a fact that this GPU or driver does not have.
type GPUFacts struct {
	UUID  string
	PCI   string // as sysfs writes it
	Model string

	ECC *Pending // error correction of the memory
	MIG *Pending // whether the GPU is split into MIG devices

	// Throttle says why the clocks are lower than they could be, in NVIDIA's
	// words without spaces: gpu_idle, sw_power_cap, hw_thermal_slowdown, …
	Throttle []string

	Rows *RemappedRows
}

// Pending is a mode that changes at the next reset of the GPU.
type Pending struct {
	Now  bool
	Next bool
}

// RemappedRows are the memory rows that the GPU replaced by spare ones.
// Source: nvmlDeviceGetRemappedRows.
type RemappedRows struct {
	Correctable   int
	Uncorrectable int
	Pending       bool // some are remapped at the next reset
	Failed        bool // a remapping failed: NVIDIA asks for the card's replacement
}

// ReadGPUFacts reads the facts of the GPU with this UUID.
func ReadGPUFacts(env *Environment, uuid string) (GPUFacts, error) {
	device, err := env.Device(uuid)
	if err != nil {
		return GPUFacts{}, err
	}
	return device.Facts()
}
