package fakenvml

import (
	"fmt"
	"strings"
	"time"
)

// Description is the text of a fakenvml.conf. What is left out is an H200's.
type Description struct {
	Driver string   // version
	Log    string   // file for calls that set something, "": none
	GPUs   []GPU    // in NVML's order
	Faults []Fault  // that stay when SetFaults changes others
	Lines  []string // more lines of the head, such as "cuda 12040"
}

// GPU is one GPU of a description.
type GPU struct {
	UUID  string
	Name  string
	PCI   string // such as 0000:07:00.0
	Minor int
	CPUs  string   // kernel's list form, "none": NVML does not tell
	Nodes string   // as CPUs
	MIG   []string // UUIDs by place, "": not taken; nil: MIG mode is off
	Lines []string // more lines of the GPU, such as "power_range none"
}

// H200 describes a machine as it was measured, with n GPUs (at most 26).
func H200(n int) Description {
	d := Description{Driver: "580.159.04"}
	for i := range n {
		d.GPUs = append(d.GPUs, GPU{
			UUID:  fmt.Sprintf("GPU-%08x-0000-4000-8000-%012x", 0x4b0480b4+i, i),
			Name:  "NVIDIA H200",
			PCI:   fmt.Sprintf("0000:00:%02x.0", 6+i),
			Minor: i,
			CPUs:  "0-31",
			Nodes: "0",
		})
	}
	return d
}

// String returns the text of the file.
func (d Description) String() string {
	var text strings.Builder
	line := func(key, value string) {
		if value != "" {
			fmt.Fprintf(&text, "%s %s\n", key, value)
		}
	}
	line("driver", d.Driver)
	line("log", d.Log)
	for _, more := range d.Lines {
		fmt.Fprintln(&text, more)
	}
	for _, gpu := range d.GPUs {
		line("gpu", gpu.UUID)
		line("name", gpu.Name)
		line("pci", gpu.PCI)
		line("minor", fmt.Sprint(gpu.Minor))
		line("cpus", gpu.CPUs)
		line("nodes", gpu.Nodes)
		if gpu.MIG != nil {
			line("mig_mode", "1")
		}
		for place, uuid := range gpu.MIG {
			if uuid != "" {
				line("mig", fmt.Sprintf("%d %s", place, uuid))
			}
		}
		for _, more := range gpu.Lines {
			fmt.Fprintln(&text, more)
		}
	}
	for _, fault := range d.Faults {
		fmt.Fprintln(&text, fault)
	}
	return text.String()
}

// Fault is one line "fault …"; the package's documentation has the meaning of
// each part. Zero values leave a part out.
type Fault struct {
	Call    string        // such as SetPowerManagementLimit, Get*
	GPU     string        // index or UUID
	Program string        // as in argv[0], without folders
	Nth     string        // such as 2, 2-, 2-4
	Slow    time.Duration // in whole milliseconds, rounded up
	Error   string        // such as GPU_IS_LOST
	Applied bool          // with Error
	Ignored bool
	Value   string // such as 400000 or 345,600
}

// String returns the line.
func (f Fault) String() string {
	words := []string{"fault", f.Call}
	add := func(key, value string) {
		if value != "" {
			words = append(words, key+"="+value)
		}
	}
	add("gpu", f.GPU)
	add("program", f.Program)
	add("nth", f.Nth)
	if f.Slow > 0 {
		add("slow", fmt.Sprint((f.Slow + time.Millisecond - 1).Milliseconds()))
	}
	add("error", f.Error)
	if f.Applied {
		words = append(words, "applied")
	}
	if f.Ignored {
		words = append(words, "ignored")
	}
	add("value", f.Value)
	return strings.Join(words, " ")
}
