//go:build slurm

package bed

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A task that gets away from proctrack/linuxproc, a daemon of the Prolog and a
// file in /dev/shm are found, as whoever's they are, and Stop ends them.
func TestLeftBehindIsFoundAndEnded(t *testing.T) {
	b := startBed(t, Options{Prolog: "${DIR}/run/prolog"})
	// Slurm kills the process group when its leader has ended, so that one may
	// end only once the other has left it.
	escape := func(flag, seconds string) string {
		return "PATH=/usr/bin:/bin; setsid --fork sh -c 'touch " + flag + "; exec sleep " + seconds + "' </dev/null >/dev/null 2>&1; until [ -e " + flag + " ]; do sleep 0.01; done\n"
	}
	flags := t.TempDir()
	if err := errors.Join(os.Chmod(flags, 0o777), os.Chmod(filepath.Dir(flags), 0o755)); err != nil {
		t.Fatal(err)
	}
	prolog := "#!/bin/sh\n" + escape(filepath.Join(flags, "prolog"), "2001")
	if err := os.WriteFile(filepath.Join(b.Dir, "run", "prolog"), []byte(prolog), 0o755); err != nil {
		t.Fatal(err)
	}
	// Other programs' tests would find a file in /dev/shm as well.
	b.shmRoot = filepath.Join(b.Dir, "work")
	b.shmNames = map[string]bool{"old": true}
	if err := os.WriteFile(filepath.Join(b.shmRoot, "old"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	shm := filepath.Join(b.shmRoot, "new")
	cmd := b.Command("srun", "--export=NONE", "/bin/sh", "-c", "echo x >"+shm+"; "+escape(filepath.Join(flags, "task"), "2002"))
	cmd.User = "nobody"
	if result, err := cmd.Run(t.Context()); err != nil || !result.OK() {
		t.Fatal(result, err)
	}
	waitIdle(t, b)

	left := b.LeftBehind()
	for _, wanted := range []string{"sleep 2001", "sleep 2002", "shm " + shm} {
		if n := strings.Count(strings.Join(left, "\n")+"\n", wanted+"\n"); n != 1 {
			t.Errorf("want one line of %q, got %d in:\n%s", wanted, n, strings.Join(left, "\n"))
		}
	}
	if len(left) != 3 {
		t.Errorf("want three lines, got:\n%s", strings.Join(left, "\n"))
	}

	// What a living program of somebody else has open is in use, not left.
	held, err := os.Open(shm)
	if err != nil {
		t.Fatal(err)
	}
	if left := strings.Join(b.LeftBehind(), "\n"); strings.Contains(left, shm) {
		t.Errorf("a file that is in use counts as left behind:\n%s", left)
	}
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	if err := b.Stop(); err != nil {
		t.Fatal(err)
	}
	checkGone(t, b)
}

func TestRunningStepIsSeen(t *testing.T) {
	b := startBed(t, Options{ConstrainDevices: true})
	cmd := b.Command("srun", "sh", "-c", "echo started; sleep 1000")
	if err := cmd.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := cmd.WaitOutput(t.Context(), "started"); err != nil {
		t.Fatal(err)
	}
	left := strings.Join(b.LeftBehind(), "\n")
	job := strconv.Itoa(b.firstJob)
	for _, wanted := range []string{
		"slurmstepd: [" + job + ".0]", "sleep 1000",
		"cgroup /sys/fs/cgroup/devices/slurm_" + b.Node + "/uid_0/job_" + job + "/step_0/task_0", "spool " + b.Dir + "/spool/" + b.Node + "_" + job + ".0",
	} {
		if !strings.Contains(left, wanted) {
			t.Errorf("want %q, got:\n%s", wanted, left)
		}
	}
	if got := b.Stepds(); len(got) != 1 || !strings.HasPrefix(b.proc.program(got[0]), "slurmstepd") {
		t.Errorf("Stepds %v, want one", got)
	}
	state, _, err := b.NodeState(t.Context())
	if err != nil || (state != "mixed" && state != "allocated") {
		t.Errorf("node is %q, %v", state, err)
	}
}

// Steps that are not to be reached through Slurm any more, in a frozen cgroup
// even, end with the bed all the same.
func TestStopWithoutSlurmd(t *testing.T) {
	b := startBed(t, Options{ConstrainCores: true})
	cmd := b.Command("srun", "sh", "-c", "echo started; sleep 1000")
	if err := cmd.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := cmd.WaitOutput(t.Context(), "started"); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(b.Pid(Slurmd), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-b.daemon(Slurmd).exited
	frozen := filepath.Join(cgroupRoot, "freezer", b.cgroups.name(), "uid_0", "job_"+strconv.Itoa(b.firstJob), "step_0", "freezer.state")
	if err := os.WriteFile(frozen, []byte("FROZEN"), 0); err != nil {
		t.Fatal(err)
	}
	if err := b.Stop(); err != nil {
		t.Fatal(err)
	}
	checkGone(t, b)
}

const crashVariable = "BED_TEST_CRASH"

type crashReport struct {
	Dir, Node, Cluster string
	Daemons, Stepds    []int
}

// TestMain is also the program that TestProgramDies kills.
func TestMain(m *testing.M) {
	if kind := os.Getenv(crashVariable); kind != "" {
		if err := runUntilKilled(kind == "daemonize"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

func runUntilKilled(daemonize bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	b, err := Start(ctx, Options{ProctrackType: "proctrack/cgroup", Daemonize: daemonize})
	if err != nil {
		return err
	}
	cmd := b.Command("srun", "sh", "-c", "echo started; sleep 1000")
	if err := cmd.Start(ctx); err != nil {
		return err
	}
	if err := cmd.WaitOutput(ctx, "started"); err != nil {
		return err
	}
	report := crashReport{Dir: b.Dir, Node: b.Node, Cluster: b.Cluster, Stepds: b.Stepds()}
	for _, name := range []string{Munged, Slurmctld, Slurmd} {
		report.Daemons = append(report.Daemons, b.Pid(name))
	}
	report.Daemons = append(report.Daemons, cmd.Pid())
	if err := json.NewEncoder(os.Stdout).Encode(report); err != nil {
		return err
	}
	_, err = cmd.Wait()
	return errors.Join(err, errors.New("it was not killed"))
}

func TestProgramDies(t *testing.T) {
	for _, kind := range []string{"foreground", "daemonize"} {
		t.Run(kind, func(t *testing.T) {
			startBed(t, Options{}) // skips where there is no Slurm
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			program := exec.CommandContext(t.Context(), self)
			program.Env = append(os.Environ(), crashVariable+"="+kind)
			program.Stderr = os.Stderr
			program.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			out, err := program.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := program.Start(); err != nil {
				t.Fatal(err)
			}
			line, err := bufio.NewReader(out).ReadBytes('\n')
			if err != nil {
				t.Fatal(err, program.Wait())
			}
			var report crashReport
			if err := json.Unmarshal(line, &report); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(program.Process.Kill(), program.Wait()); err == nil {
				t.Fatal("the program ended well")
			}
			proc := procfs{root: procRoot}
			lasting := 0
			if kind == "daemonize" {
				lasting = report.Daemons[2]
			}
			for _, pid := range report.Daemons {
				if pid != lasting {
					waitEnded(t, proc, pid)
				}
			}
			if len(report.Stepds) != 1 {
				t.Fatalf("the program had slurmstepds %v, want one", report.Stepds)
			}
			if _, err := proc.read(report.Stepds[0]); err != nil {
				t.Fatalf("slurmstepd %d ended with the program, so that there is nothing to clear away: %v", report.Stepds[0], err)
			}
			next := startBed(t, Options{})
			if _, err := os.Stat(report.Dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the dead program's folder %s is left: %v", report.Dir, err)
			}
			dead := &Bed{Dir: report.Dir, Node: report.Node, Cluster: report.Cluster, proc: proc, cgroups: cgroupTree{root: cgroupRoot, node: report.Node}}
			checkGone(t, dead)
			run(t, next, "srun", "true")
		})
	}
}

func waitEnded(t *testing.T, proc procfs, pid int) {
	t.Helper()
	deadline := time.Now().Add(5 * time.Second)
	for {
		p, err := proc.read(pid)
		if errors.Is(err, errEnded) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %s has not ended: %v, %v", strconv.Itoa(pid), p, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
