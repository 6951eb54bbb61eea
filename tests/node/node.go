// Package node is a made-up node for tests of gputune-prolog, gputune-epilog and
// gputune: a described machine, a driver with its GPUs, Slurm's files and
// gputune's own, all in one folder. The programs are the real ones and get the
// environment that slurmd gives them.
package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"gputune/internal/job"
	"gputune/internal/topology"
	"gputune/tests/fakemps"
	"gputune/tests/fakenvml"
	"gputune/tests/machines"
)

// Name is what Slurm calls the node.
const Name = "n1"

// Node is a made-up node.
type Node struct {
	Dir     string // all of it
	Machine *topology.Machine
	NVML    fakenvml.Library
	Run     string           // paths.run
	State   string           // paths.state
	Config  string           // gputune.toml
	MPS     fakemps.Programs // of a node that has them, see InstallMPS

	bin    string
	kernel map[string]string // files of a node with settings, see AddSettings
	mpsJob int               // number of its first job with an MPS daemon
}

// Driver returns the description of a driver for a machine's GPUs, with an
// H200's properties.
func Driver(machine *topology.Machine) fakenvml.Description {
	d := fakenvml.Description{Driver: "580.159.04"}
	for _, gpu := range machine.GPUs {
		d.GPUs = append(d.GPUs, fakenvml.GPU{
			UUID: gpu.UUID, PCI: gpu.PCI, Minor: gpu.Minor, CPUs: gpu.CPUs.String(), Nodes: gpu.Nodes.String(),
		})
	}
	return d
}

// Make makes a node in a folder: the machine with that name in package
// machines, its driver, and a site's configuration beside the paths.
func Make(ctx context.Context, dir, machine, config string) (*Node, error) {
	tree, err := tree()
	if err != nil {
		return nil, err
	}
	n := &Node{
		Dir: dir, Run: filepath.Join(dir, "run", "gputune"), State: filepath.Join(dir, "lib", "gputune"),
		Config: filepath.Join(dir, "gputune.toml"), bin: filepath.Join(tree, "build", "bin"),
	}
	description, err := machines.Get(machine)
	if err != nil {
		return nil, err
	}
	if n.Machine, err = description.Machine(filepath.Join(dir, "machine")); err != nil {
		return nil, err
	}
	if n.NVML, err = driver(filepath.Join(dir, "nvml")); err != nil {
		return nil, err
	}
	if err := n.NVML.Describe(ctx, Driver(n.Machine)); err != nil {
		return nil, err
	}
	for _, folder := range []string{"run", "lib", "etc"} {
		if err := os.Mkdir(filepath.Join(dir, folder), 0o755); err != nil {
			return nil, err
		}
	}
	gres := ""
	for _, gpu := range n.Machine.GPUs {
		gres += fmt.Sprintf("Name=gpu File=/dev/nvidia%d\n", gpu.Minor)
	}
	for name, text := range map[string]string{
		"etc/slurm.conf": fmt.Sprintf("ClusterName=test\nGresTypes=gpu\nNodeName=%s Gres=gpu:%d\n", Name, len(n.Machine.GPUs)),
		"etc/gres.conf":  gres,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	return n, n.Configure(config)
}

// InstallMPS puts a fake nvidia-cuda-mps-control on the node. Users have to get
// into its folder, and that of paths.run, so the node's has to be open to them.
func (n *Node) InstallMPS() error {
	text, err := control()
	if err != nil {
		return err
	}
	n.MPS = fakemps.Programs{Folder: filepath.Join(n.Dir, "mps")}
	if err := os.Mkdir(n.MPS.Folder, 0o755); err != nil {
		return err
	}
	// No child that is forked meanwhile may hold the program open for writing.
	syscall.ForkLock.RLock()
	err = os.WriteFile(n.MPS.Control(), text, 0o755)
	syscall.ForkLock.RUnlock()
	for _, name := range []string{fakemps.ServerName, fakemps.ClientName} {
		err = errors.Join(err, os.Symlink(fakemps.ControlName, filepath.Join(n.MPS.Folder, name)))
	}
	return errors.Join(err, n.MPS.Faults())
}

// MPSProcesses returns the processes of the node's MPS programs by id, with
// their command lines.
func (n *Node) MPSProcesses() (map[int]string, error) {
	links, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		return nil, err
	}
	found := map[int]string{}
	for _, link := range links {
		program, err := os.Readlink(link)
		if err != nil || n.MPS.Folder == "" || !strings.HasPrefix(program, n.MPS.Folder+"/") {
			continue // or it has ended
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(link)))
		if err != nil {
			return nil, err
		}
		if command, err := os.ReadFile(filepath.Join(filepath.Dir(link), "cmdline")); err == nil && len(command) > 0 {
			found[pid] = strings.TrimSpace(strings.ReplaceAll(string(command), "\x00", " "))
		}
	}
	return found, nil
}

// Configure replaces the site's configuration beside the paths.
func (n *Node) Configure(config string) error {
	text := fmt.Sprintf("[paths]\nmachine = %q\nsnapshot = %q\nstate = %q\nrun = %q\njournal = \"\"\n%s",
		filepath.Join(n.Dir, "machine"), filepath.Join(n.Dir, "topology.json"), n.State, n.Run, config)
	if n.MPS.Folder != "" {
		text += fmt.Sprintf("[gpu_mps]\nprogram = %q\n", n.MPS.Control())
	}
	return os.WriteFile(n.Config, []byte(text), 0o644)
}

// built has the files of the fake NVML, which takes seconds to compile, by name.
var built = sync.OnceValues(func() (map[string][]byte, error) {
	folder, err := os.MkdirTemp("", "fakenvml-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(folder) }()
	if _, err := fakenvml.Build(context.Background(), folder); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	for _, entry := range entries {
		if files[entry.Name()], err = os.ReadFile(filepath.Join(folder, entry.Name())); err != nil {
			return nil, err
		}
	}
	return files, nil
})

// control has the fake nvidia-cuda-mps-control.
var control = sync.OnceValues(func() ([]byte, error) {
	folder, err := os.MkdirTemp("", "fakemps-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(folder) }()
	programs, err := fakemps.Build(context.Background(), folder)
	if err != nil {
		return nil, err
	}
	return os.ReadFile(programs.Control())
})

// driver puts a fake NVML into a folder, which it makes.
func driver(folder string) (fakenvml.Library, error) {
	files, err := built()
	if err != nil {
		return fakenvml.Library{}, err
	}
	if err := os.Mkdir(folder, 0o755); err != nil {
		return fakenvml.Library{}, err
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(folder, name), text, 0o755); err != nil {
			return fakenvml.Library{}, err
		}
	}
	return fakenvml.Library{Folder: folder}, nil
}

// tree returns the top folder of the source tree.
func tree() (string, error) {
	output, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", err
	}
	return filepath.Dir(strings.TrimSpace(string(output))), nil
}

// Job is a job as slurmd describes it to its Prolog.
type Job struct {
	ID      int
	GPUs    string            // gres indices, "0,1"
	Options map[string]string // by option, "gpu-clocks"
	Env     []string          // more variables, which win
}

// Environ returns the environment that slurmd gives Prolog and Epilog.
func (n *Node) Environ(j Job) []string {
	env := append([]string{
		fmt.Sprintf("SLURM_JOB_ID=%d", j.ID), fmt.Sprintf("SLURM_JOBID=%d", j.ID), "SLURM_JOB_UID=0", "SLURM_JOB_GID=0",
		"SLURM_JOB_USER=root", "SLURM_JOB_PARTITION=main", "SLURMD_NODENAME=" + Name,
		"SLURM_CONF=" + filepath.Join(n.Dir, "etc", "slurm.conf"),
	}, n.NVML.Environ()...)
	if j.GPUs != "" {
		env = append(env, "SLURM_JOB_GPUS="+j.GPUs, "CUDA_VISIBLE_DEVICES="+j.GPUs)
	}
	for name, value := range j.Options {
		env = append(env, "SPANK_GPUTUNE_"+strings.ReplaceAll(strings.ToUpper(name), "-", "_")+"="+value)
	}
	for _, variable := range j.Env { // as slurmd, which gives each name once
		name, _, _ := strings.Cut(variable, "=")
		env = slices.DeleteFunc(env, func(v string) bool { return strings.HasPrefix(v, name+"=") })
		env = append(env, variable)
	}
	return env
}

// Result is how a program ended.
type Result struct {
	Code   int // -1: by a signal
	Output string
}

// Program returns a command that runs gputune-prolog, gputune-epilog or
// gputune for a job.
func (n *Node) Program(ctx context.Context, name string, j Job, arguments ...string) *exec.Cmd {
	command := exec.CommandContext(ctx, filepath.Join(n.bin, name), arguments...)
	command.Args = append(command.Args, "--config="+n.Config)
	command.Env = n.Environ(j)
	return command
}

// Finish runs a command and returns how it ended.
func Finish(command *exec.Cmd) (Result, error) {
	var output bytes.Buffer
	command.Stdout, command.Stderr = &output, &output
	err := command.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return Result{}, err
	}
	return Result{Code: command.ProcessState.ExitCode(), Output: output.String()}, nil
}

// Prolog runs gputune-prolog for a job.
func (n *Node) Prolog(ctx context.Context, j Job) (Result, error) {
	return Finish(n.Program(ctx, "gputune-prolog", j))
}

// Epilog runs gputune-epilog for a job.
func (n *Node) Epilog(ctx context.Context, j Job) (Result, error) {
	return Finish(n.Program(ctx, "gputune-epilog", j))
}

// Restore runs gputune restore: --all or --job=ID.
func (n *Node) Restore(ctx context.Context, which string) (Result, error) {
	return Finish(n.Program(ctx, "gputune", Job{}, "restore", which))
}

// Reported returns what the Prolog reported on a job, and the notice for the
// user, which may be missing.
func (n *Node) Reported(id int) (job.Report, string, error) {
	var report job.Report
	path := filepath.Join(n.Run, "jobs", strconv.Itoa(id))
	text, err := os.ReadFile(path + ".json")
	if err != nil {
		return report, "", err
	}
	if err := json.Unmarshal(text, &report); err != nil {
		return report, "", fmt.Errorf("%w: %s", err, text)
	}
	notice, err := os.ReadFile(path + ".notice")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return report, "", err
	}
	return report, string(notice), nil
}

// Processes returns the ids of processes that use the node's driver: those of
// gputune's programs that have not ended.
func (n *Node) Processes() ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var list []int
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		// One that has just ended, or belongs to nobody, has none.
		environ, _ := os.ReadFile(filepath.Join("/proc", entry.Name(), "environ"))
		if slices.ContainsFunc(n.NVML.Environ(), func(v string) bool { return bytes.Contains(environ, []byte(v+"\x00")) }) {
			list = append(list, pid)
		}
	}
	return list, nil
}

// Left returns the files of jobs that are in gputune's folders: records of the
// ledger, what was set aside, reports, and what is of MPS daemons.
func (n *Node) Left() ([]string, error) {
	var left []string
	for _, folder := range []string{filepath.Join(n.State, "jobs"), filepath.Join(n.State, "aside"), filepath.Join(n.Run, "jobs"), filepath.Join(n.Run, "mps")} {
		entries, err := os.ReadDir(folder)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		for _, entry := range entries {
			left = append(left, filepath.Join(folder, entry.Name()))
		}
	}
	return left, nil
}

// Marked returns the files of the jobs that count as running for the reports on
// their GPUs.
func (n *Node) Marked() ([]string, error) {
	return filepath.Glob(filepath.Join(n.Run, "sampled", "*"))
}
