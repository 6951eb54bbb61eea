package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"gputune/internal/affinity"
	"gputune/internal/idset"
	"gputune/internal/launch"
	"gputune/tests/machines"
)

// dual returns a configuration for a made-up machine whose CPUs are this one's:
// GPUs 0 and 1 near CPU 0, GPUs 2 and 3 near CPU 1.
func dual(t *testing.T) (config string) {
	t.Helper()
	now, err := affinity.Get(0)
	if err != nil {
		t.Fatal(err)
	}
	if !idset.Of(0, 1).SubsetOf(now) {
		t.Skipf("CPUs 0 and 1 are wanted, this process has %s", now)
	}
	config = filepath.Join(t.TempDir(), "gputune.toml")
	text := fmt.Sprintf("[paths]\nmachine = %q\nsnapshot = %q\n", render(t, "demo-dual"), filepath.Join(t.TempDir(), "none"))
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return config
}

// show is a command that says what it was given.
const show = `grep ^Cpus_allowed_list /proc/self/status | tr -d '\t'; grep -c prefer:0 /proc/self/numa_maps | sed 's/^[1-9].*/prefer:0/'; echo $GPUTUNE_GPUS $GPUTUNE_CPUS $GPUTUNE_MEMS $GPUTUNE_MEM_POLICY $GPUTUNE_LOCALITY`

var pci = []string{"0000:17:00.0", "0000:3d:00.0", "0000:97:00.0", "0000:bd:00.0"}

// Each rank of every launcher is where the plan says, seen from the command.
func TestExecBindsRanks(t *testing.T) {
	config := dual(t)
	_, numa := os.Stat("/proc/self/numa_maps")
	for name, c := range map[string]struct {
		environment string
		bind        string
		gpu         [4]int // of each rank, -1: all
		cpus        [4]string
	}{
		"torchrun":          {"LOCAL_RANK=%d LOCAL_WORLD_SIZE=4", "", [4]int{0, 1, 2, 3}, [4]string{"0", "0", "1", "1"}},
		"mpirun":            {"OMPI_COMM_WORLD_LOCAL_RANK=%d OMPI_COMM_WORLD_LOCAL_SIZE=4 SLURM_LOCALID=0", "", [4]int{0, 1, 2, 3}, [4]string{"0", "0", "1", "1"}},
		"Intel MPI":         {"MPI_LOCALRANKID=%d MPI_LOCALNRANKS=4", "", [4]int{0, 1, 2, 3}, [4]string{"0", "0", "1", "1"}},
		"srun":              {"SLURM_LOCALID=%d SLURM_STEP_TASKS_PER_NODE=2,4(x2) SLURM_NODEID=2", "", [4]int{0, 1, 2, 3}, [4]string{"0", "0", "1", "1"}},
		"devices reversed":  {"LOCAL_RANK=%d LOCAL_WORLD_SIZE=4 CUDA_VISIBLE_DEVICES=3,2,1,0", "", [4]int{3, 2, 1, 0}, [4]string{"1", "1", "0", "0"}},
		"one device":        {"LOCAL_RANK=%d LOCAL_WORLD_SIZE=4 CUDA_VISIBLE_DEVICES=2", "", [4]int{2, 2, 2, 2}, [4]string{"1", "1", "1", "1"}},
		"size not known":    {"LOCAL_RANK=%d", "", [4]int{-1, -1, -1, -1}, [4]string{"0-1", "0-1", "0-1", "0-1"}},
		"all GPUs for each": {"LOCAL_RANK=%d LOCAL_WORLD_SIZE=4", "gpus=all", [4]int{-1, -1, -1, -1}, [4]string{"0-1", "0-1", "0-1", "0-1"}},
	} {
		for rank := range 4 {
			environment := strings.Fields(strings.ReplaceAll(c.environment, "%d", fmt.Sprint(rank)))
			// Memory of node 1 is not here: what is granted is taken, and said. These are about the rest.
			bind := strings.TrimPrefix(c.bind+",quiet", ",")
			output, err := gputune(t, environment, "exec", "--config", config, "--bind", bind, "--", "sh", "-c", show).Output()
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			gpu, locality := strings.Join(pci, ","), "local"
			if c.gpu[rank] >= 0 {
				gpu = pci[c.gpu[rank]]
			}
			policy := "prefer:0"
			if numa != nil {
				policy = "0"
			}
			want := fmt.Sprintf("Cpus_allowed_list:%s\n%s\n%s %s 0 prefer %s\n", c.cpus[rank], policy, gpu, c.cpus[rank], locality)
			if numa != nil { // a kernel without NUMA refuses memory policies
				continue
			}
			if string(output) != want {
				t.Errorf("%s, rank %d:\n%s\nwant\n%s", name, rank, output, want)
			}
		}
	}
}

// Shares of ranks that see one GPU each are apart.
func TestExecExclusiveWithOneDeviceEach(t *testing.T) {
	config := dual(t)
	for rank, cpus := range []string{"0", "1"} {
		environment := []string{fmt.Sprintf("LOCAL_RANK=%d", rank), "LOCAL_WORLD_SIZE=2", fmt.Sprintf("CUDA_VISIBLE_DEVICES=%d", 2*rank)}
		output, err := gputune(t, environment, "exec", "--config", config, "--bind", "cpus=exclusive,mem=none,quiet", "sh", "-c", "echo $GPUTUNE_CPUS").Output()
		if err != nil || string(output) != cpus+"\n" {
			t.Errorf("rank %d: %q, %v", rank, output, err)
		}
	}
}

func TestExecSays(t *testing.T) {
	config := dual(t)
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	command := gputune(t, []string{"LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2"}, "exec", "--config", config, "--gpus", "0,"+pci[1], "--bind", "verbose,mem=none", "--", "true")
	output, err := command.CombinedOutput()
	want := fmt.Sprintf("gputune: %s task 1: gpu %s (node 0), cpus 0, mems none, local\n", host, pci[1])
	if err != nil || string(output) != want {
		t.Errorf("%q, %v, want %q", output, err, want)
	}
	// What it has counts as granted, and a launcher that gave too little is named.
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	narrow := gputune(t, nil)
	narrow.Path, narrow.Args = "/usr/bin/taskset", []string{"taskset", "-c", "0", self, "exec", "--config", config, "--gpus=2", "--bind=mem=none", "--", "sh", "-c", "echo $GPUTUNE_CPUS $GPUTUNE_LOCALITY"}
	output, err = narrow.CombinedOutput()
	if err != nil || !strings.Contains(string(output), "srun --cpu-bind=none") || !strings.HasSuffix(string(output), "\n0 remote\n") {
		t.Errorf("bound to CPU 0: %q, %v", output, err)
	}
	// Off means off.
	output, err = gputune(t, nil, "exec", "--config", config, "--bind", "off", "--", "sh", "-c", "echo x$GPUTUNE_CPUS").CombinedOutput()
	if err != nil || string(output) != "x\n" {
		t.Errorf("off: %q, %v", output, err)
	}
}

// What goes wrong before there is a command has its own status; with the command's
// own it is the other way round.
func TestExecStatus(t *testing.T) {
	config := dual(t)
	folder := t.TempDir()
	plain := filepath.Join(folder, "plain")
	if err := os.WriteFile(plain, []byte("#!/nowhere/sh\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	lost := filepath.Join(folder, "lost")
	if err := os.WriteFile(lost, []byte("#!/nowhere/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		environment []string
		arguments   []string
		status      int
		stderr      string
	}{
		"the command's":    {nil, []string{"--", "sh", "-c", "exit 7"}, 7, ""},
		"a flag of its":    {nil, []string{"sh", "-c", "exit 8"}, 8, ""},
		"not in PATH":      {nil, []string{"--", "no-such-command"}, launch.StatusNotFound, "no such command in PATH"},
		"no such file":     {nil, []string{"--", folder + "/none"}, launch.StatusNotFound, "no such file"},
		"no interpreter":   {nil, []string{"--", lost}, launch.StatusNotFound, "no such file"},
		"not executable":   {nil, []string{"--", plain}, launch.StatusNotExecutable, "permission denied"},
		"the same in PATH": {[]string{"PATH=" + folder}, []string{"--", "plain"}, launch.StatusNotExecutable, "permission denied"},
		"a folder":         {nil, []string{"--", folder}, launch.StatusNotExecutable, "is a directory"},
		"no command":       {nil, nil, launch.StatusOwnFault, "which command?"},
		"a strange flag":   {nil, []string{"--gpu", "0", "true"}, launch.StatusOwnFault, "did you mean --gpus?"},
		"a wrong item":     {nil, []string{"--bind", "cpus=sideways", "true"}, launch.StatusOwnFault, "want cpus=node|"},
		"nobody follows":   {nil, []string{"--bind", "follow", "true"}, launch.StatusOwnFault, "follows the workers of Slurm steps alone"},
		"a strange GPU":    {nil, []string{"--gpus", "9", "true"}, launch.StatusOwnFault, "want GPU-<uuid>"},
		"a strange rank":   {[]string{"LOCAL_RANK=x"}, []string{"true"}, launch.StatusOwnFault, "LOCAL_RANK="},
		"a rank too many":  {[]string{"LOCAL_RANK=2", "LOCAL_WORLD_SIZE=2"}, []string{"true"}, launch.StatusOwnFault, "there are 2 ranks"},
		"strange devices":  {[]string{"CUDA_VISIBLE_DEVICES=zero"}, []string{"true"}, launch.StatusOwnFault, "CUDA_VISIBLE_DEVICES"},
		"no GPU":           {[]string{"CUDA_VISIBLE_DEVICES="}, []string{"true"}, 0, "warning: no GPU is visible"},
		"no GPU, quiet":    {[]string{"CUDA_VISIBLE_DEVICES="}, []string{"--bind=quiet", "true"}, 0, ""},
		"no GPU, strict":   {[]string{"CUDA_VISIBLE_DEVICES="}, []string{"--bind=strict", "true"}, launch.StatusOwnFault, "no GPU is visible"},
	} {
		var stderr bytes.Buffer
		arguments := append([]string{"exec", "--config", config}, c.arguments...)
		if c.status < launch.StatusOwnFault && c.stderr == "" {
			arguments = append([]string{"exec", "--config", config, "--gpus=0"}, c.arguments...)
		}
		command := gputune(t, c.environment, arguments...)
		command.Stderr = &stderr
		err := command.Run()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		if got := command.ProcessState.ExitCode(); got != c.status || !strings.Contains(stderr.String(), c.stderr) || (c.stderr == "") != (stderr.Len() == 0) {
			t.Errorf("%s: status %d, %q; want %d, %q", name, got, stderr.String(), c.status, c.stderr)
		}
	}
}

// A bound command has the site's variables as the tasks of a step have them: for its
// GPUs, ranks at the same network devices in turn, and the user's own stay.
func TestExecGivesTheSitesVariables(t *testing.T) {
	config := dual(t)
	description, err := machines.Get("demo-dual")
	if err != nil {
		t.Fatal(err)
	}
	for i, port := range []string{"0000:a0:01.0", "0000:a0:02.0", description.GPUs[0].Bridges[0]} {
		description.NICs = append(description.NICs, machines.NIC{
			PCI: fmt.Sprintf("0000:a%d:00.0", i+1), Bridges: []string{port}, Node: 1 - i/2, InfiniBand: []string{fmt.Sprintf("mlx5_%d", i)},
		})
	}
	root := rootOf(t, description)
	for i := range description.NICs {
		port := filepath.Join(root, "sys/class/infiniband", fmt.Sprintf("mlx5_%d", i), "ports/1")
		if err := os.MkdirAll(port, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(port, "state"), []byte("4: ACTIVE\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	site := fmt.Sprintf("[paths]\nmachine = %q\nsnapshot = %q\n", root, filepath.Join(t.TempDir(), "none")) +
		"[environment]\nHCA = \"={nic}\"\nALL = \"{nics}\"\nNODE = \"{node}\"\nMALLOC_CONF = \"narenas:8\"\n"
	if err := os.WriteFile(config, []byte(site), 0o644); err != nil {
		t.Fatal(err)
	}
	const all = `echo "hca$HCA all=$ALL node=$NODE malloc=$MALLOC_CONF"; env | grep -c ^GPUTUNE_ENVIRONMENT`
	for name, c := range map[string]struct {
		environment, bind, want, said string
	}{
		"alone":      {"CUDA_VISIBLE_DEVICES=3", "", "hca=mlx5_0 all=mlx5_0,mlx5_1 node=1 malloc=narenas:8\n1\n", ""},
		"rank 0":     {"LOCAL_RANK=0 LOCAL_WORLD_SIZE=4", "", "hca=mlx5_2 all=mlx5_2 node=0 malloc=narenas:8\n1\n", ""},
		"rank 2":     {"LOCAL_RANK=2 LOCAL_WORLD_SIZE=4", "", "hca=mlx5_0 all=mlx5_0,mlx5_1 node=1 malloc=narenas:8\n1\n", ""},
		"rank 3":     {"LOCAL_RANK=3 LOCAL_WORLD_SIZE=4", "", "hca=mlx5_1 all=mlx5_1,mlx5_0 node=1 malloc=narenas:8\n1\n", ""},
		"in turn":    {"LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 CUDA_VISIBLE_DEVICES=2", "", "hca=mlx5_1 all=mlx5_1,mlx5_0 node=1 malloc=narenas:8\n1\n", ""},
		"all GPUs":   {"", "", "hca=mlx5_2 all=mlx5_2 node=0-1 malloc=narenas:8\n1\n", ""},
		"the user's": {"CUDA_VISIBLE_DEVICES=3 HCA==mine MALLOC_CONF=", "", "hca=mine all=mlx5_0,mlx5_1 node=1 malloc=\n1\n", "; HCA kept: it was set; MALLOC_CONF kept: it was set\n"},
		"no GPU":     {"CUDA_VISIBLE_DEVICES=", "", "hca all= node= malloc=narenas:8\n1\n", "; ALL not set: what it needs is not known; HCA not set: "},
		"not bound":  {"CUDA_VISIBLE_DEVICES=3", "off", "hca all= node= malloc=\n0\n", ""},
		"a step's": {
			"CUDA_VISIBLE_DEVICES=3 HCA==mlx5_2 OLD=x GPUTUNE_ENVIRONMENT=HCA:12235690951158523695,OLD:12638214688346347271", "",
			"hca=mlx5_0 all=mlx5_0,mlx5_1 node=1 malloc=narenas:8\n1\n", "",
		},
	} {
		command := gputune(t, strings.Fields(c.environment), "exec", "--config", config, "--bind", strings.TrimSuffix("mem=none,verbose,"+c.bind, ","), "--", "sh", "-c", all+`; test -z "$OLD"`)
		var stderr bytes.Buffer
		command.Stderr = &stderr
		output, err := command.Output()
		if err != nil || string(output) != c.want || !strings.Contains(stderr.String(), c.said) {
			t.Errorf("%s: %v, %q, %s\nwant %q", name, err, output, &stderr, c.want)
		}
	}
}

// What the site has for steps does not keep a process from being bound.
func TestExecPassesOverFollow(t *testing.T) {
	config := dual(t)
	text, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(config, append(text, "[numa_bind]\nitems = \"follow\"\n"...), 0o644); err != nil {
		t.Fatal(err)
	}
	output, err := gputune(t, nil, "exec", "--config", config, "--gpus=2", "--bind=quiet", "--", "sh", "-c", show).Output()
	if err != nil || !strings.HasPrefix(string(output), "Cpus_allowed_list:1\n") {
		t.Errorf("%v: %s", err, output)
	}
}

// The command is this very process: signals reach it, and its files and limits are
// what they were.
func TestExecIsTheCommand(t *testing.T) {
	config := dual(t)
	command := gputune(t, nil, "exec", "--config", config, "--", "sh", "-c", `trap 'echo caught; exit 42' TERM; echo $$; while :; do sleep 0.05; done`)
	output, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(output)
	if !lines.Scan() || lines.Text() != fmt.Sprint(command.Process.Pid) {
		t.Errorf("pid %q, want %d", lines.Text(), command.Process.Pid)
	}
	if err := command.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if !lines.Scan() || lines.Text() != "caught" {
		t.Errorf("got %q", lines.Text())
	}
	var exit *exec.ExitError
	if err := command.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 42 {
		t.Errorf("got %v", err)
	}

	const state = `grep -E "^Sig(Blk|Ign|Cgt)" /proc/self/status; grep "open files" /proc/self/limits; echo /proc/self/fd/*`
	plain := exec.CommandContext(t.Context(), "sh", "-c", state)
	before, err := plain.Output()
	if err != nil {
		t.Fatal(err)
	}
	after, err := gputune(t, nil, "exec", "--config", config, "--bind=quiet", "--", "sh", "-c", state).Output()
	if err != nil || !bytes.Equal(before, after) {
		t.Errorf("%v, got\n%s\nwant\n%s", err, after, before)
	}
}
