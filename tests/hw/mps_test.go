//go:build gpu

package hw

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gputune/internal/mps"
)

// nobody is the user of these daemons: one without rights, and not root, who
// may be refused.
const nobody = 65534

// daemon starts one for the GPUs, as nobody. The compute mode stays as it is.
func daemon(t *testing.T, job string, percent int, gpus ...string) (mps.Host, mps.Spec) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to start daemons as another user")
	}
	host := mps.Host{Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	if _, err := host.FindProgram(""); err != nil {
		t.Skip(err)
	}
	spec := mps.Spec{Job: job, UID: nobody, GID: nobody, GPUs: gpus, Percent: percent}
	if err := host.Start(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := host.Stop(t.Context(), gpus[0]); err != nil {
			t.Error(err)
		}
	})
	return host, spec
}

func variables(host mps.Host, s mps.Spec) []string {
	var all []string
	for _, v := range host.Variables(s) {
		all = append(all, v[0]+"="+v[1])
	}
	return all
}

// What there is of the daemon: itself and its server, both nobody's.
func look(t *testing.T, host mps.Host, gpu string, want int) []mps.Process {
	t.Helper()
	status, err := host.Look(t.Context(), gpu)
	if err != nil || status == nil || status.Silent != nil {
		t.Fatalf("%+v, %v", status, err)
	}
	if len(status.Processes) != want {
		t.Errorf("want %d processes, got %v", want, status.Processes)
	}
	return status.Processes
}

// gone sees to it that nothing is left of a daemon.
func gone(t *testing.T, host mps.Host, spec mps.Spec, processes []mps.Process) {
	t.Helper()
	if err := host.Stop(t.Context(), spec.GPUs[0]); err != nil {
		t.Fatal(err)
	}
	for _, p := range processes {
		if _, err := os.Stat(filepath.Join("/proc", strconv.Itoa(p.PID))); err == nil {
			t.Errorf("%v is still there", p)
		}
	}
	checkNoProcess(t)
	if entries, err := os.ReadDir("/run/gputune/mps"); err != nil || len(entries) != 0 {
		t.Errorf("left: %v, %v", entries, err)
	}
}

// checkNoProcess sees to it that the daemon's user has no process, but for those
// that have ended and that nobody waits for where there is no init.
func checkNoProcess(t *testing.T) {
	t.Helper()
	output, _ := exec.Command("pgrep", "-u", strconv.Itoa(nobody), "-a").Output() // fails where there is none
	for line := range strings.Lines(string(output)) {
		if !strings.Contains(line, "<defunct>") {
			t.Errorf("a process of the daemon's user: %s", line)
		}
	}
}

// Two processes share a GPU through the daemon, at full speed where each alone
// leaves most of it idle, and are in nobody's way after it.
func TestMPS(t *testing.T) {
	program := cuda(t)
	gpu := smi(t, "uuid")[0][0]
	visible := "CUDA_VISIBLE_DEVICES=" + gpu
	arguments := []string{"--seconds", "2", "--blocks", "16"}

	alone := start(t, program, nobody, []string{visible}, arguments...)
	all := alone.devices(t)
	if len(all) != 1 || all[0].uuid != gpu {
		t.Fatalf("devices %v, want %s", all, gpu)
	}
	one := kernels(t, alone)
	alone.end(t)
	a, b := start(t, program, nobody, []string{visible}, arguments...), start(t, program, nobody, []string{visible}, arguments...)
	a.devices(t)
	b.devices(t)
	sliced := kernels(t, a, b)
	a.end(t)
	b.end(t)

	host, spec := daemon(t, "4290000001", 0, gpu)
	look(t, host, gpu, 1)
	environment := append(variables(host, spec), visible)
	a, b = start(t, program, nobody, environment, arguments...), start(t, program, nobody, environment, arguments...)
	for _, p := range []*process{a, b} {
		if seen := p.devices(t); len(seen) != 1 || seen[0].uuid != gpu || seen[0].multiprocessors != all[0].multiprocessors {
			t.Errorf("under MPS: devices %v, want %v", seen, all)
		}
	}
	processes := look(t, host, gpu, 2)
	shared := kernels(t, a, b)
	// The driver sees the server and its clients, nobody else.
	apps := run(t, "nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader")
	for _, p := range processes {
		t.Logf("%v; compute apps %q", p, strings.Fields(apps))
	}
	a.end(t)
	b.end(t)
	t.Logf("kernel of 16 blocks, median: alone %.1f ms; two processes: %.1f and %.1f ms; two under MPS: %.1f and %.1f ms",
		one[0], sliced[0], sliced[1], shared[0], shared[1])
	gone(t, host, spec, processes)
}

// A cap that the daemon gives, and one that the client has.
func TestMPSPercentage(t *testing.T) {
	program := cuda(t)
	gpu := smi(t, "uuid")[0][0]
	alone := start(t, program, nobody, []string{"CUDA_VISIBLE_DEVICES=" + gpu})
	whole := alone.devices(t)[0].multiprocessors
	alone.goOn(t)
	alone.end(t)
	for i, c := range []struct{ daemon, client int }{{25, 0}, {0, 25}, {50, 25}, {25, 50}} {
		t.Run(fmt.Sprintf("daemon %d client %d", c.daemon, c.client), func(t *testing.T) {
			host, spec := daemon(t, strconv.Itoa(4290000010+i), c.daemon, gpu)
			environment := append(variables(host, spec), "CUDA_VISIBLE_DEVICES="+gpu)
			if c.client != 0 {
				environment = append(environment, fmt.Sprintf("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=%d", c.client))
			}
			p := start(t, program, nobody, environment)
			seen := p.devices(t)[0].multiprocessors
			percent := min(max(c.daemon, 1), max(c.client, 1))
			if c.daemon == 0 || c.client == 0 {
				percent = max(c.daemon, c.client)
			}
			// Multiprocessors are given in pairs, rounded up or down.
			if low, high := whole*percent/100-2, whole*percent/100+2; seen < low || seen > high {
				t.Errorf("%d of %d multiprocessors, want %d %%", seen, whole, percent)
			}
			t.Logf("%d of %d multiprocessors", seen, whole)
			processes := look(t, host, gpu, 2)
			p.goOn(t)
			p.end(t)
			gone(t, host, spec, processes)
		})
	}
}

// Another user's programs never reach the daemon: the folder keeps users out,
// whose programs then run without MPS, as programs without a daemon do; the
// daemon itself refuses root, whom no folder stops.
func TestMPSOfAnotherUser(t *testing.T) {
	program := cuda(t)
	gpu := smi(t, "uuid")[0][0]
	host, spec := daemon(t, "4290000020", 0, gpu)
	environment := append(variables(host, spec), "CUDA_VISIBLE_DEVICES="+gpu)

	p := start(t, program, 0, environment)
	if err := p.ended(); err == nil || slices.Contains(p.seen, "ready") || !strings.Contains(p.errors.String(), "MPS") {
		t.Errorf("root's program with the daemon of user %d: %v: %q %q", nobody, err, p.seen, p.errors.String())
	}
	p = start(t, program, nobody-1, environment)
	p.devices(t)
	look(t, host, gpu, 1) // no server was started
	p.end(t)
	gone(t, host, spec, nil)
}

// A daemon with clients that hang on ends all the same.
func TestMPSStopsUnderAClient(t *testing.T) {
	program := cuda(t)
	gpu := smi(t, "uuid")[0][0]
	host, spec := daemon(t, "4290000030", 0, gpu)
	p := start(t, program, nobody, append(variables(host, spec), "CUDA_VISIBLE_DEVICES="+gpu), "--seconds", "30", "--blocks", "16")
	p.devices(t)
	processes := look(t, host, gpu, 2)
	p.goOn(t)
	if err := host.Stop(t.Context(), gpu); err != nil {
		t.Fatal(err)
	}
	err := p.ended()
	t.Logf("its client: %v: %s", err, &p.errors)
	gone(t, host, spec, processes)
}

// A daemon for all GPUs together: its clients number them by PCI address, whatever
// the order of its list.
func TestMPSOnAllGPUs(t *testing.T) {
	program := cuda(t)
	var gpus []string
	for _, row := range smi(t, "uuid") {
		gpus = append(gpus, row[0])
	}
	inOrder := slices.Clone(gpus) // as nvidia-smi has them
	slices.Reverse(gpus)
	host, spec := daemon(t, "4290000040", 0, gpus...)
	for name, visible := range map[string]string{
		"none": "", "indices": "0", "its UUID": gpus[len(gpus)-1], "all UUIDs": strings.Join(gpus, ","),
	} {
		environment := variables(host, spec)
		if visible != "" {
			environment = append(environment, "CUDA_VISIBLE_DEVICES="+visible)
		}
		p := start(t, program, nobody, environment)
		var seen []string
		for _, d := range p.devices(t) {
			seen = append(seen, d.uuid)
		}
		t.Logf("daemon has %v; CUDA_VISIBLE_DEVICES %s (%q): client sees %v", gpus, name, visible, seen)
		want := map[string][]string{"none": inOrder, "indices": inOrder[:1], "its UUID": gpus[len(gpus)-1:], "all UUIDs": gpus}[name]
		if !slices.Equal(seen, want) {
			t.Errorf("CUDA_VISIBLE_DEVICES=%s: sees %v, want %v", visible, seen, want)
		}
		p.goOn(t)
		p.end(t)
	}
	gone(t, host, spec, look(t, host, gpus[0], 2))
}
