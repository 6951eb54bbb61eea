package bed

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A fakeProcess is written as a folder of a procfs.
type fakeProcess struct {
	pid, parent int
	command     string
	state       string
	environment []string
	cgroup      string
	exe         string
	open        []string
}

func fakeProc(t *testing.T, processes []fakeProcess) procfs {
	t.Helper()
	root := t.TempDir()
	for _, p := range processes {
		dir := filepath.Join(root, strconv.Itoa(p.pid))
		state := p.state
		if state == "" {
			state = "S"
		}
		files := map[string]string{
			"stat":    fmt.Sprintf("%d (%s) %s %d%s %d 0 0\n", p.pid, p.command, state, p.parent, strings.Repeat(" 0", 17), 1000+p.pid),
			"environ": strings.Join(p.environment, "\x00") + "\x00",
			"cgroup":  p.cgroup,
			"cmdline": p.exe + "\x00argument\x00",
		}
		if err := os.MkdirAll(filepath.Join(dir, "fd"), 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range files {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		links := map[string]string{"exe": p.exe}
		for i, path := range p.open {
			links[filepath.Join("fd", strconv.Itoa(i))] = path
		}
		for name, target := range links {
			if target == "" {
				continue
			}
			if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.WriteFile(filepath.Join(root, "uptime"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	return procfs{root: root}
}

func TestWhoseProcess(t *testing.T) {
	const stepd, slurmd = "/usr/sbin/slurmstepd-wlm", "/usr/sbin/slurmd-wlm"
	mark := []string{"PATH=/bin", "SLURM_BED=bed1x"}
	job := []string{"SLURM_CLUSTER_NAME=bed1x", "SLURM_JOB_ID=1"}
	processes := []fakeProcess{
		{pid: 1, command: "init"},
		{pid: 2, command: "kthreadd"},
		// What is the bed's.
		{pid: 10, parent: 1, command: "slurmstepd", exe: stepd, open: []string{"/dev/null", "/bed/log/slurmd.log"}},
		{pid: 11, parent: 1, command: "slurmstepd", exe: stepd + " (deleted)", open: []string{"/bed/log/slurmd.log"}},
		{pid: 12, parent: 10, command: "odd) S (name", exe: "/bin/sleep"},
		{pid: 13, parent: 12, command: "grandchild"},
		{pid: 14, parent: 1, command: "escaped", environment: job},
		{pid: 15, parent: 1, command: "confined", cgroup: "4:memory:/\n3:devices:/slurm_node03/uid_0/job_1/step_0/task_0\n"},
		{pid: 16, parent: 1, command: "slurmd", exe: slurmd, environment: mark},
		{pid: 17, parent: 500, command: "prolog"},
		{pid: 18, parent: 17, command: "of prolog"},
		{pid: 19, parent: 501, command: "mail"},
		// What is not.
		{pid: 30, parent: 1, command: "slurmstepd", exe: stepd, open: []string{"/bed2/log/slurmd.log", "/var/log/slurmd.log"}},
		{pid: 31, parent: 1, command: "slurmd", exe: slurmd, environment: []string{"SLURM_BED=bed1xx"}},
		{pid: 32, parent: 1, command: "sleep", cgroup: "3:devices:/slurm_node033/uid_0/job_1\n2:cpuset:/other/slurm_node03/x\n"},
		{pid: 33, parent: 1, command: "tail", exe: "/usr/bin/tail", open: []string{"/bed/log/slurmd.log"}},
		{pid: 34, parent: 1, command: "sh", environment: []string{"SLURM_CONF=/bed/etc/slurm.conf", "X=SLURM_BED=bed1x"}},
		{pid: 35, parent: 1, command: "dead", state: "Z", environment: job},
		{pid: 36, parent: 37, command: "circle"},
		{pid: 37, parent: 36, command: "circle"},
		// The living daemons.
		{pid: 500, parent: 1, command: "slurmd", exe: slurmd, environment: mark},
		{pid: 501, parent: 1, command: "slurmctld", environment: mark},
		{pid: 502, parent: 501, command: "slurmscriptd", environment: mark},
	}
	b := &Bed{Dir: "/bed", Node: "node03", Cluster: "bed1x", proc: fakeProc(t, processes), cgroups: cgroupTree{node: "node03"}, daemons: map[string]*daemon{
		Slurmd:    {name: Slurmd, process: process{pid: 500}, exited: make(chan struct{})},
		Slurmctld: {name: Slurmctld, process: process{pid: 501}, exited: make(chan struct{})},
	}}
	found, err := b.processes()
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, p := range found {
		pids = append(pids, p.pid)
	}
	slices.Sort(pids)
	if wanted := []int{10, 11, 12, 13, 14, 15, 16, 17, 18, 19}; !slices.Equal(pids, wanted) {
		t.Errorf("the bed's processes are %v, want %v", pids, wanted)
	}
	stepds := b.Stepds()
	slices.Sort(stepds)
	if wanted := []int{10, 11}; !slices.Equal(stepds, wanted) {
		t.Errorf("its slurmstepds are %v, want %v", stepds, wanted)
	}
}

// The program that uses the bed and what it runs in are not the bed's, even in
// a job of a Slurm of that name.
func TestWeAreNotTheBeds(t *testing.T) {
	job := []string{"SLURM_CLUSTER_NAME=bed1x"}
	self := os.Getpid()
	b := &Bed{Dir: "/bed", Node: "node03", Cluster: "bed1x", cgroups: cgroupTree{node: "node03"}, proc: fakeProc(t, []fakeProcess{
		{pid: 1, command: "init"},
		{pid: 5_000_000, parent: 1, command: "shell", environment: job},
		{pid: self, parent: 5_000_000, command: "test", environment: job},
		{pid: 5_000_001, parent: self, command: "srun"},
		{pid: 5_000_002, parent: 5_000_001, command: "task", environment: job},
	})}
	found, err := b.processes()
	if err != nil {
		t.Fatal(err)
	}
	if len(found) != 1 || found[0].pid != 5_000_002 {
		t.Errorf("got %v, want the task alone", found)
	}
}

func TestParseStat(t *testing.T) {
	good := "77 (a b) R) S 5 77 77 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 123456 1000 2\n"
	got, err := parseStat(good)
	if wanted := (process{pid: 77, parent: 5, command: "a b) R", state: 'S', start: 123456}); err != nil || got != wanted {
		t.Errorf("got %+v, %v, want %+v", got, err, wanted)
	}
	for name, text := range map[string]string{
		"empty":      "",
		"no command": "77 S 5",
		"cut":        "77 (x) S 5 77 77 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0",
		"turned":     "77 )x( S 5 77",
		"no number":  strings.Replace(good, "123456", "x", 1),
		"no parent":  strings.Replace(good, "S 5", "S x", 1),
	} {
		if got, err := parseStat(text); err == nil {
			t.Errorf("%s: %q was read as %+v", name, text, got)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add("77 (a b) R) S 5 77 77 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 123456 1000 2\n")
	f.Add(")(")
	f.Add("1 () ")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := parseStat(text)
		if err == nil && !strings.Contains(text, "("+p.command+")") {
			t.Errorf("%q has no command %q", text, p.command)
		}
	})
}

// A signal reaches the process it is meant for and none that has its pid later.
func TestSignalChecksWhoItIs(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	proc := procfs{root: procRoot}
	target, err := proc.read(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err, cmd.Process.Kill())
	}
	later := target
	later.start++
	if err := proc.signal(later, unix.SIGKILL); err != nil {
		t.Error(err)
	}
	if _, err := proc.read(target.pid); err != nil {
		t.Fatalf("a process of another start time was ended: %v", err)
	}
	if err := proc.signal(target, unix.SIGUSR1); err != nil {
		t.Error(err)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || !strings.Contains(exit.Error(), "user defined signal 1") {
		t.Errorf("the process ended with %v, want SIGUSR1", err)
	}
	if err := proc.signal(target, unix.SIGKILL); err != nil {
		t.Errorf("a signal to a process that has ended: %v", err)
	}
}

func TestOpenAndMapped(t *testing.T) {
	proc := fakeProc(t, []fakeProcess{{pid: 7, command: "x", open: []string{"/dev/null", "/dev/shm/a"}}})
	maps := "7f00-7f01 rw-s 00000000 00:16 5                          /dev/shm/b c (deleted)\n7f02-7f03 rw-p 00000000 00:00 0 \n7f04-7f05 rw-p 00000000 00:00 0  [heap]\n"
	if err := os.WriteFile(proc.path(7, "maps"), []byte(maps), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, wanted := proc.openFiles(7), []string{"/dev/null", "/dev/shm/a"}; !slices.Equal(got, wanted) {
		t.Errorf("open: got %q, want %q", got, wanted)
	}
	if got, wanted := proc.mappedFiles(7), []string{"/dev/shm/b c (deleted)"}; !slices.Equal(got, wanted) {
		t.Errorf("mapped: got %q, want %q", got, wanted)
	}
	if got := append(proc.openFiles(8), proc.mappedFiles(8)...); len(got) > 0 {
		t.Errorf("of a process that is not there: %q", got)
	}
}

func TestListening(t *testing.T) {
	proc := procfs{root: t.TempDir()}
	if err := os.Mkdir(filepath.Join(proc.root, "net"), 0o755); err != nil {
		t.Fatal(err)
	}
	files := map[string]string{
		"tcp": "  sl  local_address rem_address   st tx_queue\n" +
			"   0: 0100007F:5209 00000000:0000 0A 00000000:00000000 00:00000000\n" +
			"   1: 0100007F:520A 0100007F:C350 01 00000000:00000000 00:00000000\n",
		"unix": "Num       RefCount Protocol Flags    Type St Inode Path\n" +
			"0000000000000000: 00000002 00000000 00010000 0001 01 62949 /bed/run/munge.sock\n" +
			"0000000000000000: 00000003 00000000 00000000 0001 03 62950 /bed/run/bound.sock\n" +
			"0000000000000000: 00000003 00000000 00000000 0001 03 62951\n",
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(proc.root, "net", name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for port, wanted := range map[int]bool{0x5209: true, 0x520A: false, 0xC350: false, 0x520B: false} {
		if got, err := proc.listensTCP(port); err != nil || got != wanted {
			t.Errorf("port %d: got %t, %v, want %t", port, got, err, wanted)
		}
	}
	for path, wanted := range map[string]bool{"/bed/run/munge.sock": true, "/bed/run/bound.sock": false, "munge.sock": false, "": false} {
		if got, err := proc.listensUnix(path); err != nil || got != wanted {
			t.Errorf("socket %q: got %t, %v, want %t", path, got, err, wanted)
		}
	}
}

func TestCgroupFolders(t *testing.T) {
	tree := cgroupTree{root: t.TempDir(), node: "node03"}
	folders := []string{
		"cpuset/slurm_node03/uid_0/job_1",
		"freezer/slurm_node03",
		"freezer/slurm_node033/uid_0",
		"freezer/other/slurm_node03",
	}
	for _, folder := range folders {
		if err := os.MkdirAll(filepath.Join(tree.root, folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	got, err := tree.folders()
	if err != nil {
		t.Fatal(err)
	}
	for i := range got {
		got[i], _ = filepath.Rel(tree.root, got[i])
	}
	wanted := []string{"cpuset/slurm_node03", "cpuset/slurm_node03/uid_0", "cpuset/slurm_node03/uid_0/job_1", "freezer/slurm_node03"}
	if !slices.Equal(got, wanted) {
		t.Errorf("got %q, want %q", got, wanted)
	}

	procs := filepath.Join(tree.root, folders[0], "cgroup.procs")
	for text, wanted := range map[string]string{"": "", "4711\n": filepath.Dir(procs)} {
		if err := os.WriteFile(procs, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if got, err := tree.busy(); err != nil || got != wanted {
			t.Errorf("with processes %q: busy %q, %v, want %q", text, got, err, wanted)
		}
	}

	state := filepath.Join(tree.root, folders[1], "freezer.state")
	if err := os.WriteFile(state, []byte("FROZEN"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := tree.thaw(); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(state); err != nil || string(text) != "THAWED" {
		t.Errorf("freezer.state is %q, %v", text, err)
	}

	// In a real cgroup folder files do not keep rmdir from it.
	for _, file := range []string{procs, state} {
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
	if err := tree.remove(); err != nil {
		t.Error(err)
	}
	if got, err := tree.folders(); len(got) > 0 || err != nil {
		t.Errorf("after remove: %q, %v", got, err)
	}
	for _, folder := range folders[2:] {
		if _, err := os.Stat(filepath.Join(tree.root, folder)); err != nil {
			t.Errorf("somebody else's folder is gone: %v", err)
		}
	}
}

func TestLeftInSpool(t *testing.T) {
	dir := t.TempDir()
	names := map[string]bool{
		"cred_state": false, "cred_state.old": false, "hwloc_topo_whole.xml": false,
		"hwloc_topo_1.0.xml": true, "node03_1.0": true, "job00017": true,
	}
	for name := range names {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	left, err := leftInSpool(dir)
	if err != nil {
		t.Fatal(err)
	}
	var wanted []string
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if names[name] {
			wanted = append(wanted, "spool "+filepath.Join(dir, name))
		}
	}
	if !slices.Equal(left, wanted) {
		t.Errorf("got %q, want %q", left, wanted)
	}
}
