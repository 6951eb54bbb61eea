//go:build slurm

package slurm

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gputune/tests/slurm/bed"
	"gputune/tests/slurm/site"
)

// variables has templates of each kind.
const variables = `[environment]
NCCL_IB_HCA = "={nic}"
UCX_NET_DEVICES = "{nics}:1"
NODE_OF_GPU = "{node}"
MALLOC_CONF = "narenas:8"
`

// put writes a file of the described machine.
func put(t *testing.T, s *site.Site, path, text string) {
	t.Helper()
	path = filepath.Join(s.Folder, "machine", path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}

// addNIC gives the described machine a network device: below a GPU's root port, or
// below one of its own.
func addNIC(t *testing.T, s *site.Site, pci, port, node, name, state string) {
	t.Helper()
	at := fmt.Sprintf("devices/pci%s/%s/%s", port[:len("0000:00")], port, pci)
	for file, text := range map[string]string{"class": "0x020700", "vendor": "0x15b3", "numa_node": node, "infiniband/" + name + "/node_type": "1: CA"} {
		put(t, s, "sys/"+at+"/"+file, text)
	}
	put(t, s, "sys/class/infiniband/"+name+"/ports/1/state", state)
	if err := os.Symlink("../../../"+at, filepath.Join(s.Folder, "machine/sys/bus/pci/devices", pci)); err != nil {
		t.Fatal(err)
	}
}

// startWithNICs starts a site on a machine with a network device beside GPU 0, one
// beside GPU 1, and two on node 1. The one that is nearest to GPU 1 is down.
func startWithNICs(t *testing.T, options bed.Options) *site.Site {
	t.Helper()
	s := start(t, site.Options{Config: variables, Bed: options})
	port := func(gpu int) string { return s.Machine.GPUs[gpu].Bridges[0].PCI }
	const up = "4: ACTIVE"
	addNIC(t, s, "0000:18:00.0", port(0), "0", "mlx5_0", up)
	addNIC(t, s, "0000:3e:00.0", port(1), "0", "mlx5_1", "1: DOWN")
	addNIC(t, s, "0000:a1:00.0", "0000:a0:01.0", "1", "mlx5_2", up)
	addNIC(t, s, "0000:a2:00.0", "0000:a0:02.0", "1", "mlx5_3", up)
	return s
}

const showVariables = `echo "$SLURM_PROCID hca$NCCL_IB_HCA ucx=$UCX_NET_DEVICES node=$NODE_OF_GPU malloc=$MALLOC_CONF"`

func linesOf(text string) []string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	slices.Sort(lines)
	return lines
}

// Each task has the site's variables for its GPU, and the user's own stay.
func TestVariables(t *testing.T) {
	t.Parallel()
	for name, options := range map[string]bed.Options{"devices constrained": {ConstrainDevices: true}, "devices open": {}} {
		t.Run(name, func(t *testing.T) {
			s := startWithNICs(t, options)
			four := []string{"-Q", "-n2", "--gpus=4", "srun", "-Q", "-n4", "-O", "--gpu-bind=map_gpu:3,1,2,0"}
			want := []string{
				"0 hca=mlx5_2 ucx=mlx5_2,mlx5_3:1 node=1 malloc=narenas:8", "1 hca=mlx5_0 ucx=mlx5_0:1 node=0 malloc=narenas:8",
				"2 hca=mlx5_3 ucx=mlx5_3,mlx5_2:1 node=1 malloc=narenas:8", "3 hca=mlx5_0 ucx=mlx5_0:1 node=0 malloc=narenas:8",
			}
			if !options.ConstrainDevices { // which GPU is whose only the tasks know: the devices take turns by GPU
				want[0] = strings.ReplaceAll(want[0], "mlx5_2 ucx=mlx5_2,mlx5_3", "mlx5_3 ucx=mlx5_3,mlx5_2")
				want[2] = strings.ReplaceAll(want[2], "mlx5_3 ucx=mlx5_3,mlx5_2", "mlx5_2 ucx=mlx5_2,mlx5_3")
			}
			got := must(t, s, "salloc", append(four, "--gpu-numa-bind=quiet", "sh", "-c", showVariables)...)
			if lines := linesOf(got.Stdout); !slices.Equal(lines, want) || got.Stderr != "" {
				t.Errorf("%s\nwant %s", got, strings.Join(want, "\n"))
			}
			// Not bound: none of it.
			if got := must(t, s, "srun", "-Q", "-n1", "--gpus=1", "sh", "-c", showVariables); got.Stdout != "0 hca ucx= node= malloc=\n" {
				t.Errorf("without the option: %v", got)
			}
			// The user's own, even if empty.
			command := s.Command("srun", "-Q", "-n1", "--gpus=1", "--gpu-numa-bind=verbose", "sh", "-c", showVariables)
			command.Env = []string{"NCCL_IB_HCA==mine", "MALLOC_CONF="}
			own, err := command.Run(t.Context())
			if err != nil || own.Stdout != "0 hca=mine ucx=mlx5_0:1 node=0 malloc=\n" ||
				!strings.Contains(own.Stderr, "; MALLOC_CONF kept: it was set; NCCL_IB_HCA kept: it was set\n") {
				t.Errorf("the user's own: %v, %v", own, err)
			}
			// A task with GPUs of two places, and one without any.
			if got := must(t, s, "srun", "-Q", "-n1", "--gpus=4", "--gpu-numa-bind=quiet", "sh", "-c", showVariables); !strings.HasSuffix(got.Stdout, " node=0-1 malloc=narenas:8\n") {
				t.Errorf("all GPUs: %v", got)
			}
			none := must(t, s, "srun", "-Q", "-n1", "--gpu-numa-bind=verbose", "sh", "-c", showVariables)
			if none.Stdout != "0 hca ucx= node= malloc=narenas:8\n" || !strings.Contains(none.Stderr, "; NODE_OF_GPU not set: what it needs is not known;") {
				t.Errorf("no GPU: %v", none)
			}
		})
	}
}

// What a batch script was given is not taken for the user's own by the steps in it.
func TestVariablesOfInnerSteps(t *testing.T) {
	t.Parallel()
	s := startWithNICs(t, bed.Options{ConstrainDevices: true})
	script, output := filepath.Join(s.Dir, "work", "variables.sh"), filepath.Join(s.Dir, "work", "variables.out")
	two := "srun -Q -n2 -O --gpus=4 --gpu-bind=map_gpu:2,0 sh -c '" + showVariables + "' | sort\n"
	text := "#!/bin/sh\n" + showVariables + "\n" + two +
		"srun -Q -n1 --gpus=1 --gpu-numa-bind=off sh -c '" + showVariables + "; env | grep ^GPUTUNE_; true'\n" +
		"export NCCL_IB_HCA==mine\n" + two
	if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	must(t, s, "sbatch", "-W", "-n1", "--gpus=4", "--gpu-numa-bind=quiet", "-o", output, script)
	got, err := os.ReadFile(output)
	want := "0 hca=mlx5_0 ucx=mlx5_0:1 node=0-1 malloc=narenas:8\n" +
		"0 hca=mlx5_2 ucx=mlx5_2,mlx5_3:1 node=1 malloc=narenas:8\n" +
		"1 hca=mlx5_0 ucx=mlx5_0:1 node=0 malloc=narenas:8\n" +
		"0 hca ucx= node= malloc=\n" +
		"0 hca=mine ucx=mlx5_2,mlx5_3:1 node=1 malloc=narenas:8\n" +
		"1 hca=mine ucx=mlx5_0:1 node=0 malloc=narenas:8\n"
	if err != nil || string(got) != want {
		t.Errorf("%v, got\n%s\nwant\n%s", err, got, want)
	}
}

// The same without the plugin: what binds itself in a step has them, and what the step
// was given is not taken for the user's own.
func TestVariablesOfExec(t *testing.T) {
	t.Parallel()
	s := startWithNICs(t, bed.Options{ConstrainDevices: true})
	tree, err := site.Tree()
	if err != nil {
		t.Fatal(err)
	}
	job := []string{"-Q", "-n2", "--gpus=4", "srun", "-Q", "-n4", "-O", "--gpu-bind=none", "--cpu-bind=none"}
	bound := []string{filepath.Join(tree, "build/bin/gputune"), "exec", "--config", filepath.Join(s.Folder, "gputune.toml"), "--bind=quiet,mem=none", "--", "sh", "-c", showVariables}
	want := []string{
		"0 hca=mlx5_0 ucx=mlx5_0:1 node=0 malloc=narenas:8", "1 hca=mlx5_0 ucx=mlx5_0:1 node=0 malloc=narenas:8",
		"2 hca=mlx5_2 ucx=mlx5_2,mlx5_3:1 node=1 malloc=narenas:8", "3 hca=mlx5_3 ucx=mlx5_3,mlx5_2:1 node=1 malloc=narenas:8",
	}
	for _, option := range []string{"off", "quiet", "quiet,gpus=all,cpus=none"} {
		got := must(t, s, "salloc", slices.Concat(job, []string{"--gpu-numa-bind=" + option}, bound)...)
		if lines := linesOf(got.Stdout); !slices.Equal(lines, want) {
			t.Errorf("in a step with %s: %s\nwant %s", option, got, strings.Join(want, "\n"))
		}
	}
}
