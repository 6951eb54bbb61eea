//go:build vm

package numavm_test

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gputune/internal/idset"
	"gputune/tests/vm/numavm"
)

func topology(t *testing.T, name string) numavm.Topology {
	t.Helper()
	topo, err := numavm.ParseTopology(name)
	if err != nil {
		t.Fatal(err)
	}
	return topo
}

// start boots a machine that ends with the test.
func start(t *testing.T, opt numavm.Options) *numavm.VM {
	t.Helper()
	opt.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	vm, err := numavm.Start(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := vm.Close(); err != nil {
			t.Error(err)
		}
	})
	return vm
}

// output runs a script that must succeed.
func output(t *testing.T, vm *numavm.VM, script string) string {
	t.Helper()
	res, err := vm.Run(t.Context(), script)
	if err != nil || res.Code != 0 {
		t.Fatalf("%s\ncode %d, %v\n%s", script, res.Code, err, res.Output)
	}
	return res.Output
}

// TestSuites has all on one release, and in a full run what differs from release to release on another; bookworm's machine is in
// TestRestarts.
func TestSuites(t *testing.T) {
	for _, on := range []struct {
		suite    numavm.Suite
		topology string
	}{{numavm.Trixie, "gh"}, {numavm.Forky, "n4c"}} {
		if on.suite == numavm.Forky && os.Getenv("GPUTUNE_VM_FULL") == "" {
			continue
		}
		t.Run(string(on.suite), func(t *testing.T) {
			topo := topology(t, on.topology)
			share := t.TempDir()
			vm := start(t, numavm.Options{Suite: on.suite, Topology: topo, Shares: []numavm.Share{{Dir: share, Name: "extra"}}, Env: []string{"GREETING=hello all"}})
			testRelease(t, vm, topo, share)
			if on.suite == numavm.Trixie { // the plugin's tests start each suite's Slurm
				t.Run("slurm", func(t *testing.T) { testSlurm(t, vm, on.suite, topo) })
				t.Run("commands", func(t *testing.T) { testCommands(t, vm) })
				t.Run("streaming", func(t *testing.T) { testStreaming(t, vm) })
				t.Run("put", func(t *testing.T) { testPut(t, vm) })
				t.Run("slurm anew", func(t *testing.T) { testSlurmAnew(t, vm) })
				t.Run("testroot", func(t *testing.T) { testTestroot(t, vm, topo) })
				t.Run("panic", func(t *testing.T) { testPanic(t, vm) })
			}
		})
	}
}

// testRelease is what a release's kernel and systemd have a say in.
func testRelease(t *testing.T, vm *numavm.VM, topo numavm.Topology, share string) {
	t.Run("cgroup", func(t *testing.T) { testCgroup(t, vm) })
	t.Run("topology", func(t *testing.T) { testTopology(t, vm, topo) })
	t.Run("timeout", func(t *testing.T) { testTimeout(t, vm) })
	t.Run("share", func(t *testing.T) { testShare(t, vm, share) })
}

// testCgroup: cgroup v2 and nothing else, with the cpuset controller.
func testCgroup(t *testing.T, vm *numavm.VM) {
	if got := output(t, vm, `awk '$3 ~ /^cgroup/ {print $3, $2}' /proc/mounts`); got != "cgroup2 /sys/fs/cgroup\n" {
		t.Errorf("cgroups mounted: %q", got)
	}
	controllers := strings.Fields(output(t, vm, "cat /sys/fs/cgroup/cgroup.controllers"))
	for _, c := range []string{"cpuset", "cpu", "memory", "pids"} {
		if !slices.Contains(controllers, c) {
			t.Errorf("controllers %v: no %s", controllers, c)
		}
	}
	// The agent must not have enabled more on the way down to itself than systemd does anyway.
	if got := output(t, vm, "cat /sys/fs/cgroup/system.slice/cgroup.subtree_control"); strings.Contains(got, "cpuset") {
		t.Errorf("controllers enabled in system.slice before Slurm runs: %q", got)
	}
}

// pciDevice is a stand-in as the guest's sysfs shows it.
type pciDevice struct {
	address string
	node    int
	cpus    string // local_cpulist
	vectors int    // MSI-X
}

const devicesScript = `
show() { echo "$1 ${2##*/} $(cat $2/numa_node) $(cat $2/local_cpulist) $(ls $2/msi_irqs | wc -l)"; }
for c in /sys/class/nvme/nvme*; do
	serial=$(tr -d ' ' < $c/serial)
	case $serial in GPU*) show $serial $(readlink -f $c/device);; esac
done
for n in /sys/class/net/*; do
	mac=$(cat $n/address)
	case $mac in 52:54:00:*) show NIC$((16#${mac##*:})) $(dirname $(readlink -f $n/device));; esac
done`

func devices(t *testing.T, vm *numavm.VM) map[string]pciDevice {
	t.Helper()
	found := map[string]pciDevice{}
	for line := range strings.Lines(output(t, vm, devicesScript)) {
		var name string
		var d pciDevice
		if _, err := fmt.Sscan(line, &name, &d.address, &d.node, &d.cpus, &d.vectors); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		found[name] = d
	}
	return found
}

// testTopology compares what the guest shows with what was asked for, in sysfs and in hwloc's eyes.
func testTopology(t *testing.T, vm *numavm.VM, topo numavm.Topology) {
	for id, n := range topo.Nodes {
		var row []string
		for _, d := range topo.Distances[id] {
			row = append(row, strconv.Itoa(d))
		}
		dir := fmt.Sprintf("/sys/devices/system/node/node%d", id)
		got := output(t, vm, fmt.Sprintf("cat %s/cpulist %s/distance", dir, dir))
		if want := n.CPUs + "\n" + strings.Join(row, " ") + "\n"; got != want {
			t.Errorf("node %d has CPUs and distances %q, want %q", id, got, want)
		}
	}
	l3 := strings.Fields(output(t, vm, "cat /sys/devices/system/cpu/cpu*/cache/index3/shared_cpu_list | sort -u"))
	if !slices.Equal(l3, topo.L3) {
		t.Errorf("L3 caches of CPUs %v, want %v", l3, topo.L3)
	}
	if got := output(t, vm, "cat /sys/devices/system/cpu/cpu*/topology/thread_siblings_list | sort -u"); got != "0-1\n2-3\n4-5\n6-7\n" {
		t.Errorf("threads of a core: %q", got)
	}
	found := devices(t, vm)
	places := hwlocPlaces(t, output(t, vm, "lstopo-no-graphics --of xml /tmp/lstopo.xml --force && cat /tmp/lstopo.xml"))
	for _, d := range topo.Devices {
		got, ok := found[d.Name]
		if !ok {
			t.Errorf("%s is not there: %+v", d.Name, found)
			continue
		}
		cpus := "0-7"
		if d.Node >= 0 {
			cpus = topo.Nodes[d.Node].CPUs
		}
		if got.node != d.Node || got.cpus != cpus || got.vectors < 2 {
			t.Errorf("%s is %+v, want it on node %d with local CPUs %s and MSI-X", d.Name, got, d.Node, cpus)
		}
		if places[got.address] != cpus {
			t.Errorf("%s at %s: hwloc puts it at CPUs %q, sysfs at %q", d.Name, got.address, places[got.address], cpus)
		}
	}
}

// hwlocObject is an object in hwloc's XML. Objects of I/O have no CPUs of their own.
type hwlocObject struct {
	Type    string        `xml:"type,attr"`
	CPUSet  string        `xml:"cpuset,attr"`
	BusID   string        `xml:"pci_busid,attr"`
	Objects []hwlocObject `xml:"object"`
}

// hwlocPlaces returns for each PCI device the CPUs of the object that it hangs below, as a list.
func hwlocPlaces(t *testing.T, text string) map[string]string {
	t.Helper()
	var topo struct {
		Objects []hwlocObject `xml:"object"`
	}
	d := xml.NewDecoder(strings.NewReader(text))
	d.Strict = false
	if err := d.Decode(&topo); err != nil {
		t.Fatalf("lstopo: %v in\n%s", err, text)
	}
	places := map[string]string{}
	var walk func(o hwlocObject, cpus string)
	walk = func(o hwlocObject, cpus string) {
		if o.CPUSet != "" {
			mask, err := strconv.ParseUint(strings.TrimPrefix(o.CPUSet, "0x"), 16, 64)
			if err != nil {
				t.Fatal(err)
			}
			cpus = idset.FromWords([]uint64{mask}).String()
		}
		if o.Type == "PCIDev" {
			places[o.BusID] = cpus
		}
		for _, c := range o.Objects {
			walk(c, cpus)
		}
	}
	for _, o := range topo.Objects {
		walk(o, "")
	}
	return places
}

func testCommands(t *testing.T, vm *numavm.VM) {
	res, err := vm.Run(t.Context(), `echo out; echo err >&2; echo "$GREETING"; exit 42`)
	if err != nil || res.Code != 42 || res.Output != "out\nerr\nhello all\n" {
		t.Errorf("%+v, %v", res, err)
	}
	res, err = vm.Exec(t.Context(), numavm.Command{Argv: []string{"sh", "-c", "kill -TERM $$"}})
	if err != nil || res.Code != 128+15 {
		t.Errorf("ended by a signal: %+v, %v", res, err)
	}
	// Much output arrives whole.
	const lines = 300000
	var want strings.Builder
	for i := range lines {
		fmt.Fprintln(&want, i+1)
	}
	if res, err = vm.Run(t.Context(), fmt.Sprintf("seq %d", lines)); err != nil || res.Output != want.String() {
		t.Errorf("%d bytes of output, code %d, %v; want %d", len(res.Output), res.Code, err, want.Len())
	}
}

// testStreaming: the first line is here while the command still runs.
func testStreaming(t *testing.T, vm *numavm.VM) {
	first := make(chan time.Time, 1)
	res, err := vm.Exec(t.Context(), numavm.Command{
		Argv:   []string{"sh", "-c", "echo first; sleep 3; echo second"},
		Stdout: writerFunc(func([]byte) { trySend(first, time.Now()) }),
	})
	end := time.Now()
	if err != nil || res.Output != "first\nsecond\n" {
		t.Fatalf("%+v, %v", res, err)
	}
	if early := end.Sub(<-first); early < 2*time.Second {
		t.Errorf("the first line came %s before the end, want about 3 s", early)
	}
}

type writerFunc func([]byte)

func (f writerFunc) Write(b []byte) (int, error) {
	f(b)
	return len(b), nil
}

func trySend[T any](c chan T, v T) {
	select {
	case c <- v:
	default:
	}
}

// testTimeout: a command that hangs is ended with everything that it started, in whatever session, and the machine is
// as usable as before.
func testTimeout(t *testing.T, vm *numavm.VM) {
	begin := time.Now()
	res, err := vm.Exec(t.Context(), numavm.Command{
		Argv: []string{"bash", "-c", "echo begun; setsid sleep 7777 & sleep 7777"}, Timeout: 3 * time.Second,
	})
	if !errors.Is(err, numavm.ErrTimeout) || res.Output != "begun\n" {
		t.Errorf("%+v, %v; want ErrTimeout", res, err)
	}
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("a timeout of 3 s took %s", took)
	}
	if got := output(t, vm, "pgrep -fx 'sleep 7777' || echo none"); got != "none\n" {
		t.Errorf("still running: %q", got)
	}
	// Without a timeout, what is left in the background lives on.
	if got := output(t, vm, "sleep 8888 & echo left"); got != "left\n" {
		t.Errorf("printed %q", got)
	}
	output(t, vm, "pkill -fx 'sleep 8888'")
}

// testShare: what is written on the host is seen at once, and cannot be changed from the guest.
func testShare(t *testing.T, vm *numavm.VM, dir string) {
	tool := filepath.Join(dir, "tool")
	for _, version := range []string{"one", "two, which is longer"} {
		fresh := tool + ".new"
		if err := os.WriteFile(fresh, []byte("#!/bin/sh\necho "+version+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(fresh, tool); err != nil {
			t.Fatal(err)
		}
		// The guest keeps names for a second (virtiofsd's cache=auto).
		time.Sleep(1100 * time.Millisecond)
		if got := output(t, vm, "/host/extra/tool"); got != version+"\n" {
			t.Errorf("printed %q, want %q", got, version)
		}
	}
	res, err := vm.Run(t.Context(), "mount -o remount,rw /host; echo x > /host/extra/tool; rm /host/extra/tool; touch /host/tree/x")
	if err != nil || res.Code == 0 || strings.Count(res.Output, "Read-only file system") < 3 {
		t.Errorf("writing from the guest: %+v, %v", res, err)
	}
	if got := output(t, vm, "head -n 1 /host/tree/go.mod"); got != "module gputune\n" {
		t.Errorf("the tree's go.mod begins with %q", got)
	}
}

func testPut(t *testing.T, vm *numavm.VM) {
	script := "#!/bin/sh\necho from $0\n"
	if err := vm.Put(t.Context(), "/opt/tools/mine", 0o755, strings.NewReader(script)); err != nil {
		t.Fatal(err)
	}
	if got := output(t, vm, "/opt/tools/mine; stat -c '%a %s' /opt/tools/mine"); got != fmt.Sprintf("from /opt/tools/mine\n755 %d\n", len(script)) {
		t.Errorf("got %q", got)
	}
	if err := vm.Put(t.Context(), "/proc/none/x", 0o644, strings.NewReader("x")); err == nil || !strings.Contains(err.Error(), "/proc/none") {
		t.Errorf("a place that cannot be written: %v", err)
	}
}

// openable prints the task's number and the minors that it can open: ENXIO says that the device cgroup lets it through, and
// EPERM that it does not.
const openable = `bash -c 'mine=; for i in 0 1 2 3; do case $( { : </dev/nvidia$i; } 2>&1) in *"No such device or address"*) mine+=" $i";; *"Operation not permitted"*) ;; *) mine+=" ?";; esac; done; echo $SLURM_PROCID$mine'`

// testSlurm: the suite's Slurm comes up with an idle node, and gives each of four tasks one GPU of its own.
func testSlurm(t *testing.T, vm *numavm.VM, s numavm.Suite, topo numavm.Topology) {
	said := output(t, vm, "slurm-up")
	if !strings.Contains(said, "Slurm "+s.Slurm()+".") || !strings.Contains(said, "node idle") {
		t.Errorf("slurm-up said %q, want Slurm %s", said, s.Slurm())
	}
	lines := strings.Split(strings.TrimSpace(output(t, vm, "srun -Q -n4 --gpus-per-task=1 "+openable)), "\n")
	slices.Sort(lines)
	seen := map[string]bool{}
	for i, l := range lines {
		task, minor, ok := strings.Cut(l, " ")
		if !ok || task != strconv.Itoa(i) || len(minor) != 1 || seen[minor] {
			t.Fatalf("tasks and the devices that they can open: %q; want one each", lines)
		}
		seen[minor] = true
	}
	if len(lines) != 4 {
		t.Errorf("tasks and the devices that they can open: %q; want four", lines)
	}
	// As an ordinary user, and with the status passed on.
	res, err := vm.Run(t.Context(), "runuser -u user -- srun -Q -n1 --chdir=/ sh -c 'id -un; exit 9'")
	if err != nil || res.Code != 9 || !strings.HasPrefix(res.Output, "user\n") {
		t.Errorf("as user: %+v, %v", res, err)
	}
	if failed := output(t, vm, "systemctl is-failed --quiet munge slurmctld slurmd && echo some; systemctl is-active munge slurmctld slurmd | sort -u"); failed != "active\n" {
		t.Errorf("units: %q", failed)
	}
	// gres.conf names the cores of each GPU's node.
	for _, l := range strings.Split(strings.TrimSpace(output(t, vm, "cat /run/numavm/gpus")), "\n") {
		f := strings.Fields(l)
		node, err := strconv.Atoi(f[3])
		if err != nil {
			t.Fatal(err)
		}
		want := "NodeName=node1 Name=gpu File=/dev/nvidia" + f[0] + "\n"
		if node >= 0 {
			cpus, err := idset.Parse(topo.Nodes[node].CPUs)
			if err != nil {
				t.Fatal(err)
			}
			want = fmt.Sprintf("NodeName=node1 Name=gpu File=/dev/nvidia%s Cores=%d-%d\n", f[0], cpus.Min()/2, cpus.Max()/2)
		}
		if got := output(t, vm, "grep File=/dev/nvidia"+f[0]+" /etc/slurm/gres.conf"); got != want {
			t.Errorf("gres.conf has %q, want %q", got, want)
		}
	}
}

// testSlurmAnew: a second slurm-up takes other settings and leaves nothing of the first: no job, no process, no plugin.
func testSlurmAnew(t *testing.T, vm *numavm.VM) {
	output(t, vm, "PLUGSTACK='# none' SLURM_EXTRA='SchedulerParameters=defer' SLURMD_PARAMETERS=config_overrides slurm-up")
	output(t, vm, `srun -Q -n2 sleep 9999 & until pgrep -f '^[^ ]*sleep 9999$' >/dev/null; do sleep 0.2; done`)
	if got := output(t, vm, "cat /etc/slurm/plugstack.conf; scontrol show config | grep -E '^(SchedulerParameters|SlurmdParameters)' | tr -s ' '"); got !=
		"# none\nSchedulerParameters = defer\nSlurmdParameters = config_overrides\n" {
		t.Errorf("settings: %q", got)
	}
	output(t, vm, "slurm-up")
	if got := output(t, vm, "pgrep -f '^[^ ]*sleep 9999$' || echo none; squeue -h; cd /etc/slurm; ls *.conf"); got != "none\ncgroup.conf\ngres.conf\nslurm.conf\n" {
		t.Errorf("left of the first: %q", got)
	}
	res, err := vm.Run(t.Context(), "NODELINE='SocketsPerBoard=1 CoresPerSocket=64' SLURM_WAIT=10 slurm-up")
	if err != nil || res.Code == 0 || !strings.Contains(res.Output, "not idle") || !strings.Contains(res.Output, "CoresPerSocket") {
		t.Errorf("a node with more cores than it has: %+v, %v; want it refused, with Slurm's reasons", res, err)
	}
}

// testTestroot: the root folder that testroot-up lays, with minors in another order than the PCI addresses.
func testTestroot(t *testing.T, vm *numavm.VM, topo numavm.Topology) {
	output(t, vm, "GPU_MINORS='2 0 3 1' testroot-up")
	byName := devices(t, vm)
	var addresses []string
	nodes := map[string]int{}
	for _, d := range topo.Devices {
		if d.Kind == numavm.GPU {
			addresses = append(addresses, byName[d.Name].address)
			nodes[byName[d.Name].address] = d.Node
		}
	}
	slices.Sort(addresses)
	root := "/run/testroot"
	var table []string
	uuids := map[string]bool{}
	for i, minor := range []int{2, 0, 3, 1} {
		pci := addresses[i]
		got := output(t, vm, "cat "+root+"/proc/driver/nvidia/gpus/"+pci+"/information")
		for _, want := range []string{
			"Model: \t\t NVIDIA H200\n", "Bus Location: \t " + pci + "\n", fmt.Sprintf("Device Minor: \t %d\n", minor), "GPU Excluded:\t No\n", "GPU UUID: \t GPU-",
		} {
			if !strings.Contains(got, want) {
				t.Errorf("information of %s has no %q:\n%s", pci, want, got)
			}
		}
		_, uuid, _ := strings.Cut(got, "GPU UUID: \t ")
		uuid, _, _ = strings.Cut(uuid, "\n")
		if len(uuid) != len("GPU-4b0480b4-0000-0000-0000-000000000000") || uuids[uuid[:12]] {
			t.Errorf("UUID %q: want one whose first digits are its own", uuid)
		}
		uuids[uuid[:12]] = true
		table = append(table, fmt.Sprintf("%d %s %s %d", minor, pci, uuid, nodes[pci]))
	}
	slices.Sort(table)
	if got := output(t, vm, "cat /run/numavm/gpus"); got != strings.Join(table, "\n")+"\n" {
		t.Errorf("/run/numavm/gpus is %q, want %q", got, table)
	}
	for _, c := range []struct{ script, want string }{
		{"cat " + root + "/proc/1/comm", "systemd\n"},
		{"cat " + root + "/proc/sys/vm/swappiness", output(t, vm, "cat /proc/sys/vm/swappiness")},
		{"mountpoint " + root + "/sys; cat " + root + "/sys/devices/system/node/online", root + "/sys is a mountpoint\n" + output(t, vm, "cat /sys/devices/system/node/online")},
		{"cut -d' ' -f1-8 " + root + "/proc/driver/nvidia/version | head -n 1", "NVRM version: NVIDIA UNIX Open Kernel Module for\n"},
		{"stat -c '%F %t %T' " + root + "/dev/nvidia3", "character special file c3 3\n"},
		{"ls -d /proc/driver/nvidia 2>/dev/null || echo none", "none\n"},
		{"PROC_DRIVER=1 testroot-up; ls /proc/driver/nvidia/gpus | wc -l", "4\n"},
		{"umount /proc/driver; testroot-up; head -n 1 /run/numavm/gpus | cut -d' ' -f1,2; ls /proc/driver", "0 " + addresses[0] + "\nrtc\n"},
	} {
		if got := output(t, vm, c.script); got != c.want {
			t.Errorf("%s: %q, want %q", c.script, got, c.want)
		}
	}
	res, err := vm.Run(t.Context(), "GPU_MINORS='0 1 2 2' testroot-up")
	if err != nil || res.Code == 0 || !strings.Contains(res.Output, `GPU_MINORS="0 1 2 2" is not an order of 0 1 2 3`) {
		t.Errorf("an order with one minor twice: %+v, %v", res, err)
	}
}

// testPanic: a panic of the guest ends what runs at once. It ends the machine, so it comes last.
func testPanic(t *testing.T, vm *numavm.VM) {
	begin := time.Now()
	_, err := vm.Run(t.Context(), "echo c > /proc/sysrq-trigger; sleep 1000")
	var ended *numavm.MachineError
	if !errors.As(err, &ended) || !strings.Contains(ended.Reason, "kernel panicked: sysrq triggered crash") || !strings.Contains(ended.Console, "Kernel panic") {
		t.Errorf("got %v", err)
	}
	if took := time.Since(begin); took > 30*time.Second {
		t.Errorf("noticed after %s", took)
	}
	if _, err := vm.Run(t.Context(), "true"); !errors.As(err, &ended) {
		t.Errorf("the next command: %v", err)
	}
}

// TestRestarts: what is on the disk outlives a reboot and, if flushed, a power cut; what is in /run does not. Nor does what
// other runners do meanwhile.
func TestRestarts(t *testing.T) {
	topo := topology(t, "n2")
	share := t.TempDir()
	vm := start(t, numavm.Options{Suite: numavm.Bookworm, Topology: topo, Shares: []numavm.Share{{Dir: share, Name: "extra"}}})
	testRelease(t, vm, topo, share)
	ids := map[string]bool{}
	check := func(what string) {
		t.Helper()
		id := output(t, vm, "cat /proc/sys/kernel/random/boot_id")
		if ids[id] {
			t.Errorf("%s: still boot %s", what, id)
		}
		ids[id] = true
		if got := output(t, vm, "cat /var/lib/mark 2>&1; ls /run/mark 2>/dev/null; head -n 1 /host/tree/go.mod"); got != what+"\nmodule gputune\n" {
			t.Errorf("after the %s: %q", what, got)
		}
	}
	ids[output(t, vm, "cat /proc/sys/kernel/random/boot_id")] = true
	output(t, vm, "echo reboot > /var/lib/mark; touch /run/mark")
	t.Run("other runners", testOtherRunners)
	if err := vm.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	check("reboot")
	output(t, vm, "echo power cut > /var/lib/mark; sync; touch /run/mark")
	if err := vm.PowerCycle(t.Context()); err != nil {
		t.Fatal(err)
	}
	check("power cut")
	if err := vm.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}

// testOtherRunners: two runners while a machine of this one's runs. When the first is killed, its QEMU and virtiofsd end too;
// the second has a disk of its own, and its command's exit status.
func testOtherRunners(t *testing.T) {
	program := filepath.Join(t.TempDir(), "numavm")
	if out, err := exec.Command("go", "build", "-o", program, "../cmd/numavm").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "run", "--suite", "bookworm", "--", "sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// Others of its children, such as the compiler of the agent, come before and end.
	children := map[string]int{}
	for deadline := time.Now().Add(3 * time.Minute); children["virtiofsd"] == 0 || children["qemu-system-x86"] == 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("after 3 minutes the runner's children are %v, want QEMU and virtiofsd", children)
		}
		children = childrenOf(t, cmd.Process.Pid)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		maps.DeleteFunc(children, func(_ string, pid int) bool {
			_, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
			return err != nil
		})
		if len(children) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("10 s after their runner was killed, %v still run", children)
		}
	}
	out, err := exec.CommandContext(ctx, program, "run", "--suite", "bookworm", "--", "sh", "-c", "cat /var/lib/mark && exit 1; echo other >/var/lib/mark; exit 5").CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 5 {
		t.Errorf("the next run: %v\n%s", err, out)
	}
}

// childrenOf returns the pids of a process's children by their names.
func childrenOf(t *testing.T, pid int) map[string]int {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]int{}
	for _, f := range tasks {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // the thread has ended
		}
		for _, w := range strings.Fields(string(b)) {
			n, err := strconv.Atoi(w)
			if err != nil {
				t.Fatal(err)
			}
			if name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", n)); err == nil {
				all[strings.TrimSpace(string(name))] = n
			}
		}
	}
	return all
}
