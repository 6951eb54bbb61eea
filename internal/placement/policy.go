// Package placement decides on which CPUs and memory nodes each task of a job
// step runs, given the machine, what the step was granted and which GPUs each
// task has. It does no I/O, keeps no state, and gives the same answer for the
// same input.
package placement

// CPUMode says which CPUs near a GPU its tasks get.
type CPUMode string

// The values of the option item cpus=.
const (
	CPUsNode        CPUMode = "node"         // all granted CPUs of the GPU's local nodes
	CPUsExclusive   CPUMode = "exclusive"    // an equal, disjoint share of whole cores for each GPU
	CPUsCoreComplex CPUMode = "core-complex" // one L3 group of the GPU's nodes
	CPUsSocket      CPUMode = "socket"       // all granted CPUs of the GPU's package
	CPUsNone        CPUMode = "none"         // the CPUs are left alone
)

// MemMode is the memory policy that a task gets; see set_mempolicy(2).
type MemMode string

// The values of the option item mem=.
const (
	MemPrefer     MemMode = "prefer"     // MPOL_PREFERRED, MPOL_PREFERRED_MANY for several nodes
	MemBind       MemMode = "bind"       // MPOL_BIND, and cpuset.mems where cpusets are written
	MemInterleave MemMode = "interleave" // MPOL_INTERLEAVE
	MemNone       MemMode = "none"       // the memory policy is left alone
)

// SMTMode says which hardware threads of a core are used.
type SMTMode string

// The values of the option item smt=.
const (
	SMTAll SMTMode = "all" // all granted hardware threads
	SMTOne SMTMode = "one" // the first granted hardware thread of each core
)

// GPUMode says how a task that sees several GPUs is paired with them.
type GPUMode string

// The values of the option item gpus=.
const (
	GPUsAuto  GPUMode = "auto"  // by local id where all tasks see the same GPUs and their number divides, else all
	GPUsAll   GPUMode = "all"   // every GPU that the task sees
	GPUsLocal GPUMode = "local" // those whose local nodes have CPUs of the task, all if there is none
)

// Policy is what a user asked for.
type Policy struct {
	CPUs CPUMode
	Mem  MemMode
	SMT  SMTMode
	GPUs GPUMode
}

// Default is the policy of the bare option.
func Default() Policy {
	return Policy{CPUs: CPUsNode, Mem: MemPrefer, SMT: SMTAll, GPUs: GPUsAuto}
}

// Locality tells how the CPUs of a GPU or a task lie to the GPUs.
type Locality string

// The localities. A task is local when every CPU that it has is on a local node
// of one of its GPUs and each of its GPUs has such a CPU; remote when it has no
// CPU near any of them; mixed between; and unknown when no source tells where its
// GPUs are.
const (
	Local   Locality = "local"
	Remote  Locality = "remote"
	Mixed   Locality = "mixed"
	Unknown Locality = "unknown"
)

// Code names a kind of warning.
type Code string

// The kinds of warnings.
const (
	NoGPU          Code = "no-gpu"           // the task has no GPU to be bound to
	LocalityAbsent Code = "locality-unknown" // no source tells the GPU's nodes
	RemoteCPUs     Code = "remote-cpus"      // no granted CPU is local to the GPU
	RemoteMemory   Code = "remote-memory"    // no granted memory is local to the GPU
	NoMemory       Code = "no-memory"        // there is no memory node to set a policy for
	SharedCores    Code = "shared-cores"     // fewer cores than GPUs: shares overlap
	SharedL3       Code = "shared-l3"        // fewer L3 groups than GPUs: groups are used twice
	NoL3           Code = "no-l3"            // no L3 groups are known: the whole node is used
)

// Warning is one thing that could not be had as asked. Under strict it is a
// reason to fail.
type Warning struct {
	Code Code
	Text string // one line for the user, naming GPU, nodes and counts
}

// MarshalText writes the text, for JSON.
func (w Warning) MarshalText() ([]byte, error) { return []byte(w.Text), nil }
