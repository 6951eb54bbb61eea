package cgroup

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const (
	hybridMounts = `21 1 0:20 / /sys rw - sysfs sysfs rw
31 21 0:28 / /sys/fs/cgroup rw,relatime shared:9 master:1 - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
36 31 0:33 / /sys/fs/cgroup/devices rw,relatime - cgroup cgroup rw,devices
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
`
	hybridMember = `9:name=systemd:/system.slice/slurmd.service
5:devices:/slurm/uid_0/job_3/step_0/task_1
3:cpuset:/slurm/uid_0/job_3/step_0
2:cpu,cpuacct:/
0::/system.slice/slurmd.service
`
)

func TestOf(t *testing.T) {
	const v1 = "sys/fs/cgroup/"
	for _, test := range []struct {
		name, member, mounts string
		folders              []string
		v2, devices, cpuset  string // below the root; "" none
		fails                string
	}{
		{
			name:   "v2",
			member: "0::/system.slice/slurmstepd.scope/job_1/step_0/user/task_0\n",
			mounts: "30 23 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n",
			v2:     "sys/fs/cgroup/system.slice/slurmstepd.scope/job_1/step_0/user/task_0",
		},
		{
			name: "hybrid", member: hybridMember, mounts: hybridMounts,
			v2:      v1 + "unified/system.slice/slurmd.service",
			devices: v1 + "devices/slurm/uid_0/job_3/step_0/task_1",
			cpuset:  v1 + "cpuset/slurm/uid_0/job_3/step_0",
		},
		{
			name:   "v1 without unified, controllers mounted together",
			member: "4:cpuset,devices:/a\n1:name=systemd:/\n",
			mounts: "30 23 0:26 / /sys/fs/cgroup/both rw - cgroup none rw,cpuset,devices\n",
			cpuset: v1 + "both/a", devices: v1 + "both/a",
		},
		{
			name:   "in the root",
			member: "0::/\n",
			mounts: "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
			v2:     "sys/fs/cgroup",
		},
		{
			name:   "a colon and blanks in the path",
			member: "0::/a: b/c\n",
			mounts: "30 23 0:26 / /mnt/c\\040g rw - cgroup2 cgroup2 rw\n",
			v2:     "mnt/c g/a: b/c",
		},
		{
			name:   "a part of the hierarchy is mounted",
			member: "0::/docker/abc/job\n",
			mounts: "30 23 0:26 /docker/abcd /elsewhere rw - cgroup2 cgroup2 rw\n31 23 0:26 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
			v2:     "sys/fs/cgroup/job",
		},
		{
			name:    "a name that only begins like the mounted part",
			member:  "0::/docker/abcd\n",
			mounts:  "31 23 0:26 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
			folders: []string{"sys/fs/cgroup/d", "sys/fs/cgroupd"},
			fails:   "/docker/abcd: not below any mount",
		},
		{
			name:    "the first mount is hidden",
			member:  "0::/a\n",
			mounts:  "30 23 0:26 / /hidden rw - cgroup2 cgroup2 rw\n31 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
			folders: []string{"hidden"},
			v2:      "sys/fs/cgroup/a",
		},
		{
			name:   "nothing is mounted",
			member: "0::/a\n",
			mounts: "22 1 0:5 / /proc rw - proc proc rw\n",
		},
		{
			name:   "outside of the cgroup namespace",
			member: "0::/../../x\n",
			mounts: "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
			fails:  "/../../x: not below any mount",
		},
		{
			name: "one hierarchy is not visible", member: hybridMember,
			mounts:  strings.Replace(hybridMounts, "0:33 / ", "0:33 /other ", 1),
			cpuset:  v1 + "cpuset/slurm/uid_0/job_3/step_0",
			v2:      v1 + "unified/system.slice/slurmd.service",
			fails:   "pid 7: /slurm/uid_0/job_3/step_0/task_1: not below",
			folders: []string{v1 + "devices/slurm/uid_0/job_3/step_0/task_1"},
		},
		{
			name:   "removed",
			member: "0::/system.slice/slurmstepd.scope/job_1 (deleted)\n",
			mounts: "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
			fails:  "job_1: its cgroup was removed",
		},
		{name: "not a membership", member: "0:/a\n", mounts: hybridMounts, fails: "/proc/7/cgroup: line \"0:/a\": want ID:controllers:/path"},
		{name: "a relative path", member: "0::a\n", mounts: hybridMounts, fails: "want ID:controllers:/path"},
		{name: "not a mountinfo", member: "0::/\n", mounts: "30 23 0:26 / /x rw\n", fails: "/proc/self/mountinfo: line"},
	} {
		t.Run(test.name, func(t *testing.T) {
			files := map[string]string{"proc/7/cgroup": test.member, "proc/self/mountinfo": test.mounts}
			for _, folder := range append(test.folders, test.v2, test.devices, test.cpuset) {
				files[folder+"/"] = ""
			}
			root := put(t, files)
			paths, err := Of(root, 7)
			if (err == nil) != (test.fails == "") || err != nil && !strings.Contains(err.Error(), test.fails) {
				t.Fatalf("error %v, want %q", err, test.fails)
			}
			for _, hierarchy := range []struct {
				name, want string
				got        Place
			}{{"v2", test.v2, paths.V2}, {"devices", test.devices, paths.Devices}, {"cpuset", test.cpuset, paths.Cpuset}} {
				want := ""
				if hierarchy.want != "" {
					want = filepath.Join(root, hierarchy.want)
				}
				if hierarchy.got.Dir != want || hierarchy.got.None() != (want == "") {
					t.Errorf("%s: %+v, want %s", hierarchy.name, hierarchy.got, want)
				}
			}
		})
	}
}

func TestOfNoProcess(t *testing.T) {
	root := put(t, map[string]string{"proc/self/mountinfo": hybridMounts})
	if _, err := Of(root, 7); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v", err)
	}
	root = put(t, map[string]string{"proc/7/cgroup": "0::/gone\n", "proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"})
	if _, err := Of(root, 7); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "/gone") {
		t.Errorf("folder that is not there: %v", err)
	}
	root = put(t, map[string]string{"proc/7/cgroup": "0::/x (deleted)\n", "proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"})
	if _, err := Of(root, 7); !errors.Is(err, ErrGone) {
		t.Errorf("removed cgroup: %v", err)
	}
}

func TestDeviceProcs(t *testing.T) {
	root, leaf := slurmV2(t)
	paths, err := Of(root, 100)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := paths.DeviceProcs(), leaf+"/cgroup.procs"; got != want {
		t.Errorf("v2: %s, want %s", got, want)
	}
	v1 := Paths{
		V2:      Place{Dir: "/c/unified/system.slice", Path: "/system.slice"},
		Devices: Place{Dir: "/c/devices/slurm/uid_0/job_3/step_0/task_1", Path: "/slurm/uid_0/job_3/step_0/task_1"},
	}
	if got, want := v1.DeviceProcs(), v1.Devices.Dir+"/cgroup.procs"; got != want {
		t.Errorf("v1: %s, want %s", got, want)
	}
	for _, path := range []string{"/", "/system.slice/slurmd.service", "/system.slice/slurmstepd.scope/job_7/step_0/slurm", ""} {
		none := Paths{V2: Place{Dir: "/c/unified" + path, Path: path}, Devices: Place{Dir: "/c/devices", Path: "/"}}
		if got := none.DeviceProcs(); got != "" {
			t.Errorf("%s: %s, want none", path, got)
		}
	}
}

// Of against another reading of the same facts: /proc/self/cgroup by hand and
// where findmnt says the hierarchies are.
func TestOfThisProcess(t *testing.T) {
	if _, err := exec.LookPath("findmnt"); err != nil {
		t.Skip(err)
	}
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Skip(err)
	}
	paths, err := Of("/", os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, hierarchy := range []struct {
		controller string
		got        Place
	}{{"", paths.V2}, {"devices", paths.Devices}, {"cpuset", paths.Cpuset}} {
		want := ""
		for line := range strings.SplitSeq(strings.TrimSpace(string(text)), "\n") {
			fields := strings.SplitN(line, ":", 3)
			if hierarchy.controller == "" && strings.HasPrefix(line, "0::") || hierarchy.controller != "" && strings.Contains(","+fields[1]+",", ","+hierarchy.controller+",") {
				want = fields[2]
			}
		}
		arguments := []string{"-n", "-f", "-o", "TARGET,FSROOT", "-t", "cgroup2"}
		if hierarchy.controller != "" {
			arguments = []string{"-n", "-f", "-o", "TARGET,FSROOT", "-t", "cgroup", "-O", hierarchy.controller}
		}
		output, err := exec.Command("findmnt", arguments...).Output()
		fields := strings.Fields(string(output))
		if err != nil || len(fields) < 2 || want == "" {
			if !hierarchy.got.None() {
				t.Errorf("%q: %+v, findmnt has none", hierarchy.controller, hierarchy.got)
			}
			continue
		}
		found++
		if fields[1] != "/" {
			t.Skipf("%s is a part of the hierarchy", fields[0])
		}
		if dir := filepath.Join(fields[0], want); hierarchy.got.Dir != dir || hierarchy.got.Path != want {
			t.Errorf("%q: %+v, want %s", hierarchy.controller, hierarchy.got, dir)
		}
	}
	if found == 0 {
		t.Skip("no cgroup hierarchy is mounted")
	}
	pids, err := Procs(firstPlace(paths))
	if err != nil {
		t.Fatal(err)
	}
	inside := false
	for _, pid := range pids {
		inside = inside || pid == os.Getpid()
	}
	if !inside {
		t.Errorf("this process %d is not in %s", os.Getpid(), firstPlace(paths).Dir)
	}
	if mems, err := MemsAllowed("/", os.Getpid()); err != nil || mems.Empty() {
		t.Errorf("MemsAllowed: %s, %v", mems, err)
	}
	set, err := paths.Effective()
	if errors.Is(err, ErrNoCpuset) {
		t.Skip(err)
	}
	if err != nil || set.CPUs.Empty() || set.Mems.Empty() {
		t.Errorf("Effective: %s, %v", set, err)
	}
}

func firstPlace(paths Paths) Place {
	for _, place := range []Place{paths.Cpuset, paths.Devices} {
		if !place.None() {
			return place
		}
	}
	return paths.V2
}

func FuzzMembership(f *testing.F) {
	f.Add(hybridMember)
	f.Add("0::/a (deleted)\n")
	f.Add("0::/../x")
	f.Fuzz(func(t *testing.T, text string) {
		members, err := parseMembership(text)
		if err != nil && members != nil {
			t.Fatal("members beside an error")
		}
		for controller, path := range members {
			if !strings.HasPrefix(path, "/") {
				t.Fatalf("%q: path %q", controller, path)
			}
			// Whatever the path says, the folder stays below the mount.
			place, err := locate("/root", controller, path, []mount{{[]string{controller}, "/", "/cg"}})
			if err == nil && !strings.HasPrefix(place.Dir, "/root/cg") {
				t.Fatalf("%q: folder %s", path, place.Dir)
			}
			if below, inside := relative("/", path); inside {
				if dir := filepath.Join("/root/cg", below); dir != "/root/cg" && !strings.HasPrefix(dir, "/root/cg/") {
					t.Fatalf("%q: folder %s", path, dir)
				}
			}
			KindOf(path)
		}
	})
}

func FuzzMounts(f *testing.F) {
	f.Add(hybridMounts)
	f.Add("30 23 0:26 / /c\\040g rw - cgroup2 x\n")
	f.Fuzz(func(t *testing.T, text string) {
		mounts, err := parseMounts(text)
		if err != nil {
			return
		}
		for _, m := range mounts {
			if m.point == "" {
				t.Fatalf("mount %+v", m)
			}
		}
	})
}
