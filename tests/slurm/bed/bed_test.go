//go:build slurm

package bed

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// startBed starts a bed that is stopped with the test, and then looks whether
// Stop has kept its promise.
func startBed(t *testing.T, options Options) *Bed {
	t.Helper()
	b, err := Start(t.Context(), options)
	if errors.Is(err, ErrUnavailable) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("slurmctld.log:\n%s\nslurmd.log:\n%s", tail(b.Log(Slurmctld), 30), tail(b.Log(Slurmd), 60))
		}
		if err := b.Stop(); err != nil {
			t.Error(err)
		}
		checkGone(t, b)
	})
	return b
}

// ownNode is a node name that no other run of these tests has.
func ownNode(name string) string { return name + strconv.Itoa(os.Getpid()) }

// checkGone fails the test if anything of a stopped bed is left.
func checkGone(t *testing.T, b *Bed) {
	t.Helper()
	found, err := b.processes()
	if err != nil {
		t.Error(err)
	}
	for _, p := range found {
		t.Errorf("after Stop: process %d: %s", p.pid, b.proc.commandLine(p))
	}
	folders, err := b.cgroups.folders()
	if err != nil {
		t.Error(err)
	}
	if len(folders) > 0 {
		t.Errorf("after Stop: cgroup folders %v", folders)
	}
	if _, err := os.Stat(b.Dir); !b.keepDir && !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after Stop: folder %s: %v", b.Dir, err)
	}
}

// run runs a command that must exit with 0 and returns its stdout.
func run(t *testing.T, b *Bed, name string, args ...string) string {
	t.Helper()
	result, err := b.Run(t.Context(), name, args...)
	if err != nil {
		t.Fatal(err)
	}
	if !result.OK() {
		t.Fatal(result)
	}
	return result.Stdout
}

func waitIdle(t *testing.T, b *Bed) {
	t.Helper()
	if err := b.WaitIdle(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func checkNothingLeft(t *testing.T, b *Bed) {
	t.Helper()
	waitIdle(t, b)
	for _, line := range b.LeftBehind() {
		t.Errorf("left behind: %s", line)
	}
}

func TestEveryKindOfBed(t *testing.T) {
	kinds := []struct {
		name    string
		options Options
	}{
		{"none linuxproc", Options{}},
		{"none linuxproc, no munge", Options{Auth: authNone}},
		{"none linuxproc, daemonized", Options{Daemonize: true}},
		{"none pgid", Options{ProctrackType: "proctrack/pgid"}},
		{"none cgroup", Options{ProctrackType: "proctrack/cgroup"}},
		{"affinity linuxproc", Options{TaskPlugin: "task/affinity"}},
		{"affinity cgroup", Options{TaskPlugin: "task/affinity", ProctrackType: "proctrack/cgroup"}},
		{"cgroup linuxproc", Options{TaskPlugin: "task/cgroup"}},
		{"affinity,cgroup linuxproc", Options{TaskPlugin: "task/affinity,task/cgroup"}},
		{"cgroup linuxproc cores", Options{TaskPlugin: "task/cgroup", ProctrackType: "proctrack/linuxproc", ConstrainCores: true}},
		{"affinity,cgroup linuxproc cores devices", Options{ProctrackType: "proctrack/linuxproc", ConstrainCores: true, ConstrainDevices: true}},
		{"affinity,cgroup cgroup cores", Options{ConstrainCores: true}},
		{"affinity,cgroup cgroup devices", Options{ConstrainDevices: true}},
		{"affinity,cgroup cgroup cores devices", Options{ConstrainCores: true, ConstrainDevices: true}},
		{"affinity,cgroup cgroup cores devices, daemonized", Options{ConstrainCores: true, ConstrainDevices: true, Daemonize: true}},
	}
	for _, kind := range kinds {
		t.Run(kind.name, func(t *testing.T) {
			kind.options.GPUs = 4
			before := time.Now()
			b := startBed(t, kind.options)
			t.Logf("up after %s", time.Since(before).Round(time.Millisecond))
			if wanted := kind.options.Auth; wanted != "" && b.Auth != wanted {
				t.Errorf("Auth %q, want %q", b.Auth, wanted)
			}

			for _, tasks := range []int{1, 4, 64} {
				out := run(t, b, "srun", "-O", "-n"+strconv.Itoa(tasks), "sh", "-c", "echo $SLURM_PROCID")
				ids := strings.Fields(out)
				wanted := make([]string, tasks)
				for i := range wanted {
					wanted[i] = strconv.Itoa(i)
				}
				slices.Sort(ids)
				slices.Sort(wanted)
				if !slices.Equal(ids, wanted) {
					t.Errorf("%d tasks: got ids %v", tasks, ids)
				}
			}

			bound := strings.Contains(b.options.TaskPlugin, "affinity") || b.options.ConstrainCores
			wanted := runtime.NumCPU()
			if bound {
				wanted = 1
			}
			if got := strings.TrimSpace(run(t, b, "srun", "-n1", "nproc")); got != strconv.Itoa(wanted) {
				t.Errorf("a task of one CPU may run on %s CPUs, want %d", got, wanted)
			}

			groups := run(t, b, "srun", "-n1", "cat", "/proc/self/cgroup")
			for controller, wanted := range map[string]bool{
				"freezer": b.options.ProctrackType == "proctrack/cgroup",
				"cpuset":  b.options.ConstrainCores,
				"devices": b.options.ConstrainDevices,
			} {
				if got := strings.Contains(groups, ":"+controller+":/"+b.cgroups.name()+"/"); got != wanted {
					t.Errorf("task in a %s cgroup of the job: %t, want %t\n%s", controller, got, wanted, groups)
				}
			}
			checkNothingLeft(t, b)
		})
	}
}

func TestDaemonsEndAndStayTheBeds(t *testing.T) {
	for _, daemonize := range []bool{false, true} {
		t.Run(fmt.Sprintf("daemonize %t", daemonize), func(t *testing.T) {
			b := startBed(t, Options{Daemonize: daemonize})
			self := os.Getpid()
			for _, name := range []string{Munged, Slurmctld, Slurmd} {
				p, err := b.proc.read(b.Pid(name))
				if err != nil {
					t.Fatal(err)
				}
				child := !daemonize || name != Slurmd
				if (p.parent == self) != child {
					t.Errorf("%s is a child of this program: %t, want %t", name, p.parent == self, child)
				}
			}
		})
	}
}

func TestMoreCPUsThanTheMachineHas(t *testing.T) {
	b := startBed(t, Options{NCPU: 64})
	if got := strings.Count(run(t, b, "srun", "-n64", "echo", "x"), "x"); got != 64 {
		t.Errorf("%d tasks ran, want 64", got)
	}
}

// probe prints, for each of the bed's GPUs, how opening its device node fails.
const probe = `for i in 0 1 2 3; do (: <"$0/dev/nvidia$i") 2>&1 | sed "s/.*: /$i /"; done`

func TestConstrainDevices(t *testing.T) {
	if text, err := os.ReadFile("/proc/devices"); err != nil || strings.Contains(string(text), "195 nvidia") {
		t.Skipf("NVIDIA's driver answers for major number 195 here (%v)", err)
	}
	const absent, forbidden = "No such device or address", "Operation not permitted"
	for _, constrain := range []bool{true, false} {
		t.Run(fmt.Sprintf("constrain %t", constrain), func(t *testing.T) {
			b := startBed(t, Options{GPUs: 4, ConstrainDevices: constrain, Timeout: 30 * time.Second})
			var seen []int // whose device each task may open
			for _, user := range []string{"", "nobody"} {
				cmd := b.Command("srun", "-n2", "--gpus-per-task=1", "-l", "bash", "-c", probe, b.Dir)
				cmd.User = user
				cmd.Env = []string{"LC_ALL=C"}
				result, err := cmd.Run(t.Context())
				if err != nil || !result.OK() {
					t.Fatal(result, err)
				}
				var lines int
				for task := range 2 {
					var open []int
					for gpu := range 4 {
						switch {
						case strings.Contains(result.Stdout, fmt.Sprintf("%d: %d %s\n", task, gpu, absent)):
							open = append(open, gpu)
							lines++
						case strings.Contains(result.Stdout, fmt.Sprintf("%d: %d %s\n", task, gpu, forbidden)):
							lines++
						}
					}
					if constrain && len(open) != 1 || !constrain && len(open) != 4 {
						t.Errorf("user %q: task %d may open the devices %v", user, task, open)
					}
					seen = append(seen, open...)
				}
				if lines != 8 {
					t.Errorf("user %q: want 8 lines of %q or %q, got\n%s", user, absent, forbidden, result.Stdout)
				}
			}
			if wanted := []int{0, 1, 0, 1}; constrain && !slices.Equal(seen, wanted) {
				t.Errorf("the tasks' devices are %v, want %v", seen, wanted)
			}
			checkNothingLeft(t, b)
		})
	}
}

func TestGresOfOtherKinds(t *testing.T) {
	b := startBed(t, Options{
		GPUs:      2,
		ExtraGres: []string{"Name=gpu Type=big File=${DIR}/dev/nvidia0", "Name=gpu Type=small File=${DIR}/dev/nvidia1"},
		NodeGres:  "gpu:big:1,gpu:small:1",
	})
	if got := strings.TrimSpace(run(t, b, "srun", "--gpus=small:1", "printenv", "SLURM_STEP_GPUS")); got != "1" {
		t.Errorf("job of a small GPU has %q, want 1", got)
	}
}

func TestTwoBedsAtOnce(t *testing.T) {
	first := startBed(t, Options{GPUs: 2, ConstrainCores: true, ConstrainDevices: true})
	second := startBed(t, Options{GPUs: 2, ConstrainCores: true, ConstrainDevices: true})
	if first.Node == second.Node || first.Cluster == second.Cluster {
		t.Fatalf("nodes %s, %s, clusters %s, %s: want different ones", first.Node, second.Node, first.Cluster, second.Cluster)
	}
	long := second.Command("srun", "sh", "-c", "echo started; sleep 1000")
	if err := long.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := long.WaitOutput(t.Context(), "started"); err != nil {
		t.Fatal(err)
	}
	run(t, first, "srun", "-n2", "--gpus-per-task=1", "true")
	checkNothingLeft(t, first)
	if got := len(second.Stepds()); got != 1 {
		t.Errorf("second bed has %d slurmstepds, want 1", got)
	}
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	checkGone(t, first)
	// The other bed's job, its cgroups and its daemons are none of Stop's business.
	if got := len(second.Stepds()); got != 1 {
		t.Errorf("after the first bed's Stop the second has %d slurmstepds, want 1", got)
	}
	if busy, err := second.cgroups.busy(); busy == "" || err != nil {
		t.Errorf("after the first bed's Stop no process is in the second's cgroups (%v)", err)
	}
	jobs, err := second.Jobs(t.Context())
	if err != nil || len(jobs) != 1 || jobs[0].State != "RUNNING" || jobs[0].User != "root" || jobs[0].Name != "sh" {
		t.Errorf("second bed's jobs are %v, %v: want root's running sh", jobs, err)
	}
	run(t, second, "scancel", jobs[0].ID)
	checkNothingLeft(t, second)
}

func TestSecondBedOfOneNameWaits(t *testing.T) {
	first := startBed(t, Options{Node: "node03"})
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if b, err := Start(ctx, Options{Node: "node03"}); !errors.Is(err, errClaimed) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a second bed of the same name started: %v, %v", b, err)
	}
	stopped := make(chan error, 1)
	time.AfterFunc(300*time.Millisecond, func() { stopped <- first.Stop() })
	second := startBed(t, Options{Node: "node03"})
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if got := strings.TrimSpace(run(t, second, "srun", "printenv", "SLURMD_NODENAME")); got != "node03" {
		t.Errorf("node name %q, want node03", got)
	}
}

// A node name that somebody else's slurmd has must be refused, and its
// processes left alone.
func TestForeignNodeOfOneName(t *testing.T) {
	node := ownNode("bedforeign")
	folder := filepath.Join(cgroupRoot, "freezer", "slurm_"+node, "uid_0")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Skip(err)
	}
	other := startBed(t, Options{}).Command("sleep", "1000")
	if err := other.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = other.Signal(unix.SIGKILL)
		_, _ = other.Wait()
		if err := (cgroupTree{root: cgroupRoot, node: node}).remove(); err != nil {
			t.Error(err)
		}
	})
	if err := os.WriteFile(filepath.Join(folder, "cgroup.procs"), []byte(strconv.Itoa(other.Pid())), 0); err != nil {
		t.Fatal(err)
	}
	b, err := Start(t.Context(), Options{Node: node})
	if err == nil {
		t.Fatal(b.Stop(), "a bed started with a foreign slurmd's node name")
	}
	if !strings.Contains(err.Error(), folder) || !strings.Contains(err.Error(), "Options.Node") {
		t.Errorf("error does not name the folder and what to do: %v", err)
	}
	if err := other.Signal(0); err != nil {
		t.Errorf("the foreign process was ended: %v", err)
	}
}

func TestFailedStart(t *testing.T) {
	cases := []struct {
		name    string
		options Options
		wanted  string
	}{
		{"slurmctld", Options{ExtraSlurmConf: []string{"SelectType=select/nonsense"}}, "select/nonsense"},
		{"node", Options{GPUs: 1, NodeGres: "gpu:4"}, "gres/gpu count reported lower than configured (1 < 4)"},
		{"plugin", Options{PlugstackLines: []string{"required /nonexistent/plugin.so"}}, "/nonexistent/plugin.so"},
		{"configuration", Options{ExtraSlurmConf: []string{"SlurmctldPort=1"}}, "SlurmctldPort is the bed's own"},
	}
	node := ownNode("bedfailing")
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			before, err := filepath.Glob(filepath.Join(os.TempDir(), dirPattern))
			if err != nil {
				t.Fatal(err)
			}
			c.options.Node = node
			b, err := Start(t.Context(), c.options)
			if errors.Is(err, ErrUnavailable) {
				t.Skip(err)
			}
			if err == nil {
				t.Fatal(b.Stop(), "it started")
			}
			if !strings.Contains(err.Error(), c.wanted) {
				t.Errorf("want %q in the error, got: %v", c.wanted, err)
			}
			after, err := filepath.Glob(filepath.Join(os.TempDir(), dirPattern))
			if err != nil {
				t.Fatal(err)
			}
			for _, dir := range after {
				text, _ := os.ReadFile(filepath.Join(dir, recordName))
				if !slices.Contains(before, dir) && strings.Contains(string(text), node) {
					t.Errorf("folder %s is left", dir)
				}
			}
			if folders, err := (cgroupTree{root: cgroupRoot, node: node}).folders(); len(folders) > 0 || err != nil {
				t.Errorf("cgroup folders are left: %v, %v", folders, err)
			}
		})
	}
}

// Whenever Start is given up, it takes everything along.
func TestInterruptedStart(t *testing.T) {
	startBed(t, Options{}) // skips where there is no Slurm
	node := ownNode("bedinterrupted")
	ended := 0
	for after := 5 * time.Millisecond; after < 200*time.Millisecond; after += after / 2 {
		ctx, cancel := context.WithTimeout(t.Context(), after)
		b, err := Start(ctx, Options{Node: node, ConstrainDevices: true})
		cancel()
		switch {
		case err == nil:
			if err := b.Stop(); err != nil {
				t.Error(err)
			}
		case errors.Is(err, context.DeadlineExceeded):
			ended++
		default:
			t.Errorf("given up after %s: %v", after, err)
		}
		dirs, err := filepath.Glob(filepath.Join(os.TempDir(), dirPattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, dir := range dirs {
			if text, _ := os.ReadFile(filepath.Join(dir, recordName)); strings.Contains(string(text), node) {
				t.Errorf("given up after %s: folder %s is left", after, dir)
			}
		}
		if folders, err := (cgroupTree{root: cgroupRoot, node: node}).folders(); len(folders) > 0 || err != nil {
			t.Errorf("given up after %s: cgroup folders are left: %v, %v", after, folders, err)
		}
		all, err := (procfs{root: procRoot}).list()
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range all {
			if line := (procfs{root: procRoot}).commandLine(p); strings.Contains(line, " -N "+node+" ") {
				t.Errorf("given up after %s: process %d is left: %s", after, p.pid, line)
			}
		}
	}
	if ended == 0 {
		t.Error("no start was given up, so that nothing was tested")
	}
}

func TestFolderOfOnesOwn(t *testing.T) {
	parent, err := os.MkdirTemp("", "bedtest")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(parent) })
	dir := filepath.Join(parent, "bed")

	// A closed folder above is what munged refuses.
	if b, err := Start(t.Context(), Options{Dir: dir}); err == nil || !strings.Contains(err.Error(), "mode 0700") {
		t.Fatalf("below a folder of mode 0700: %v, %v", b, err)
	}
	if err := os.Chmod(parent, 0o755); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second finds what the first has left
		b := startBed(t, Options{Dir: dir, Node: ownNode("bedown")})
		run(t, b, "srun", "true")
		if err := b.Stop(); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(b.Log(Slurmd), fmt.Sprintf("launch task StepId=%d.0", b.firstJob)) {
			t.Errorf("the kept log does not have the step:\n%s", b.Log(Slurmd))
		}
	}
	file := filepath.Join(parent, "thesis")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if b, err := Start(t.Context(), Options{Dir: parent}); err == nil {
		t.Error(b.Stop(), "a bed started in a folder with somebody's files")
	}
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
}

func TestRestart(t *testing.T) {
	for _, daemonize := range []bool{false, true} {
		t.Run(fmt.Sprintf("daemonize %t", daemonize), func(t *testing.T) {
			b := startBed(t, Options{ProctrackType: "proctrack/cgroup", Daemonize: daemonize})
			cmd := b.Command("srun", "sh", "-c", "echo started; until [ -e end ]; do sleep 0.1; done; echo ended")
			if err := cmd.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := cmd.WaitOutput(t.Context(), "started"); err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{Slurmd, Slurmctld, Munged} {
				before := b.Pid(name)
				if err := b.Restart(t.Context(), name); err != nil {
					t.Fatal(err)
				}
				if after := b.Pid(name); after == before || after == 0 {
					t.Errorf("%s had pid %d, and after Restart %d", name, before, after)
				}
			}
			// One that has crashed.
			if err := unix.Kill(b.Pid(Slurmd), unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			<-b.daemon(Slurmd).exited
			if pid := b.Pid(Slurmd); pid != 0 {
				t.Errorf("killed slurmd still has pid %d", pid)
			}
			if err := b.Restart(t.Context(), Slurmd); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(b.Dir, "work", "end"), nil, 0o644); err != nil {
				t.Fatal(err)
			}
			if result, err := cmd.Wait(); err != nil || !result.OK() || !strings.Contains(result.Stdout, "ended") {
				t.Error(result, err)
			}
			run(t, b, "srun", "true")
			checkNothingLeft(t, b)
		})
	}
}

func TestReconfigure(t *testing.T) {
	b := startBed(t, Options{})
	conf, err := os.OpenFile(b.Conf, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = fmt.Fprintf(conf, "PartitionName=second Nodes=%s\n", b.Node)
	if err := errors.Join(err, conf.Close()); err != nil {
		t.Fatal(err)
	}
	if err := b.Reconfigure(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(run(t, b, "srun", "-p", "second", "printenv", "SLURM_JOB_PARTITION")); got != "second" {
		t.Errorf("job ran in partition %q, want second", got)
	}
}

func TestDrainedNode(t *testing.T) {
	b := startBed(t, Options{Prolog: "${DIR}/run/prolog", MaxTime: "5", Partition: "OverSubscribe=FORCE:2", ExtraSlurmConf: []string{"PrologEpilogTimeout=10"}})
	if err := os.WriteFile(filepath.Join(b.Dir, "run", "prolog"), []byte("#!/bin/sh\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	shown := run(t, b, "scontrol", "show", "partition", "main")
	if !strings.Contains(shown, "OverSubscribe=FORCE:2") || !strings.Contains(shown, "MaxTime=00:05:00") {
		t.Errorf("partition lacks what was asked for:\n%s", shown)
	}
	cmd := b.Command("sbatch", "--no-requeue", "--wrap=true")
	if result, err := cmd.Run(t.Context()); err != nil || !result.OK() {
		t.Fatal(result, err)
	}
	for {
		state, reason, err := b.NodeState(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(state, "drain") {
			if !strings.Contains(reason, "Prolog") {
				t.Errorf("node is %s for %q, want the Prolog as the reason", state, reason)
			}
			break
		}
		if err := sleep(t.Context(), 20*time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	run(t, b, "scancel", "--state=PENDING", "--user=root")
	if err := b.WaitIdle(t.Context()); err == nil || !strings.Contains(err.Error(), "Prolog") {
		t.Errorf("WaitIdle on a drained node: %v", err)
	}
}
