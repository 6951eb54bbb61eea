//go:build slurm

package slurm

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gputune/tests/node"
	"gputune/tests/slurm/bed"
	"gputune/tests/slurm/site"
)

// nodeSettings is a site whose machine has files for settings of a node.
type nodeSettings struct {
	*settings
	kernel map[string]string // lines by file
}

const nodeProfiles = `[drop_caches]
sync_deadline = "1s"
[profile.site]
irqs = "local"
idle_latency = 20
[profile.site.sysctl]
"vm.swappiness" = 1
"vm.dirty_ratio" = 40
[profile.both.sysctl]
"vm.swappiness" = { value = 2, shared = "allow" }
[profile.other.sysctl]
"vm.swappiness" = { value = 3, shared = "allow" }
`

func startNodeSettings(t *testing.T, options bed.Options) nodeSettings {
	t.Helper()
	options.NCPU, options.TaskPlugin = 4, "task/none"
	options.ExtraSlurmConf = append(options.ExtraSlurmConf, "PrologFlags=Alloc")
	s := &settings{Site: start(t, site.Options{Jobs: true, Config: nodeProfiles, Bed: options})}
	s.before = s.state(t)
	kernel, err := node.WriteSettings(filepath.Join(s.Folder, "machine"), s.Machine)
	if err != nil {
		t.Fatal(err)
	}
	return nodeSettings{s, kernel}
}

// now returns the present line of a file of the machine's.
func (s nodeSettings) now(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(s.Folder, "machine", name))
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	return line
}

// wantBack waits for the node to be idle, and wants all to be as before.
func (s nodeSettings) wantBack(t *testing.T) {
	t.Helper()
	s.wantClean(t)
	for name, was := range s.kernel {
		if now := s.now(t, name); now != was {
			t.Errorf("%s is %q, was %q", name, now, was)
		}
	}
	if state, reason, err := s.NodeState(t.Context()); err != nil || state != "idle" {
		t.Errorf("node is %s for %q, %v", state, reason, err)
	}
}

const (
	swappiness = "proc/sys/vm/swappiness"
	nodePool   = "sys/devices/system/node/node%d/hugepages/hugepages-2048kB/nr_hugepages"
)

// Settings of the node are set for a job that has it for itself, whichever way it
// comes to that, and are put back after it; a job that shares it is told in one line.
func TestNodeSettings(t *testing.T) {
	s := startNodeSettings(t, bed.Options{})
	machine := filepath.Join(s.Folder, "machine")
	for option, word := range map[string]string{"--thp=always": "", "--drop-caches": "", "--drop-caches=all": "", "--node-profile=site": "idle_latency: "} {
		line := fmt.Sprintf("gputune: %s: error: %s: %sit is the whole node's, and the job does not have the node for itself: ask for --exclusive\n", s.Node, option, word)
		result, err := s.Run(t.Context(), "srun", "-Q", "-n1", "--gpus=1", option, "echo", "ran")
		if err != nil || result.Code != 1 || result.Stdout != "" || strings.Count(result.Stderr, "gputune") != 1 || !strings.Contains(result.Stderr, line) {
			t.Errorf("%v, %v\nwant %q", result, err, line)
		}
		s.wantBack(t)
	}

	show := fmt.Sprintf("cd %s; head -qn1 %s "+nodePool+" "+nodePool+" proc/sys/vm/drop_caches proc/irq/*/smp_affinity_list", machine, swappiness, 0, 1)
	options := []string{"-n1", "--gpus=1", "--node-profile=site", "--hugepages=2M:64", "--drop-caches=all"}
	output := filepath.Join(s.Folder, "batch.out")
	for name, arguments := range map[string][]string{
		"srun":   {"-Q", "sh", "-c", show},
		"salloc": {"-Q", "srun", "-Q", "-n1", "sh", "-c", show},
		"sbatch": {"-Q", "-W", "-o", output, "--wrap", show},
	} {
		first := arguments[:1]
		if name == "sbatch" {
			first = arguments[:4]
		}
		for alone, want := range map[string]string{
			// With this, Slurm gives the job all GPUs of the node, two on each NUMA node.
			"--exclusive": "1\n67\n67\n3\n0\n0\n1\n1\n",
			// With all CPUs it has the one that it asked for, on NUMA node 0.
			"-c4": "1\n67\n4\n3\n0\n0-1\n0-1\n0-1\n",
		} {
			result := must(t, s.Site, name, append(append(append([]string{alone}, first...), options...), arguments[len(first):]...)...)
			saw := result.Stdout
			if name == "sbatch" {
				text, err := os.ReadFile(output)
				if err != nil {
					t.Fatal(err)
				}
				saw = string(text)
			}
			if saw != want || result.Stderr != "" {
				t.Errorf("%s %s saw %q, %q, want %q", name, alone, saw, result.Stderr, want)
			}
			s.wantBack(t)
		}
	}

	result := must(t, s.Site, "srun", "-Q", "-n4", "--gpus=1", "--drop-caches=slab", "head", "-n1", machine+"/proc/sys/vm/drop_caches")
	if result.Stdout != strings.Repeat("2\n", 4) || result.Stderr != "" {
		t.Errorf("%v", result)
	}
	// What a job can have of its own it can have on a node that it shares.
	result = must(t, s.Site, "srun", "-Q", "-n1", "--thp=never", "echo", "ran")
	if result.Stdout != "ran\n" || result.Stderr != "" {
		t.Errorf("%v", result)
	}
	s.wantBack(t)
}

// Bad values are refused where the job is submitted, with what would work.
func TestNodeOptionsAtSubmission(t *testing.T) {
	s := need(t, open)
	for option, want := range map[string]string{
		"--thp=on":                 `--thp: "on": want always, madvise or never`,
		"--hugepages=2M":           `--hugepages: "2M": want SIZE:COUNT, such as 2M:512`,
		"--hugepages=3M:1":         `--hugepages: "3M:1": want SIZE:COUNT`,
		"--drop-caches=everything": `--drop-caches: "everything": want page, slab or all`,
		"--node-profile=../x":      `--node-profile: "../x": want the name of a profile`,
	} {
		for _, program := range []string{"srun", "salloc"} {
			result, err := s.Run(t.Context(), program, "-n1", option, "echo", "ran")
			if err != nil || result.OK() || result.Stdout != "" || !strings.Contains(result.Stderr, want) {
				t.Errorf("%s: %v, %v, want %q", program, result, err, want)
			}
		}
	}
}

// Of two jobs on a node the second is refused another value, with the first one's
// number, and gets the same.
func TestTwoJobsOnANode(t *testing.T) {
	s := startNodeSettings(t, bed.Options{})
	first := s.submit(t, "sleep 600", "-o", "/dev/null", "--node-profile=both")
	s.wait(t, "the first job to begin", time.Minute, func() bool { return s.now(t, swappiness) == "2" })
	want := fmt.Sprintf("gputune: %s: error: --node-profile=other: sysctl/vm.swappiness: job %s holds it at 2, so it cannot be 3: use 2, or wait for that job's end\n", s.Node, first)
	result, err := s.Run(t.Context(), "srun", "-Q", "-n1", "--node-profile=other", "echo", "ran")
	if err != nil || result.Code != 1 || result.Stdout != "" || !strings.Contains(result.Stderr, want) {
		t.Errorf("%v, %v, want %q", result, err, want)
	}
	path := filepath.Join(s.Folder, "machine", swappiness)
	result = must(t, s.Site, "srun", "-Q", "-n1", "--node-profile=both", "head", "-n1", path)
	if result.Stdout != "2\n" || result.Stderr != "" {
		t.Errorf("%v", result)
	}
	// The second one's end changes nothing for the first one.
	s.wait(t, "the second job's Epilog", time.Minute, func() bool { return len(s.files(t)) == 2 })
	if now := s.now(t, swappiness); now != "2" {
		t.Errorf("it is %s", now)
	}
	must(t, s.Site, "scancel", first)
	s.wantBack(t)
}

// What a partition says of its nodes counts where slurmd does not tell.
func TestPartitionsOfANode(t *testing.T) {
	for partition, want := range map[string]string{
		"OverSubscribe=EXCLUSIVE": "",
		"OverSubscribe=FORCE:2":   "the job does not have the node for itself: ask for --exclusive",
	} {
		s := startNodeSettings(t, bed.Options{Partition: partition})
		result, err := s.Run(t.Context(), "srun", "-Q", "-n1", "--node-profile=site", "head", "-n1", filepath.Join(s.Folder, "machine", swappiness))
		if err != nil || (want == "") != (result.Stdout == "1\n") || !strings.Contains(result.Stderr, want) {
			t.Errorf("%s: %v, %v, want %q", partition, result, err, want)
		}
		s.wantBack(t)
	}
}
