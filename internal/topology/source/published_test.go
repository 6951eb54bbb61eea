package source_test

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gputune/internal/topology"
	"gputune/internal/topology/source"
	"gputune/tests/published"
)

// indexed is one line of the folder's INDEX.tsv.
type indexed struct{ file, kind, gpus, expected string }

func index(t *testing.T, folder string) []indexed {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(folder, "INDEX.tsv"))
	if err != nil {
		t.Fatal(err)
	}
	var lines []indexed
	for line := range strings.Lines(string(content)) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(fields) != 7 {
			t.Fatalf("INDEX.tsv: %q has %d columns", line, len(fields))
		}
		lines = append(lines, indexed{fields[0], fields[1], fields[4], fields[6]})
	}
	return lines[1:]
}

func open(t *testing.T, path string) (*topology.Machine, topology.Source) {
	t.Helper()
	m, from, err := source.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if from.File != path || from.Kind != m.Source {
		t.Errorf("source %q, file %q: want %q and %q", from.Kind, from.File, m.Source, path)
	}
	return m, from
}

// facts are what is known about the GPUs: "0: 0-23 node 0", and what NUMA nodes
// there are.
func gpuFacts(m *topology.Machine) []string {
	var facts []string
	for _, gpu := range m.GPUs {
		facts = append(facts, fmt.Sprintf("%s node %s", cmp.Or(gpu.CPUs.String(), "-"), cmp.Or(gpu.Nodes.String(), "-")))
	}
	return facts
}

// tableExpectation matches "GPU0-3: 0-23,48-71 node 0" and "GPU0 (0000:21:00.0): 0-63 node 0".
var tableExpectation = regexp.MustCompile(`^GPU(\d+)(?:-(\d+))?(?: \([^)]*\))?: ([0-9,-]*[0-9])(?: \(rest not shown\))?(?:,? (?:CPU )?node (\d+))?(?:[,; (].*)?$`)

// tables says what the index tells in other words, and where the table states
// less than the index, which knows the machine from elsewhere.
var tables = map[string][]string{
	// Every GPU has the CPUs and nodes of the process that asked.
	"azure-nc96v4-4-affinity-0-numa-0-3.txt":             repeat(4, "0 node -"),
	"dgx-a100-8-all-gpus-112-127-numa-6-7.truncated.txt": repeat(8, "112-127,240-255 node -"),
	"k80-4-slurm-4cpus-soc-header-unindented.txt":        repeat(4, "0-3 node -"),
	"slurm-a100-2-64cores-socket0-empty-affinity.txt":    {"0-63 node 0", "- node 1"},
	"gb200-4-hand-aligned-with-facts.txt":                {"0-71 node 0", "0-71 node 0", "72-143 node 1", "72-143 node 1"},
	"v100-8-no-affinity-column-blank-lines.txt":          repeat(8, "- node -"),
	"vllm-collect-env-2-interleaved-affinity-cut.txt":    repeat(2, "- node 0"),
	"8gpu-2017-mlx4-trailing-blanks.truncated.txt":       append(append(repeat(4, "0-9,20-29 node -"), "10-19,30-39 node -"), repeat(3, "- node -")...),
}

func repeat(n int, fact string) []string { return slices.Repeat([]string{fact}, n) }

// wantOfTable turns the index' words into facts. GPUs whose rows are cut off
// have none.
func wantOfTable(t *testing.T, line indexed) []string {
	t.Helper()
	if want := tables[filepath.Base(line.file)]; want != nil {
		return want
	}
	count, err := strconv.Atoi(line.gpus)
	if err != nil {
		t.Fatalf("number of GPUs %q", line.gpus)
	}
	want := repeat(count, "- node -")
	for part := range strings.SplitSeq(line.expected, "; ") {
		if strings.HasSuffix(part, " is GPU memory") {
			continue
		}
		found := tableExpectation.FindStringSubmatch(strings.TrimSpace(part))
		if found == nil {
			t.Fatalf("%q is in none of the index' ways to say it", part)
		}
		first, _ := strconv.Atoi(found[1])
		last := first
		if found[2] != "" {
			last, _ = strconv.Atoi(found[2])
		}
		for gpu := first; gpu <= last; gpu++ {
			want[gpu] = found[3] + " node " + cmp.Or(found[4], "-")
		}
	}
	return want
}

func TestPublishedTables(t *testing.T) {
	folder := published.Folder(t)
	read := 0
	for _, line := range index(t, folder) {
		if line.kind != "topo -m" {
			continue
		}
		read++
		t.Run(filepath.Base(line.file), func(t *testing.T) {
			m, from := open(t, filepath.Join(folder, line.file))
			if got, want := gpuFacts(m), wantOfTable(t, line); !slices.Equal(got, want) {
				t.Errorf("GPUs\n  are  %q\n  want %q\n  for  %q\n  unknown %q", got, want, line.expected, from.Unknown)
			}
			if from.Kind != topology.KindNVIDIASMI {
				t.Errorf("kind %q", from.Kind)
			}
		})
	}
	t.Logf("read %d tables", read)
}

// ncclExpectation matches "numa1[20-39]: 0005:00:00.0,0006:00:00.0".
var ncclExpectation = regexp.MustCompile(`^numa(\d+)\[([^\]]*)\]: (\S+)$`)

func TestPublishedNCCL(t *testing.T) {
	folder := published.Folder(t)
	read := 0
	for _, line := range index(t, folder) {
		if line.kind != "NCCL XML" {
			continue
		}
		read++
		t.Run(filepath.Base(line.file), func(t *testing.T) {
			m, _ := open(t, filepath.Join(folder, line.file))
			var want []string
			for part := range strings.SplitSeq(line.expected, " ; ") {
				found := ncclExpectation.FindStringSubmatch(part)
				if found == nil {
					t.Fatalf("%q is in none of the index' ways to say it", part)
				}
				if found[3] == "-" {
					continue
				}
				for pci := range strings.SplitSeq(found[3], ",") {
					want = append(want, pci+" "+found[2]+" node "+found[1])
				}
			}
			slices.Sort(want)
			var got []string
			for i, fact := range gpuFacts(m) {
				got = append(got, m.GPUs[i].PCI+" "+fact)
			}
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("GPUs\n  are  %q\n  want %q", got, want)
			}
		})
	}
	t.Logf("read %d NCCL topologies", read)
}

// hwlocExpectation matches "0004:04:00.0 cpus=0-87 nodes=0 (renderD128+card0)".
var (
	hwlocExpectation = regexp.MustCompile(`^([0-9a-f:.]+) cpus=(\S+) nodes=(\S+) `)
	nodeExpectation  = regexp.MustCompile(`^n(\d+)=(\S+)$`)
)

func TestPublishedHwloc(t *testing.T) {
	folder := published.Folder(t)
	read := 0
	for _, line := range index(t, folder) {
		if line.kind != "hwloc XML" {
			continue
		}
		read++
		t.Run(filepath.Base(line.file), func(t *testing.T) {
			m, _ := open(t, filepath.Join(folder, line.file))
			facts := gpuFacts(m)
			gpus := 0
			for part := range strings.SplitSeq(line.expected, "; ") {
				if found := nodeExpectation.FindStringSubmatch(part); found != nil {
					id, _ := strconv.Atoi(found[1])
					at := slices.IndexFunc(m.Nodes, func(n topology.Node) bool { return n.ID == id })
					if at < 0 || cmp.Or(m.Nodes[at].CPUs.String(), "(none)") != found[2] {
						t.Errorf("node %d: want %s; have %+v", id, found[2], m.Nodes)
					}
					continue
				}
				found := hwlocExpectation.FindStringSubmatch(part)
				if found == nil {
					t.Fatalf("%q is in none of the index' ways to say it", part)
				}
				gpus++
				at := slices.IndexFunc(m.GPUs, func(gpu topology.GPU) bool { return gpu.PCI == found[1] })
				if at < 0 || facts[at] != found[2]+" node "+found[3] {
					t.Errorf("want %s; have %q", part, facts)
				}
			}
			if len(m.GPUs) != gpus || line.gpus != strconv.Itoa(gpus) {
				t.Errorf("%d GPUs, want %d and %s", len(m.GPUs), gpus, line.gpus)
			}
		})
	}
	t.Logf("read %d XML files of hwloc", read)
}

// TestPublishedArchives reads archives of the sys and proc of machines.
func TestPublishedArchives(t *testing.T) {
	folder := published.Folder(t)
	read := 0
	for _, line := range index(t, folder) {
		if line.kind != "sysfs tarball" {
			continue
		}
		read++
		t.Run(filepath.Base(line.file), func(t *testing.T) {
			m, from := open(t, filepath.Join(folder, line.file))
			if from.Kind != topology.KindSysfs || m.CPUs.Empty() || len(m.Cores) == 0 {
				t.Errorf("kind %q, CPUs %q, %d cores", from.Kind, m.CPUs, len(m.Cores))
			}
		})
	}
	t.Logf("read %d archives", read)
}

// TestPublishedLists reads tables with the lists of CPUs that people configured
// for machines with up to 24 GPUs.
func TestPublishedLists(t *testing.T) {
	content, err := os.ReadFile(filepath.Join(published.Folder(t), "mlperf/numa_config.tsv"))
	if err != nil {
		t.Fatal(err)
	}
	read := 0
	for line := range strings.Lines(string(content)) {
		config, _, _ := strings.Cut(line, "\t")
		if config == "numa_config" {
			continue
		}
		read++
		lists := make(map[int]string)
		for part := range strings.SplitSeq(config, "&") {
			gpus, cpus, ok := strings.Cut(part, ":")
			set, err := topology.ParseList(gpus)
			if !ok || err != nil {
				t.Fatalf("%q: %v", part, err)
			}
			for gpu := range set.All() {
				lists[gpu] = cpus
			}
		}
		var values, want []string
		for gpu := range len(lists) {
			values = append(values, lists[gpu])
			set, err := topology.ParseList(lists[gpu])
			if err != nil {
				t.Fatalf("%q: GPU %d: %v", config, gpu, err)
			}
			if strings.Count(lists[gpu], ",") == 5 {
				want = append(want, "- node -") // might be cut
			} else {
				want = append(want, set.String()+" node -")
			}
		}
		expect(t, config, gpuFacts(parsed(t, table("CPU Affinity", values...))), want...)
	}
	t.Logf("read %d lists", read)
}
