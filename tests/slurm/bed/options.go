package bed

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	authMunge = "munge"
	authNone  = "none"

	// DefaultTimeout is how long a command of a bed may run unless
	// Options.Timeout or Cmd.Timeout says otherwise.
	DefaultTimeout = 60 * time.Second

	// An allocation of a node of more CPUs than the machine has is only
	// bookkeeping, so the limit is a guard against a typo.
	maxCPUs = 4096
	// What select/cons_tres and gres/gpu are used with at most.
	maxGPUs = 64
)

// Options say what kind of Slurm to start. The zero value is one without task
// plugins and GPUs, with as many CPUs as the machine has.
//
// "${DIR}" stands for Bed.Dir in PlugstackLines, ExtraSlurmConf, ExtraGres,
// Prolog, Epilog and DaemonEnv.
type Options struct {
	// Dir is the private folder; it is made if missing and kept by Stop. It
	// must be empty or what an earlier bed has left. The default is a new
	// folder below os.TempDir, which Stop removes. All folders above it must
	// be open to everybody, or munged refuses and unprivileged jobs cannot run.
	Dir string
	// Node is the node's name. A second bed of the same name waits in Start
	// until the first has stopped, so beds meant to run at once leave it empty
	// or differ; the default is unique.
	Node string
	// NCPU is the number of CPUs, each a core of one socket. Without
	// task/affinity and ConstrainCores it may exceed what the machine has; with
	// them it may not, since Slurm cannot bind to CPUs that are not there (but
	// srun --overcommit runs any number of tasks).
	NCPU int
	// GPUs is the number of GPUs: device nodes dev/nvidia0 … with the major
	// number of NVIDIA's driver, 195, and minor numbers from 0, which nothing
	// need be behind. Opening one gives ENXIO where there is no driver, and
	// EPERM where ConstrainDevices keeps a task off.
	GPUs int

	// TaskPlugin, as in slurm.conf; by default task/none, or
	// task/affinity,task/cgroup if something is to be constrained.
	TaskPlugin string
	// ProctrackType, as in slurm.conf; by default proctrack/linuxproc, or
	// proctrack/cgroup if something is to be constrained.
	ProctrackType string
	// ConstrainCores and ConstrainDevices, as in cgroup.conf. They need
	// task/cgroup and the cgroup v1 controllers cpuset and devices.
	ConstrainCores, ConstrainDevices bool

	// PlugstackLines are the lines of plugstack.conf.
	PlugstackLines []string
	// ExtraGres are lines of gres.conf. One with Name=gpu replaces the lines
	// that GPUs gives.
	ExtraGres []string
	// NodeGres is the node's Gres value; by default "gpu:" and GPUs.
	NodeGres string
	// Prolog and Epilog are paths of programs that slurmd runs.
	Prolog, Epilog string
	// Partition is added to the partition's line, such as OverSubscribe=FORCE:4.
	Partition string
	// MaxTime is the partition's time limit as in slurm.conf, by default
	// INFINITE.
	MaxTime string
	// ExtraSlurmConf are lines of slurm.conf, each of one parameter (or one
	// NodeName, PartitionName …). They replace the bed's own value of that
	// parameter.
	ExtraSlurmConf []string

	// Auth is "munge", "none", or empty for munge unless munged is missing or
	// does not run here.
	Auth string
	// DaemonEnv are variables for slurmctld and slurmd beside PATH, HOME and
	// LANG. slurmstepd has slurmd's; Prolog, Epilog and tasks do not.
	DaemonEnv []string
	// Daemonize starts slurmd as init scripts do, leaving the foreground by
	// itself, instead of as a child.
	Daemonize bool
	// Timeout is how long a command may run, by default DefaultTimeout.
	Timeout time.Duration
}

// machine is what complete has to know of the machine.
type machine struct {
	root        bool
	cpus        int
	controllers func(name string) bool // is this cgroup v1 controller mounted
	program     func(name string) error
}

func hostMachine() machine {
	return machine{
		root: os.Geteuid() == 0,
		cpus: runtime.NumCPU(),
		controllers: func(name string) bool {
			var fs unix.Statfs_t
			err := unix.Statfs(filepath.Join(cgroupRoot, name), &fs)
			return err == nil && fs.Type == unix.CGROUP_SUPER_MAGIC
		},
		program: func(name string) error {
			_, err := findProgram(name)
			return err
		},
	}
}

// Slurm takes brackets, commas and the like in a node name for a list of names.
var nodeName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9-]{0,62}$`)

// complete fills in the defaults and refuses what cannot work.
func (o Options) complete(m machine) (Options, error) {
	if o.Node != "" && !nodeName.MatchString(o.Node) {
		return o, fmt.Errorf("bed: Options.Node %q: want a letter, then letters, digits and dashes, 63 at most", o.Node)
	}
	if o.NCPU == 0 {
		o.NCPU = m.cpus
	}
	if o.NCPU < 0 || o.NCPU > maxCPUs {
		return o, fmt.Errorf("bed: Options.NCPU %d: want 1 to %d", o.NCPU, maxCPUs)
	}
	if o.GPUs < 0 || o.GPUs > maxGPUs {
		return o, fmt.Errorf("bed: Options.GPUs %d: want 0 to %d", o.GPUs, maxGPUs)
	}
	if o.Auth != "" && o.Auth != authMunge && o.Auth != authNone {
		return o, fmt.Errorf("bed: Options.Auth %q: want %s, %s or nothing", o.Auth, authMunge, authNone)
	}
	constrained := o.ConstrainCores || o.ConstrainDevices
	if o.TaskPlugin == "" {
		o.TaskPlugin = "task/none"
		if constrained {
			o.TaskPlugin = "task/affinity,task/cgroup"
		}
	}
	if o.ProctrackType == "" {
		o.ProctrackType = "proctrack/linuxproc"
		if constrained {
			o.ProctrackType = "proctrack/cgroup"
		}
	}
	if constrained && !strings.Contains(o.TaskPlugin, "cgroup") {
		return o, fmt.Errorf("bed: Options.ConstrainCores, ConstrainDevices: TaskPlugin %q does not constrain; want task/cgroup among them", o.TaskPlugin)
	}
	if o.NCPU > m.cpus && (strings.Contains(o.TaskPlugin, "affinity") || o.ConstrainCores) {
		return o, fmt.Errorf("bed: Options.NCPU %d with TaskPlugin %q, ConstrainCores %t: the machine has %d CPUs, and Slurm cannot bind to more", o.NCPU, o.TaskPlugin, o.ConstrainCores, m.cpus)
	}
	if o.MaxTime == "" {
		o.MaxTime = "INFINITE"
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	if o.NodeGres == "" && o.GPUs > 0 {
		o.NodeGres = fmt.Sprintf("gpu:%d", o.GPUs)
	}
	return o.checkMachine(m)
}

// checkMachine returns an error with ErrUnavailable for what the machine lacks.
func (o Options) checkMachine(m machine) (Options, error) {
	if !m.root {
		return o, fmt.Errorf("bed: %w: slurmd needs root", ErrUnavailable)
	}
	for _, name := range []string{Slurmctld, Slurmd, "srun", "sinfo", "squeue", "scancel", "scontrol"} {
		if err := m.program(name); err != nil {
			return o, fmt.Errorf("bed: %w: %s: %w; on Debian it is in slurmctld, slurmd and slurm-client", ErrUnavailable, name, err)
		}
	}
	if err := m.program(Munged); err != nil {
		if o.Auth == authMunge {
			return o, fmt.Errorf("bed: %w: %s: %w; on Debian it is in munge", ErrUnavailable, Munged, err)
		}
		o.Auth = authNone
	}
	needs := map[string]bool{
		"freezer": o.ProctrackType == "proctrack/cgroup",
		"cpuset":  o.ConstrainCores,
		"devices": o.ConstrainDevices,
	}
	for controller, needed := range needs {
		if needed && !m.controllers(controller) {
			return o, fmt.Errorf("bed: %w: %s, ConstrainCores %t, ConstrainDevices %t need the cgroup v1 controller %s in %s",
				ErrUnavailable, o.ProctrackType, o.ConstrainCores, o.ConstrainDevices, controller, cgroupRoot)
		}
	}
	return o, nil
}

// findProgram looks in PATH and where distributions put daemons, which is not
// in everybody's PATH.
func findProgram(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil || strings.ContainsRune(name, '/') {
		return path, err
	}
	for _, dir := range []string{"/usr/sbin", "/usr/local/sbin", "/sbin"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return "", err
}
