package node

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"gputune/internal/job"
)

// mpsUser is the user of jobs with an MPS daemon.
const mpsUser = 65534

// mpsNodes counts nodes, so that none on this machine has a job with the number
// of another one's: cgroups of daemons are named by them.
var mpsNodes atomic.Int64

// served is a job with an MPS daemon for two GPUs, one of which a site has changed
// before (see bump). which is 0 or 1.
func (n *Node) served(which int) Job {
	return Job{
		ID: n.mpsJob + which, GPUs: "1,2", Options: map[string]string{"gpu-mps": "50,mem=4G"},
		Env: []string{fmt.Sprintf("SLURM_JOB_UID=%d", mpsUser), fmt.Sprintf("SLURM_JOB_GID=%d", mpsUser), "SLURM_JOB_USER=nobody"},
	}
}

// beginMPS makes a node for served jobs and returns its GPUs' state.
func beginMPS(t testing.TB) (n *Node, gpus string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can start a daemon as a user")
	}
	// Not the test's own folder: users have to get into it, and the names of
	// sockets are short.
	dir, err := os.MkdirTemp("/tmp", "node")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if n, err = Make(t.Context(), dir, "demo-dual", ""); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(n.InstallMPS(), n.Configure("")); err != nil {
		t.Fatal(err)
	}
	n.mpsJob = 1000*os.Getpid() + 2*int(mpsNodes.Add(1))
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		if result, err := n.Restore(context.Background(), "--all"); err != nil || result.Code != 0 {
			t.Errorf("%+v, %v", result, err)
		}
	})
	n.bump(t)
	return n, n.state(t)
}

// client runs a CUDA program with what the Prolog left for the job's steps, as a
// user.
func (n *Node) client(t testing.TB, id, user int, arguments ...string) *exec.Cmd {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(n.Run, "jobs", fmt.Sprint(id)+".mps"))
	if err != nil {
		t.Fatal(err)
	}
	client := exec.Command(n.MPS.Client(), arguments...)
	for line := range strings.Lines(string(text)) {
		if variable, isSet := strings.CutPrefix(strings.TrimSpace(line), "set "); isSet {
			client.Env = append(client.Env, variable)
		}
	}
	client.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(user), Gid: uint32(user)}}
	return client
}

func (n *Node) wantNoMPS(t testing.TB, gpus string) {
	t.Helper()
	if dirt := n.dirt(gpus); dirt != "" {
		t.Error(dirt)
	}
}

// A job has a daemon for its GPUs while it runs, which its steps learn of.
func TestMPS(t *testing.T) {
	n, gpus := beginMPS(t)
	j := n.served(0)
	n.prolog(t, j)
	two := []string{n.Machine.GPUs[1].UUID, n.Machine.GPUs[2].UUID}
	out, err := n.client(t, j.ID, mpsUser).CombinedOutput()
	if want := fmt.Sprintf("percent 50.0 mem 4G uid %d gpus %s\n", mpsUser, strings.Join(two, ",")); err != nil || !strings.HasSuffix(string(out), want) {
		t.Errorf("%q, %v, want %q", out, err, want)
	}
	if out, err := n.client(t, j.ID, 12345).CombinedOutput(); err == nil || !strings.Contains(string(out), "MPS client failed to connect") {
		t.Errorf("another user: %q, %v", out, err)
	}
	folder := filepath.Join(n.Run, "mps", fmt.Sprint(j.ID))
	text, err := os.ReadFile(filepath.Join(n.Run, "jobs", fmt.Sprint(j.ID)+".mps"))
	want := strings.NewReplacer("FOLDER", folder, "GPU1", two[0], "GPU2", two[1]).Replace(
		"refusal fail\nsocket FOLDER/pipe/control\nset CUDA_MPS_PIPE_DIRECTORY=FOLDER/pipe\nset CUDA_MPS_LOG_DIRECTORY=FOLDER/log\n" +
			"set CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=4096M,1=4096M\npercentage 50\ndevices open\n" +
			"gpu 1 0 GPU1 /dev/nvidia1\ngpu 2 1 GPU2 /dev/nvidia2\n")
	if err != nil || string(text) != want {
		t.Errorf("%v, %s, want %s", err, text, want)
	}
	state, err := n.NVML.State()
	if err != nil {
		t.Fatal(err)
	}
	for i, gpu := range n.Machine.GPUs {
		if mode := state[gpu.UUID].ComputeMode; (mode == 3) != (i == 1 || i == 2) {
			t.Errorf("gpu %d has compute mode %d", i, mode)
		}
	}
	report, notice := n.report(t, fmt.Sprint(j.ID))
	if notice != "" || len(report.Options) != 1 || report.Options[0].State != job.Applied || len(report.Options[0].GPUs) != 2 {
		t.Errorf("report %+v, notice %q", report, notice)
	}
	before, err := n.MPSProcesses()
	if err != nil {
		t.Fatal(err)
	}
	// Twice is the same as once, but for a job that was begun anew.
	n.prolog(t, j)
	if after, err := n.MPSProcesses(); err != nil || len(after) == 0 {
		t.Errorf("after a second Prolog there are %v of %v, %v", after, before, err)
	}
	n.epilog(t, j)
	n.wantNoMPS(t, gpus)
	n.epilog(t, j)
	n.wantNoMPS(t, gpus)
}

// A job whose daemon is still in use is over all the same, and who uses it is
// named.
func TestMPSClientStays(t *testing.T) {
	n, gpus := beginMPS(t)
	j := n.served(0)
	n.prolog(t, j)
	client := n.client(t, j.ID, mpsUser, "1h")
	out, err := client.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil { // it is connected
		t.Fatal(err)
	}
	output := n.epilog(t, j)
	if want := fmt.Sprintf("job %d, client process %d (cuda-client, user %d, ", j.ID, client.Process.Pid, mpsUser); !strings.Contains(output, want) {
		t.Errorf("want %q in %s", want, output)
	}
	if err := client.Process.Kill(); err != nil {
		t.Error("the client is the user's, not gputune's to end: ", err)
	}
	_ = client.Wait() // it was killed
	n.wantNoMPS(t, gpus)
}

// What somebody has planted where a daemon's folder or record goes is neither
// followed nor kept from being replaced.
func TestMPSPlanted(t *testing.T) {
	for name, plant := range map[string]func(n *Node, folder, precious string) error{
		"link to a folder": func(_ *Node, folder, precious string) error { return os.Symlink(precious, folder) },
		"file":             func(_ *Node, folder, _ string) error { return os.WriteFile(folder, nil, 0o666) },
		"folder of a user": func(_ *Node, folder, precious string) error {
			return errors.Join(os.Mkdir(folder, 0o777), os.Symlink(precious, folder+"/pipe"), os.Symlink(precious+"/file", folder+"/log"),
				os.Lchown(folder, 12345, 12345))
		},
	} {
		t.Run(name, func(t *testing.T) {
			n, gpus := beginMPS(t)
			j := n.served(0)
			precious := filepath.Join(n.Dir, "precious")
			folder := filepath.Join(n.Run, "mps", fmt.Sprint(j.ID))
			if err := errors.Join(os.Mkdir(precious, 0o755), os.WriteFile(precious+"/file", []byte("precious"), 0o644),
				os.Mkdir(n.Run, 0o755), os.Mkdir(filepath.Dir(folder), 0o711), plant(n, folder, precious)); err != nil {
				t.Fatal(err)
			}
			n.prolog(t, j)
			if out, err := n.client(t, j.ID, mpsUser).CombinedOutput(); err != nil || !strings.Contains(string(out), "percent 50.0") {
				t.Errorf("%q, %v", out, err)
			}
			n.epilog(t, j)
			n.wantNoMPS(t, gpus)
			info, err := os.Stat(precious)
			text, readErr := os.ReadFile(precious + "/file")
			if err != nil || readErr != nil || string(text) != "precious" || info.Mode().Perm() != 0o755 || info.Sys().(*syscall.Stat_t).Uid != 0 {
				t.Errorf("what the link led to: %v, %q, %v, %v", info, text, err, readErr)
			}
			if entries, err := os.ReadDir(precious); err != nil || len(entries) != 1 {
				t.Errorf("%v, %v", entries, err)
			}
		})
	}
}

// A daemon that an earlier job has left goes before the next one comes.
func TestMPSLeftByAnother(t *testing.T) {
	n, gpus := beginMPS(t)
	first, second := n.served(0), n.served(1)
	n.prolog(t, first)
	output := n.prolog(t, second)
	if want := fmt.Sprintf("job %d: it has ended and left GPUs changed: putting it back", first.ID); !strings.Contains(output, want) {
		t.Errorf("want %q in %s", want, output)
	}
	out, err := n.client(t, second.ID, mpsUser).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "percent 50.0") {
		t.Errorf("%q, %v", out, err)
	}
	n.epilog(t, second)
	n.wantNoMPS(t, gpus)
}

// A job without a group does not get a daemon of root's.
func TestMPSWithoutGroup(t *testing.T) {
	n, gpus := beginMPS(t)
	j := n.served(0)
	command := n.Program(t.Context(), "gputune-prolog", j)
	for i, variable := range command.Env {
		if strings.HasPrefix(variable, "SLURM_JOB_GID=") {
			command.Env[i] = "UNUSED=1"
		}
	}
	result, err := Finish(command)
	report, notice := n.report(t, fmt.Sprint(j.ID))
	if err != nil || result.Code != 0 || !strings.Contains(report.Fault, "SLURM_JOB_GID is not set") || !strings.HasPrefix(notice, "warn\n") {
		t.Errorf("%+v, %v, %+v, %q", result, err, report, notice)
	}
	if processes, err := n.MPSProcesses(); err != nil || len(processes) > 0 {
		t.Errorf("%v, %v", processes, err)
	}
	n.epilog(t, j)
	n.wantNoMPS(t, gpus)
}

// MIG devices that gres.conf has are parts of a GPU, and the other GPUs are whole.
func TestMPSBesideMIG(t *testing.T) {
	n, gpus := beginMPS(t)
	gres := "Name=gpu Type=1g MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap21,/dev/nvidia-caps/nvidia-cap22\n"
	for _, gpu := range n.Machine.GPUs[1:] {
		gres += fmt.Sprintf("Name=gpu Type=h200 File=/dev/nvidia%d\n", gpu.Minor)
	}
	conf := fmt.Sprintf("ClusterName=test\nGresTypes=gpu\nNodeName=%s Gres=gpu:1g:1,gpu:h200:3\n", Name)
	if err := errors.Join(os.WriteFile(filepath.Join(n.Dir, "etc", "gres.conf"), []byte(gres), 0o644),
		os.WriteFile(filepath.Join(n.Dir, "etc", "slurm.conf"), []byte(conf), 0o644)); err != nil {
		t.Fatal(err)
	}
	j := n.served(0)
	j.GPUs = "0"
	n.prolog(t, j)
	report, notice := n.report(t, fmt.Sprint(j.ID))
	if report.Options[0].State == job.Applied || !strings.Contains(notice, "gres.conf gives MIG devices of it to jobs") {
		t.Errorf("report %+v, notice %q", report, notice)
	}
	n.epilog(t, j)
	n.wantNoMPS(t, gpus)
	j.Options["gpu-mps"] = "off"
	n.prolog(t, j)
	if report, notice := n.report(t, fmt.Sprint(j.ID)); report.Options[0].State != job.Applied || notice != "" {
		t.Errorf("report %+v, notice %q", report, notice)
	}
	n.epilog(t, j)
	j = n.served(1)
	n.prolog(t, j)
	if out, err := n.client(t, j.ID, mpsUser).CombinedOutput(); err != nil || !strings.Contains(string(out), "percent 50.0") {
		t.Errorf("%q, %v", out, err)
	}
	n.epilog(t, j)
	n.wantNoMPS(t, gpus)
}

// everyCall has TestMPSKilledAtEverySystemCall leave out nothing.
var everyCall = flag.Bool("every", false, "kill programs of jobs with an MPS daemon at every system call, which takes an hour")

// sparse is how many system calls apart programs are killed.
func sparse(each int) int {
	if *everyCall {
		return 1
	}
	return each
}

// TestMPSKilledAtEverySystemCall kills Prolog and Epilog of a job with an MPS
// daemon before each of their system calls, those of children between fork and
// exec among them, and wants whatever comes next to leave no process, socket,
// folder, cgroup or mode. There are thousands, most of them of looking again and
// again what is left: without -every, some are left out.
func TestMPSKilledAtEverySystemCall(t *testing.T) {
	needTracer(t)
	const workers = 4
	n, gpus := beginMPS(t)
	nodes := []*Node{n}
	for len(nodes) < workers {
		another, _ := beginMPS(t)
		nodes = append(nodes, another)
	}
	before, err := n.take()
	if err != nil {
		t.Fatal(err)
	}
	var turn atomic.Int64
	ended := func(n *Node, _ trace) error { return n.wantsBackOf(t.Context(), n.served(0), gpus, "epilog") }
	back := func(n *Node, _ trace) error {
		j := n.served(0)
		by := []string{"epilog", fmt.Sprintf("--job=%d", j.ID), "--all"}[int(turn.Add(1))%3]
		return n.wantsBackOf(t.Context(), j, gpus, by)
	}
	next := func(n *Node, _ trace) error {
		another := n.served(1)
		result, err := n.Prolog(t.Context(), another)
		if err != nil {
			return err
		}
		became, err := n.wantsTold(another)
		if err != nil {
			return err
		}
		if became != job.Applied {
			return fmt.Errorf("the next job's options are %s\n%s", became, result.Output)
		}
		if result, err = n.Epilog(t.Context(), another); err != nil || result.Code != 0 {
			return errors.Join(err, fmt.Errorf("the next job's Epilog: %+v", result))
		}
		return n.wantsBackOf(t.Context(), n.served(0), gpus, "epilog")
	}
	prolog := func(n *Node) *exec.Cmd { return n.Program(t.Context(), "gputune-prolog", n.served(0)) }
	epilog := func(n *Node) *exec.Cmd { return n.Program(t.Context(), "gputune-epilog", n.served(0)) }
	running := func(n *Node) error {
		result, err := n.Prolog(t.Context(), n.served(0))
		if err == nil && result.Code != 0 {
			err = fmt.Errorf("%+v", result)
		}
		return err
	}
	nothing := func(*Node) error { return nil }
	parent := func(process int) bool { return process == 0 }
	child := func(process int) bool { return process > 0 }
	started := time.Now()
	tried := 0
	for _, k := range []killing{
		{name: "Prolog", from: before, prepare: nothing, command: prolog, only: parent, after: ended},
		{name: "Prolog and its child at once", from: before, prepare: nothing, command: prolog, only: child, with: []int{0}, each: sparse(16), after: ended},
		{name: "and then the next job", from: before, prepare: nothing, command: prolog, only: child, with: []int{0}, each: sparse(40), after: next},
		{
			name: "Prolog's child alone", from: before, prepare: nothing, command: prolog, only: child, each: sparse(30),
			after: func(n *Node, got trace) error {
				if got.processes[0].status != 0 {
					return fmt.Errorf("gputune-prolog ended with %#x", got.processes[0].status)
				}
				told, err := n.wantsTold(n.served(0))
				if err != nil {
					return err
				}
				processes, err := n.MPSProcesses()
				if err != nil {
					return err
				}
				if told != job.Applied && len(processes) > 0 {
					return fmt.Errorf("the Prolog left %v", processes)
				}
				return ended(n, got)
			},
		},
		{name: "Epilog", from: before, prepare: running, command: epilog, only: parent, after: back},
		{name: "Epilog and its child at once", from: before, prepare: running, command: epilog, only: child, with: []int{0}, each: sparse(80), after: back},
	} {
		t.Run(k.name, func(t *testing.T) { tried += k.everywhere(t, nodes) })
	}
	t.Logf("%d kill points in %v", tried, time.Since(started).Round(time.Second))
}
