// Package sample reads how GPUs are doing, again and again, for the reports on jobs.
//
// The driver is asked by a process of its own (Serve), which has the library open
// as long as it lives, so that it can be ended whenever somebody needs the GPUs for
// himself. Child is that process as the agent has it; Listen and Dial are how
// gputune-prolog and gputune-epilog tell the agent to sample now, or to get out of
// the way.
package sample

import "time"

// Level is something that goes up and down. Its name has the unit.
type Level string

// Levels of a GPU.
const (
	// SMPercent is the share of time in which a kernel ran (utilization.gpu of
	// nvidia-smi), MemoryPercent that in which memory was read or written.
	SMPercent     Level = "sm_percent"
	MemoryPercent Level = "memory_percent"
	// MemoryMiB is the memory in use, without what the driver keeps for itself.
	MemoryMiB   Level = "memory_mib"
	PowerWatts  Level = "power_watts"
	SMClock     Level = "sm_clock_mhz"
	MemoryClock Level = "memory_clock_mhz"
	Temperature Level = "temperature_celsius"
)

// Counter is something that only grows, until the driver is loaded again.
type Counter string

// Counters of a GPU.
const (
	Energy           Counter = "energy_joules"
	ECCCorrected     Counter = "ecc_corrected"
	ECCUncorrected   Counter = "ecc_uncorrected"
	PCIeReplays      Counter = "pcie_replays"
	PCIeReceived     Counter = "pcie_received_bytes"
	PCIeSent         Counter = "pcie_sent_bytes"
	NVLinkCRCErrors  Counter = "nvlink_crc_errors"
	NVLinkReplays    Counter = "nvlink_replays"
	NVLinkRecoveries Counter = "nvlink_recoveries"
)

// Range is a level since the reading before: its mean and its highest value. Where
// a GPU keeps no samples of it, both are what it is at the moment.
type Range struct {
	Mean float64 `json:"mean"`
	Max  float64 `json:"max"`
}

// Reading is one look at a GPU or MIG device. What it does not support is not in
// the maps.
type Reading struct {
	Device    string              `json:"device"` // as it was asked for
	PCI       string              `json:"pci,omitempty"`
	Model     string              `json:"model,omitempty"`
	MemoryMiB float64             `json:"memory_total_mib,omitempty"`
	Time      time.Time           `json:"time"`
	Levels    map[Level]Range     `json:"levels,omitempty"`
	Counters  map[Counter]float64 `json:"counters,omitempty"`
	// Reasons is why the clocks are lower than they could be, in the words of
	// nvidia-smi's clocks_event_reasons; nil: not known.
	Reasons []string `json:"reasons"`
	// Held is for how many seconds a reason has held since the driver was loaded,
	// for those that the GPU counts.
	Held map[string]float64 `json:"held_seconds,omitempty"`
	// Error is why there is nothing else: the device is gone.
	Error string `json:"error,omitempty"`
}

// Source is the driver, open.
type Source interface {
	// Read looks at a device, by UUID or PCI address. all asks for those counters,
	// too, that only errors move.
	Read(device string, all bool) Reading
	// Close closes the driver. The source is of no use then.
	Close() error
}
