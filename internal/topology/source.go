package topology

// Source says what a Machine was read from and what that left open. Readers
// return it beside the machine; Machine.Source is its Kind.
type Source struct {
	Kind string `json:"kind"` // one of the Kind… constants
	File string `json:"file"` // as it was named, "/" for this machine

	// Unknown has one sentence for each kind of fact that the source does not
	// state, such as "The CPUs of node 1 are not stated." Those facts are
	// empty in the machine, -1 where that is what the field's comment says.
	Unknown []string `json:"unknown,omitempty"`
}

// The kinds of sources, as Machine.Source and Source.Kind name them.
const (
	KindSysfs     = "sysfs"      // /sys and /proc of this machine, or a folder or an archive with a copy
	KindHwloc     = "hwloc"      // hwloc's XML, "lstopo file.xml"
	KindNCCL      = "nccl"       // NCCL's topology XML, what NCCL_TOPO_FILE and NCCL_TOPO_DUMP_FILE name
	KindNVIDIASMI = "nvidia-smi" // the text of "nvidia-smi topo -m", and of lscpu and numactl beside it
	KindSnapshot  = "snapshot"   // what WriteSnapshot wrote
)

// MemoryUnknown is a node's MemoryMiB where the source does not state it.
const MemoryUnknown = -1
