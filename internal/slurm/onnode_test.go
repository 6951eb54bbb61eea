package slurm

import (
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// process puts a process of this user into a made-up /proc.
type process struct {
	pid, ppid                int
	cmdline, environ, cgroup string
}

func layProc(t *testing.T, processes ...process) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can make processes of root's")
	}
	root := t.TempDir()
	for _, p := range processes {
		folder := filepath.Join(root, "proc", fmt.Sprint(p.pid))
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{
			"cmdline": p.cmdline, "environ": p.environ, "cgroup": p.cgroup, "stat": fmt.Sprintf("%d (x (y) S %d 1", p.pid, p.ppid),
		} {
			if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.MkdirAll(filepath.Join(root, "proc/net"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "proc/net/unix"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	return root
}

var contained = Conf{PrologFlags: []string{"contain"}, SlurmdSpoolDir: "/spool/%n"}

func TestJobsHere(t *testing.T) {
	root := layProc(t,
		process{pid: 1, cmdline: "/sbin/init"},
		process{pid: 10, cmdline: "/usr/sbin/slurmd\x00-D\x00", environ: "SLURM_CONF=/etc/x.conf\x00"},
		process{pid: 11, cmdline: "slurmstepd: [42.extern]\x00"},
		process{pid: 12, cmdline: "slurmstepd: [43+1.batch]\x00"},
		process{pid: 13, cmdline: "./a.out\x00", cgroup: "0::/system.slice/slurmstepd.scope/job_44/step_0/user/task_0\n"},
		process{pid: 14, cmdline: "./a.out\x00", cgroup: "3:cpuset:/slurm_n1/uid_5/job_45/step_0\n0::/\n"},
		process{pid: 15, cmdline: "/bin/sh\x00prolog\x00", environ: "SLURM_JOB_ID=46\x00SLURM_SCRIPT_CONTEXT=prolog_slurmd\x00"},
		process{pid: 16, cmdline: "/bin/sh\x00epilog\x00", environ: "SLURM_SCRIPT_CONTEXT=epilog_slurmd\x00SLURM_JOB_ID=47\x00"},
		process{pid: 17, cmdline: "/bin/sh\x00task\x00", environ: "SLURM_SCRIPT_CONTEXT=prolog_task\x00SLURM_JOB_ID=48\x00"},
		process{pid: 18, cmdline: "sshd\x00", environ: "SLURM_JOB_ID=49\x00", cgroup: "0::/user.slice/job_49/x\n"},
		process{pid: 19, cmdline: "slurmstepd: [500\x00"},
	)
	// A user's process that pretends.
	fake := filepath.Join(root, "proc/20")
	if err := os.Mkdir(fake, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"cmdline", "environ", "cgroup"} {
		if err := os.WriteFile(filepath.Join(fake, name), []byte("slurmstepd: [50.batch]"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(fake, 1000, 1000); err != nil {
		t.Fatal(err)
	}
	spool := filepath.Join(root, "spool/n1")
	if err := os.MkdirAll(spool, 0o755); err != nil {
		t.Fatal(err)
	}
	listed := ""
	for i, name := range []string{"n1_60.4294967291", "n_1_61.0.2", "n1_62.0"} {
		listener, err := net.Listen("unix", filepath.Join(spool, name))
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		flags := []string{"00010000", "00010000", "00000000"}[i] // nobody listens at the last one
		listed += fmt.Sprintf("0000000000000000: 00000002 00000000 %s 0001 01 5%d /spool/n1/%s\n", flags, i, name)
	}
	if err := os.WriteFile(filepath.Join(spool, "n1_63.0"), nil, 0o644); err != nil { // no socket
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "proc/net/unix"), []byte("Num RefCount\n"+listed), 0o644); err != nil {
		t.Fatal(err)
	}
	here, err := JobsHere(root, contained)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(slices.Sorted(maps.Keys(here)), " "); got != "42 43 44 45 46 47 60 61" {
		t.Errorf("jobs %s: %v", got, here)
	}
	if path := FindConf(root); path != filepath.Join(root, "etc/x.conf") {
		t.Errorf("slurm.conf %s", path)
	}
}

// Since 26.05 a job's cgroup has its SLUID for a name.
func TestJobsHereBySLUID(t *testing.T) {
	in := func(id string) string {
		return "0::/system.slice/n1_slurmstepd.scope/" + id + "/step_0/user/task_0\n"
	}
	const a, b, c = "s97DM8MRE7WY00", "s97DM8MRE7WY01", "s97DM8MRE7WY02"
	slurmd := process{pid: 10, cmdline: "/usr/sbin/slurmd\x00-D\x00", cgroup: "0::/system.slice/slurmd.service\n"}
	task := process{pid: 13, cmdline: "./a.out\x00", environ: "X=1\x00SLURM_JOB_ID=43\x00", cgroup: in(b)}
	silent := process{pid: 14, cmdline: "./a.out\x00", environ: "X=1\x00", cgroup: in(b)}
	for _, c := range []struct {
		name      string
		processes []process
		jobs, err string
	}{
		{"with its slurmstepd", []process{slurmd, {pid: 11, cmdline: "slurmstepd: [42.extern]\x00", cgroup: in(a)}, {pid: 12, cmdline: "sleep\x00", cgroup: in(a)}}, "42", ""},
		{"slurmstepd comes later", []process{{pid: 9, cmdline: "sleep\x00", cgroup: in(a)}, slurmd, {pid: 11, cmdline: "slurmstepd: [42.extern]\x00", cgroup: in(a)}}, "42", ""},
		{"a slurmstepd that begins", []process{slurmd, {pid: 11, cmdline: "/usr/sbin/slurmstepd\x00", cgroup: in(c)}}, "", ""},
		{"without a slurmstepd", []process{slurmd, silent, task}, "43", ""},
		{"nothing says which", []process{slurmd, silent}, "", "process 14 is in the cgroup of a job " + b},
		{"no job's", []process{slurmd, {pid: 11, cmdline: "x\x00", cgroup: "0::/system.slice/n1_slurmstepd.scope/system\n"}}, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			here, err := JobsHere(layProc(t, c.processes...), contained)
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("%v, want %q", err, c.err)
			}
			if got := strings.Join(slices.Sorted(maps.Keys(here)), " "); got != c.jobs {
				t.Errorf("jobs %v, want %s", here, c.jobs)
			}
		})
	}
}

func TestJobsHereCannotTell(t *testing.T) {
	slurmd := process{pid: 10, cmdline: "slurmd\x00"}
	step := process{pid: 11, cmdline: "slurmstepd: [42.extern]\x00"}
	for want, c := range map[string]struct {
		conf      Conf
		processes []process
	}{
		"no slurmd is seen": {contained, []process{step}},
		"no Contain":        {Conf{PrologFlags: []string{"Alloc"}}, []process{slurmd, step}},
	} {
		here, err := JobsHere(layProc(t, c.processes...), c.conf)
		if err == nil || !strings.Contains(err.Error(), want) || here["42"] == "" {
			t.Errorf("%v, %v, want %q", here, err, want)
		}
	}
	if _, err := JobsHere(t.TempDir(), contained); err == nil {
		t.Error("no /proc is no answer")
	}
}

func TestSpools(t *testing.T) {
	for dir, want := range map[string]string{"": "/var/spool/slurmd", "/var/spool/%n/[x]*": `/var/spool/*/\[x]\*`} {
		if got := (Conf{SlurmdSpoolDir: dir}).spools(); got != want {
			t.Errorf("%q: %q, want %q", dir, got, want)
		}
	}
}
