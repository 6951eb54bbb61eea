package slurm

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"gputune/internal/topology"
)

// Entry is one of Slurm's GPUs: a GPU, or a MIG device where the node has such.
type Entry struct {
	Index  int    // Slurm's gres index, the position in the result of GPUOrder
	Device string // its device file as Slurm knows it ("/dev/nvidia3"), "" unknown
	GPU    int    // position in Machine.GPUs, -1 unknown
	MIG    string // UUID of the MIG device, "" for a whole GPU or unknown
	Doubt  string // why GPU may be wrong or is unknown, "" it is right
}

// GPUOrder returns the node's GPUs as Slurm numbers them: SLURM_JOB_GPUS and
// SLURM_STEP_GPUS, and CUDA_VISIBLE_DEVICES where devices are not constrained,
// count positions in this list. NVML's index, CUDA's and the N of /dev/nvidiaN
// are three other numbers.
//
// The order is
//   - of AutoDetect=nvml: by PCI address, then what gres.conf alone lists;
//   - of AutoDetect=nvidia (since 24.11): by device file, nvidia2 before nvidia10;
//   - without AutoDetect: as gres.conf lists them, sorted by the types that
//     gres.Declared has.
//
// Lines of other nodes and of other names than gpu do not count, MultipleFiles
// counts once, a line without File counts as often as it says and has no device
// unless one is detected. With MIG under AutoDetect=nvml each MIG device counts;
// releases differ in their order, so there an index is only as good as Doubt
// says and a MIG UUID in CUDA_VISIBLE_DEVICES is better.
//
// Where gres.conf lists nothing for the node and gres.Declared is nil, nothing
// says what Slurm's order is: GPUs are returned by device file, with Doubt.
//
// Device files are resolved by the minor number that devices returns, or the
// number in their name where that fails.
func GPUOrder(gres Gres, node string, machine *topology.Machine, devices DeviceNumbers) []Entry {
	o := ordering{machine: machine, devices: devices}
	configured := o.configured(gres, node)
	detect := gres.autoDetect(node)
	switch {
	case strings.Contains(detect, "off"):
		return number(o.listed(configured))
	case strings.Contains(detect, "nvml"), strings.Contains(detect, "full"):
		return number(o.detected(configured, gres.Declared == nil, true))
	case strings.Contains(detect, "nvidia"):
		return number(o.detected(configured, gres.Declared == nil, false))
	case len(configured) == 0 && gres.Declared == nil:
		entries := o.detected(nil, true, false)
		for i := range entries {
			entries[i].Doubt = cmp.Or(entries[i].Doubt, "gres.conf says nothing of this node's GPUs")
		}
		return number(entries)
	default:
		return number(o.listed(configured))
	}
}

func number(entries []Entry) []Entry {
	for i := range entries {
		entries[i].Index = i
	}
	return entries
}

type ordering struct {
	machine *topology.Machine
	devices DeviceNumbers
}

// configuredGPU is one GPU that slurm.conf and gres.conf together say there is.
type configuredGPU struct {
	device string // "" no file is given
	kind   string // Type
	gpu    int    // position in Machine.GPUs, -1 unknown
}

// configured merges slurm.conf and gres.conf as slurmd does (_merge_config of
// src/interfaces/gres.c): each entry of slurm.conf takes the records of its
// type, all of them if it has none, until its count is used up; what is left of
// the count has no file, and records that no entry took are dropped.
func (o ordering) configured(gres Gres, node string) []configuredGPU {
	records := gres.forNode(node)
	records = slices.DeleteFunc(records, func(r GresRecord) bool { return !strings.EqualFold(r.Name, "gpu") })
	var merged []configuredGPU
	if gres.Declared == nil {
		for _, record := range records {
			merged = append(merged, o.expand(record)...)
		}
		return merged
	}
	for _, declared := range gres.Declared {
		left := declared.Count
		for i := 0; i < len(records) && left > 0; {
			record := records[i]
			if declared.Type != "" && !strings.EqualFold(declared.Type, record.Type) {
				i++
				continue
			}
			records = slices.Delete(records, i, i+1)
			record.Type = declared.Type
			gpus := o.expand(record)
			gpus = gpus[:min(len(gpus), left)]
			left -= len(gpus)
			merged = append(merged, gpus...)
		}
		for range left {
			merged = append(merged, configuredGPU{kind: declared.Type, gpu: -1})
		}
	}
	return merged
}

// expand returns the GPUs of one record.
func (o ordering) expand(record GresRecord) []configuredGPU {
	if record.Multiple && len(record.Files) > 0 {
		// The GPU's own file is among those of its MIG device.
		gpu := configuredGPU{device: record.Files[0], kind: record.Type, gpu: -1}
		for _, file := range record.Files {
			if position := o.find(file); position >= 0 {
				gpu.device, gpu.gpu = file, position
				break
			}
		}
		return []configuredGPU{gpu}
	}
	var gpus []configuredGPU
	for _, file := range record.Files {
		gpus = append(gpus, configuredGPU{device: file, kind: record.Type, gpu: o.find(file)})
	}
	for range record.Count - len(record.Files) {
		gpus = append(gpus, configuredGPU{kind: record.Type, gpu: -1})
	}
	return gpus
}

// find returns the position in Machine.GPUs of the GPU with that device file.
func (o ordering) find(file string) int {
	minor := minorNumber(file, o.devices)
	if minor < 0 {
		return -1
	}
	return slices.IndexFunc(o.machine.GPUs, func(gpu topology.GPU) bool { return gpu.Minor == minor })
}

// listed is the order without AutoDetect.
func (o ordering) listed(configured []configuredGPU) []Entry {
	entries := make([]Entry, 0, len(configured))
	for _, gpu := range configured {
		entries = append(entries, o.listedEntry(gpu))
	}
	return entries
}

func (o ordering) listedEntry(gpu configuredGPU) Entry {
	entry := Entry{Device: gpu.device, GPU: gpu.gpu}
	switch {
	case gpu.gpu >= 0:
	case gpu.device == "":
		entry.Doubt = "gres.conf names no device file for it"
	default:
		entry.Doubt = fmt.Sprintf("no GPU of this node has the minor number of %s", gpu.device)
	}
	return entry
}

// detectedGPU is one device that AutoDetect finds.
type detectedGPU struct {
	device string
	kind   string // the GPU's name as Slurm writes it, "" unknown: any
	gpu    int
	mig    string
	used   bool
}

// detected is the order with AutoDetect: slurmd's _merge_system_gres_conf of
// src/plugins/gres/gpu/gres_gpu.c. all says that nothing declares how many of
// the GPUs Slurm takes; then, if gres.conf has no record either, it is all.
// byPCI says that whole GPUs come first, by PCI address, as NVML has them.
func (o ordering) detected(configured []configuredGPU, all, byPCI bool) []Entry {
	system := o.system()
	if len(configured) == 0 && all {
		configured = make([]configuredGPU, len(system))
		for i := range configured {
			configured[i].gpu = -1
		}
	}
	shortenKinds(system, configured)
	configured = slices.Clone(configured)
	slices.SortStableFunc(configured, func(a, b configuredGPU) int { return compareDevices(a.device, b.device) })
	slices.SortStableFunc(system, func(a, b detectedGPU) int { return compareDevices(a.device, b.device) })

	var order []rankedEntry
	for _, gpu := range configured {
		match := slices.IndexFunc(system, func(d detectedGPU) bool {
			return !d.used && (gpu.kind == "" || d.kind == "" || d.kind == gpu.kind) &&
				(gpu.device == "" || d.gpu == gpu.gpu)
		})
		switch {
		case match >= 0:
			system[match].used = true
			order = append(order, system[match].entry(gpu.device, byPCI))
		case gpu.device != "":
			order = append(order, rankedEntry{Entry: o.listedEntry(gpu), rank: last})
		}
	}
	slices.SortStableFunc(order, func(a, b rankedEntry) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), compareDevices(a.Device, b.Device))
	})
	entries := make([]Entry, len(order))
	for i := range order {
		entries[i] = order[i].Entry
	}
	return entries
}

// rankedEntry is an entry with its place: by PCI address where that counts, last
// for all that has none there. Equal ranks are in the order of device files.
type rankedEntry struct {
	Entry
	rank int
}

const last = math.MaxInt

// entry keeps the device file that is configured, if one is: it is the same
// device under a name that the administrator chose.
func (d detectedGPU) entry(configured string, byPCI bool) rankedEntry {
	entry := rankedEntry{Entry: Entry{Device: cmp.Or(configured, d.device), GPU: d.gpu, MIG: d.mig}, rank: last}
	switch {
	case byPCI && d.mig == "":
		entry.rank = d.gpu // Machine.GPUs is by PCI address
	case byPCI:
		entry.Doubt = "releases of Slurm differ in how they number MIG devices"
	}
	return entry
}

// compareDevices orders device files, those that are unknown last.
func compareDevices(a, b string) int {
	if a == "" || b == "" {
		return cmp.Compare(len(b), len(a))
	}
	return compareNatural(a, b)
}

// system lists what AutoDetect finds: each GPU, or each of its MIG devices.
func (o ordering) system() []detectedGPU {
	var found []detectedGPU
	for i, gpu := range o.machine.GPUs {
		d := detectedGPU{gpu: i, kind: strings.ReplaceAll(strings.ToLower(gpu.Model), " ", "_")}
		if gpu.Minor >= 0 {
			d.device = fmt.Sprintf("/dev/nvidia%d", gpu.Minor)
		}
		for _, uuid := range gpu.MIG {
			d.mig, d.kind = uuid, "" // its type has the profile in it, which is not known here
			found = append(found, d)
		}
		if len(gpu.MIG) == 0 {
			found = append(found, d)
		}
	}
	return found
}

// shortenKinds gives each detected GPU the configured type that is part of its
// name, longest first, as often as that is configured (_normalize_sys_gres_types).
// Where no type is configured names do not matter. It changes the order of system.
func shortenKinds(system []detectedGPU, configured []configuredGPU) {
	var kinds []string
	for _, gpu := range configured {
		if gpu.kind != "" {
			kinds = append(kinds, gpu.kind)
		}
	}
	slices.SortStableFunc(kinds, byLength)
	slices.SortStableFunc(system, func(a, b detectedGPU) int {
		return cmp.Or(byLength(a.kind, b.kind), compareDevices(a.device, b.device))
	})
	for i := range system {
		if system[i].kind == "" {
			continue
		}
		match := slices.IndexFunc(kinds, func(kind string) bool {
			return strings.Contains(system[i].kind, strings.ToLower(kind))
		})
		if match >= 0 {
			system[i].kind = kinds[match]
			kinds = slices.Delete(kinds, match, match+1)
		}
	}
}

// byLength orders long words before short ones, and those of a length by letters.
func byLength(a, b string) int {
	return cmp.Or(cmp.Compare(len(b), len(a)), strings.Compare(a, b))
}
