package slurm

import (
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestReadCgroup(t *testing.T) {
	for _, test := range []struct {
		name, text string
		want       Cgroup
		bad        string
	}{
		{"empty", "", DefaultCgroup(), ""},
		{"a site's", `
###
# Slurm cgroup support configuration file
###
CgroupAutomount=yes
CgroupMountpoint="/sys/fs/cgroup/"
CgroupPlugin=cgroup/v2
ConstrainCores=yes
ConstrainDevices=YES
ConstrainKmemSpace=no
ConstrainRAMSpace=True
ConstrainSwapSpace=no
AllowedRAMSpace=100
`, Cgroup{true, true, true, "cgroup/v2", "/sys/fs/cgroup"}, ""},
		{"the last one counts", "constraincores=yes\nCONSTRAINCORES=no\n", DefaultCgroup(), ""},
		{"several on a line", "ConstrainCores=up ConstrainDevices=1", Cgroup{ConstrainCores: true, ConstrainDevices: true, Plugin: "autodetect", Mountpoint: "/sys/fs/cgroup"}, ""},
		{"not a boolean", "ConstrainDevices=maybe\nConstrainCores=yes", Cgroup{ConstrainCores: true, Plugin: "autodetect", Mountpoint: "/sys/fs/cgroup"}, "cgroup.conf:1: constraindevices=maybe: want yes or no"},
		{"mounted at the root", "CgroupMountpoint=/", Cgroup{Plugin: "autodetect", Mountpoint: "/"}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := ReadCgroup(filepath.Join(write(t, map[string]string{"cgroup.conf": test.text}), "cgroup.conf"))
			if got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
			if (err == nil) != (test.bad == "") || err != nil && !strings.HasSuffix(err.Error(), test.bad) {
				t.Errorf("error %v, want %q", err, test.bad)
			}
		})
	}
	got, err := ReadCgroup(filepath.Join(t.TempDir(), "cgroup.conf"))
	if !errors.Is(err, fs.ErrNotExist) || got != DefaultCgroup() {
		t.Errorf("missing file: %+v, %v", got, err)
	}
}

func TestReadSlurm(t *testing.T) {
	folder := write(t, map[string]string{
		"slurm.conf": `ClusterName=tux
SlurmctldHost=head(10.0.0.1)
TaskPlugin=affinity,task/cgroup
ProctrackType=proctrack/cgroup
GresTypes=gpu,mps
PrologFlags=Alloc, Contain
SlurmdParameters=config_overrides,numa_node_as_socket
JobContainerType=job_container/tmpfs
NodeName=DEFAULT CPUs=128 Gres=gpu:h100:8(S:0-1)
Include nodes.conf
PartitionName=main Nodes=ALL Default=YES
`,
		"nodes.conf": `NodeName=h[01-16]
NodeName=a[1-4] Gres=gpu:a100:4(S:0,1),gpu:v100:2,shard:8 RealMemory=1000
NodeName=c[1-9999999] Gres="" CPUs=2
NodeName=d1 Gres=gpu
NodeName=d2 Gres=gpu:no_consume:2,gpu:v100
NodeName=d3 Gres=GPU:2K
NodeName=a[bad Gres=gpu:1
`,
	})
	conf, err := ReadSlurm(filepath.Join(folder, "slurm.conf"))
	if err != nil {
		t.Fatal(err)
	}
	if !conf.HasTaskPlugin("task/affinity") || !conf.HasTaskPlugin("task/cgroup") || conf.HasTaskPlugin("task/none") {
		t.Errorf("TaskPlugin %q", conf.TaskPlugin)
	}
	if conf.ClusterName != "tux" || conf.ProctrackType != "proctrack/cgroup" || conf.JobContainerType != "job_container/tmpfs" {
		t.Errorf("got %+v", conf)
	}
	for _, list := range []struct {
		got, want []string
	}{
		{conf.GresTypes, []string{"gpu", "mps"}},
		{conf.PrologFlags, []string{"Alloc"}}, // a blank ends a value, as for Slurm
		{conf.SlurmdParameters, []string{"config_overrides", "numa_node_as_socket"}},
	} {
		if !slices.Equal(list.got, list.want) {
			t.Errorf("got %q, want %q", list.got, list.want)
		}
	}
	for _, test := range []struct {
		node string
		want []DeclaredGPU // nil: unknown
	}{
		{"h07", []DeclaredGPU{{"h100", 8}}},
		{"h7", nil},
		{"a4", []DeclaredGPU{{"a100", 4}, {"v100", 2}}},
		{"c123456", []DeclaredGPU{}},
		{"d1", []DeclaredGPU{{"", 1}}},
		{"d2", []DeclaredGPU{{"", 2}, {"v100", 1}}},
		{"d3", []DeclaredGPU{{"", maxDeclared}}},
		{"elsewhere", nil},
	} {
		got := conf.DeclaredGPUs(test.node)
		if !slices.Equal(got, test.want) || (got == nil) != (test.want == nil) {
			t.Errorf("%s: got %#v, want %#v", test.node, got, test.want)
		}
	}
}

func TestReadGres(t *testing.T) {
	folder := write(t, map[string]string{"gres.conf": `# a site's
AutoDetect=NVML
Name=gpu Type=gtx560 File=/dev/nvidia0 COREs=0,1
Name=mps Count=100 File=/dev/nvidia[0-1]
NodeName=tux[0-7] AutoDetect=off Name=gpu File=/dev/nvidia[0-3]
NodeName=tux8 AutoDetect=nvidia
NodeName=mig1 Name=gpu Type=1g.10gb MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap[21-22]
NodeName=x[ Name=gpu File=/dev/nvidia0
Name=gpu File=/dev/nvidia[0-3] Count=3
Name=gpu File=/dev/nvidia0 MultipleFiles=/dev/nvidia1,/dev/nvidia2
Name=gpu Count=many
Name=gpu Count=2
Name=gpu MultipleFiles=,
Future=yes
`})
	gres, err := ReadGres(filepath.Join(folder, "gres.conf"))
	if gres.AutoDetect != "nvml" {
		t.Errorf("AutoDetect %q", gres.AutoDetect)
	}
	want := []GresRecord{
		{Name: "gpu", Type: "gtx560", Files: []string{"/dev/nvidia0"}, Count: 1},
		{Name: "mps", Files: []string{"/dev/nvidia0", "/dev/nvidia1"}, Count: 100},
		{NodeName: "tux[0-7]", AutoDetect: "off", Name: "gpu", Files: []string{"/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2", "/dev/nvidia3"}, Count: 4},
		{NodeName: "tux8", AutoDetect: "nvidia", Count: 1},
		{NodeName: "mig1", Name: "gpu", Type: "1g.10gb", Files: []string{"/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap21", "/dev/nvidia-caps/nvidia-cap22"}, Multiple: true, Count: 1},
		{Name: "gpu", Count: 2},
		{Name: "gpu", Count: 1},
	}
	if !slices.EqualFunc(gres.Records, want, equalRecords) {
		t.Errorf("records\n%+v\nwant\n%+v", gres.Records, want)
	}
	for _, text := range []string{"gres.conf:8: NodeName:", "gres.conf:9: a Count of 3 for 4 devices", "gres.conf:10: both", "gres.conf:11: Count=many"} {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("error %v lacks %q", err, text)
		}
	}
	for node, want := range map[string]string{"tux3": "off", "tux8": "nvidia", "tux9": "nvml", "": "nvml"} {
		if got := gres.autoDetect(node); got != want {
			t.Errorf("AutoDetect of %q: %q, want %q", node, got, want)
		}
	}
	if _, err := ReadGres(filepath.Join(folder, "none.conf")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
}

func equalRecords(a, b GresRecord) bool {
	files := slices.Equal(a.Files, b.Files)
	a.Files, b.Files = nil, nil
	return files && a.NodeName == b.NodeName && a.Name == b.Name && a.Type == b.Type &&
		a.AutoDetect == b.AutoDetect && a.Multiple == b.Multiple && a.Count == b.Count
}

func TestConfPath(t *testing.T) {
	for _, test := range []struct {
		environment map[string]string
		path, node  string
		known       bool
	}{
		{map[string]string{"SLURM_CONF": "/run/slurm/conf/slurm.conf", "SLURMD_NODENAME": "n1"}, "/run/slurm/conf/slurm.conf", "n1", true},
		{map[string]string{"SLURM_CONF": "slurm.conf"}, "/etc/slurm/slurm.conf", "", false},
		{nil, "/etc/slurm/slurm.conf", "", false},
	} {
		if got := ConfPath(from(test.environment)); got != test.path {
			t.Errorf("ConfPath(%v) = %s, want %s", test.environment, got, test.path)
		}
		if got, known := NodeName(from(test.environment)); got != test.node || known != test.known {
			t.Errorf("NodeName(%v) = %s, %v", test.environment, got, known)
		}
	}
}

// from returns a getenv over a map.
func from(environment map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		value, found := environment[name]
		return value, found
	}
}
