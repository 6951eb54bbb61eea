// Package node reads what a node is: the machine, Slurm's numbering of its GPUs
// and what Slurm holds tasks to. It joins packages topology and slurm for
// everybody who acts on a node.
package node

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"gputune/conf"
	"gputune/internal/slurm"
	"gputune/internal/topology"
)

// ErrPart is a device that is not a whole GPU.
var ErrPart = errors.New("a part of a GPU")

// Node is one node of the cluster.
type Node struct {
	Name    string // Slurm's name for it, "" not known
	Machine *topology.Machine
	// Order has for each of Slurm's gres indices the position of its GPU in
	// Machine.GPUs, -1 where that is not known.
	Order []int
	// MIG has for each gres index the UUID of its MIG device, "" for a GPU.
	MIG []string
	// Devices has for each GPU of the machine its device file, "" where Slurm
	// does not manage it.
	Devices []string
	// Doubt has for each gres index why Order may be wrong there, "" it is not.
	Doubt []string
	// Sharded tells for each GPU of the machine whether Slurm can give it to
	// several jobs at once.
	Sharded []bool
	// Divided tells for each GPU of the machine whether Slurm gives parts of it,
	// MIG devices, to jobs.
	Divided []bool
	// ConstrainDevices and ConstrainCores say that Slurm keeps tasks to their
	// GPUs and cores.
	ConstrainDevices, ConstrainCores bool
	// Slurm is slurm.conf, as far as it could be read.
	Slurm slurm.Conf
	// Unread is why Slurm's own files could not be read, nil they were.
	Unread error
	// Log is what the administrator should know, a line each.
	Log []string
}

// Read reads this node. Device files are looked up below root, "/" outside
// tests; the machine is where paths says. process is getenv(3) of a process that
// slurmd started, for SLURM_CONF and SLURMD_NODENAME. What Slurm's files
// do not tell is logged and taken as the cautious case; an error is a machine
// that cannot be read.
func Read(root string, paths conf.Paths, process func(string) (string, bool)) (*Node, error) {
	n := &Node{}
	var stale, err error
	if n.Machine, stale, err = Machine(paths); err != nil {
		return nil, err
	}
	if stale != nil {
		n.log("%v: reading sysfs instead", stale)
	}
	n.readSlurm(root, paths, process)
	return n, nil
}

func (n *Node) log(format string, arguments ...any) {
	n.Log = append(n.Log, fmt.Sprintf(format, arguments...))
}

// Machine reads this machine where paths says. The snapshot is preferred: it has
// what NVML said. stale is why one that is there was not used.
func Machine(paths conf.Paths) (machine *topology.Machine, stale, err error) {
	machine, stale = topology.ReadSnapshot(string(paths.Machine), string(paths.Snapshot))
	if stale == nil {
		return machine, nil, nil
	}
	if errors.Is(stale, fs.ErrNotExist) {
		stale = nil
	}
	machine, err = topology.Read(string(paths.Machine), topology.Options{})
	return machine, stale, err
}

func (n *Node) readSlurm(root string, paths conf.Paths, process func(string) (string, bool)) {
	slurmConf := slurm.ConfPath(process)
	folder := filepath.Dir(slurmConf)
	known := false
	if n.Name, known = slurm.NodeName(process); !known {
		n.log("SLURMD_NODENAME is not set: lines of gres.conf for single nodes are passed over")
	}
	gresConf := string(paths.GresConf)
	if gresConf == "" {
		gresConf = filepath.Join(folder, "gres.conf")
	}
	conf, err := slurm.ReadSlurm(slurmConf)
	if err != nil {
		n.log("%v", err)
		n.Unread = err
	}
	gres, err := slurm.ReadGres(gresConf)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		n.log("%v", err)
		n.Unread = err
	}
	n.Slurm = conf
	gres.Declared = conf.DeclaredGPUs(n.Name)
	n.Sharded = slurm.Sharded(gres, conf.DeclaresShards(n.Name), n.Name, n.Machine, slurm.Devices(root))
	n.Divided = slurm.Divided(gres, n.Name, n.Machine, slurm.Devices(root))
	n.Devices = make([]string, len(n.Machine.GPUs))
	for _, entry := range slurm.GPUOrder(gres, n.Name, n.Machine, slurm.Devices(root)) {
		n.Order = append(n.Order, entry.GPU)
		n.MIG = append(n.MIG, entry.MIG)
		n.Doubt = append(n.Doubt, entry.Doubt)
		if entry.GPU >= 0 {
			n.Devices[entry.GPU] = entry.Device
		}
	}
	cgroups, err := slurm.ReadCgroup(filepath.Join(folder, "cgroup.conf"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		n.log("%v", err)
	}
	if conf.HasTaskPlugin("task/cgroup") {
		n.ConstrainDevices, n.ConstrainCores = cgroups.ConstrainDevices, cgroups.ConstrainCores
	}
}

// GPUs returns the positions in Machine.GPUs of a job's GPUs, each once. UUIDs
// are believed before gres indices, which count devices in an order that has to
// be worked out. An error names the device that is not known for sure, or is a
// part of a GPU.
func (n *Node) GPUs(job slurm.Job) ([]int, error) { return n.gpus(job, false) }

// Near is GPUs for what only depends on where they are: of a device that is a part
// of a GPU it returns the GPU.
func (n *Node) Near(job slurm.Job) ([]int, error) { return n.gpus(job, true) }

// Shared returns nil where a job has this node for itself, and else why it does
// not, or why that cannot be told, and what would work.
func (n *Node) Shared(job slurm.Job) error {
	if n.Unread != nil {
		job.CPUs = 0 // how many there are, and who else may have them, is not known
	}
	return n.Slurm.Shared(job, n.Name, n.Machine.CPUs.Len())
}

func (n *Node) gpus(job slurm.Job, parts bool) ([]int, error) {
	if slices.ContainsFunc(job.Visible.Devices, func(d slurm.Device) bool { return d.Kind == slurm.ByGPU }) {
		return job.Visible.GPUs(n.Machine, n.Order)
	}
	indices := job.GPUs
	if len(indices) == 0 {
		for _, device := range job.Visible.Devices {
			indices = append(indices, device.Index)
		}
	}
	var gpus []int
	for _, index := range indices {
		switch {
		case index >= len(n.Order) || n.Order[index] < 0:
			return nil, fmt.Errorf("gres index %d: not known to be any of this node's %d GPUs: do gres.conf and the devices agree?", index, len(n.Machine.GPUs))
		case n.Doubt[index] != "":
			return nil, fmt.Errorf("gres index %d: %s", index, n.Doubt[index])
		case n.MIG[index] != "" && !parts:
			return nil, fmt.Errorf("gres index %d: the MIG device %s is %w", index, n.MIG[index], ErrPart)
		case !slices.Contains(gpus, n.Order[index]):
			gpus = append(gpus, n.Order[index])
		}
	}
	return gpus, nil
}
