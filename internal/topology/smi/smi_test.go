package smi_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"gputune/internal/topology"
	"gputune/internal/topology/smi"
)

// facts are a GPU's CPUs and node each, "0-23@0".
func facts(m *topology.Machine) string {
	var all []string
	for _, gpu := range m.GPUs {
		all = append(all, cmp.Or(gpu.CPUs.String(), "-")+"@"+cmp.Or(gpu.Nodes.String(), "-"))
	}
	return strings.Join(all, " ")
}

// matrix is what nvidia-smi prints for GPUs with these values, one string each
// with tabs between the columns.
func matrix(titles string, values ...string) string {
	var b strings.Builder
	for i := range values {
		fmt.Fprintf(&b, "\tGPU%d", i)
	}
	b.WriteString("\t" + titles + "\n")
	for i, value := range values {
		fmt.Fprintf(&b, "GPU%d", i)
		for k := range values {
			b.WriteString("\t" + map[bool]string{true: " X ", false: "SYS"}[i == k])
		}
		b.WriteString("\t" + value + "\n")
	}
	return b.String()
}

// expand turns tabs into blanks as a terminal does.
func expand(text string) string {
	var b strings.Builder
	column := 0
	for _, c := range text {
		switch c {
		case '\t':
			n := 8 - column%8
			b.WriteString(strings.Repeat(" ", n))
			column += n
		case '\n':
			b.WriteRune(c)
			column = 0
		default:
			b.WriteRune(c)
			column++
		}
	}
	return b.String()
}

const (
	old    = "CPU Affinity"
	middle = "CPU Affinity\tNUMA Affinity"
	recent = "CPU Affinity\tNUMA Affinity\tGPU NUMA ID"
)

// TestGenerations reads the columns of all drivers, with each value that can be
// missing, with tabs and as a terminal shows them.
func TestGenerations(t *testing.T) {
	for name, c := range map[string]struct {
		titles string
		values []string
		want   string
	}{
		"CPUs":                     {old, []string{"0-5", "6-11"}, "0-5@- 6-11@-"},
		"nodes":                    {middle, []string{"0-5\t0", "6-11\t1"}, "0-5@0 6-11@1"},
		"no nodes":                 {middle, []string{"0-5\tN/A", "0-5\tN/A"}, "0-5@- 0-5@-"},
		"GPU nodes":                {recent, []string{"0-71\t0\t\t2", "72-143\t1\t\t10"}, "0-71@0 72-143@1"},
		"one tab":                  {recent, []string{"0-71\t0\tN/A", "72-143\t1\tN/A"}, "0-71@0 72-143@1"},
		"no CPUs":                  {recent, []string{"0-63\t0\t\tN/A", "\t1\t\tN/A"}, "0-63@0 -@1"},
		"no CPUs anywhere":         {recent, []string{"\t0\t\tN/A", "\t1\t\tN/A"}, "-@0 -@1"},
		"no CPUs, no GPU nodes":    {middle, []string{"0-63\t0", "\t1"}, "0-63@0 -@1"},
		"CPUs only":                {recent, []string{"0-63\t0\t\tN/A", "64-127\t\t\tN/A"}, "0-63@0 64-127@-"},
		"long list, no GPU node":   {recent, []string{"0-15,32-47,64-79,96-111\t0\t\tN/A", "16-31,48-63,80-95,112-127\t1\t\t"}, "0-15,32-47,64-79,96-111@0 16-31,48-63,80-95,112-127@1"},
		"nothing":                  {recent, []string{"0-63\t0\t\tN/A", "\t\t\tN/A"}, "0-63@0 -@-"},
		"sparse nodes":             {middle, []string{"0-63\t0", "64-127\t8"}, "0-63@0 64-127@8"},
		"the asker's nodes":        {middle, []string{"112-127\t6-7", "112-127\t6-7"}, "112-127@- 112-127@-"},
		"several nodes":            {middle, []string{"0-15\t0-1", "16-31\t2-3"}, "0-15@0-1 16-31@2-3"},
		"nodes with GPUs' memory":  {recent, []string{"0-71\t0,2-17\t\tN/A", "0-71\t0,2-17\t\tN/A", "72-143\t1,18-33\t\tN/A", "72-143\t1,18-33\t\tN/A"}, "0-71@0 0-71@0 72-143@1 72-143@1"},
		"less than all of those":   {recent, []string{"0-71\t0,3-9\t\t2", "72-143\t1,11-17\t\t10"}, "0-71@0 72-143@1"},
		"cut after six":            {middle, []string{"0,2,4,6,8,10\t0", "1,3,5,7,9,11\t1"}, "-@0 -@1"},
		"seven are whole":          {middle, []string{"0,2,4,6,8,10,12\t0", "1,3,5,7,9,11,13\t1"}, "0,2,4,6,8,10,12@0 1,3,5,7,9,11,13@1"},
		"cut at a comma":           {middle, []string{"0,2,4,\t0", "1,3,5\t1"}, "-@0 1,3,5@1"},
		"one GPU":                  {recent, []string{"0-19\t0\t\tN/A"}, "0-19@0"},
		"one GPU on several nodes": {recent, []string{"0-19\t0-1\t\tN/A"}, "0-19@-"},
		"ten GPUs":                 {middle, slices.Repeat([]string{"0-7\t0"}, 10), strings.TrimSpace(strings.Repeat("0-7@0 ", 10))},
	} {
		t.Run(name, func(t *testing.T) {
			plain := matrix(c.titles, c.values...)
			for form, text := range map[string]string{
				"tabs":             plain,
				"blanks":           expand(plain),
				"carriage return":  strings.ReplaceAll(plain, "\n", "\r\n"),
				"underlined":       strings.Replace("\x1b[4m"+plain, "\n", "\x1b[0m\n", 1),
				"escape lost":      strings.Replace("\t[4m"+plain[1:], "\n", "[0m\n", 1),
				"comment":          "# " + strings.ReplaceAll(strings.TrimSpace(plain), "\n", "\n# "),
				"srun --label":     "3: " + strings.ReplaceAll(strings.TrimRight(plain, "\n"), "\n", "\n3: "),
				"blanks, labelled": "node1: " + strings.ReplaceAll(strings.TrimRight(expand(plain), "\n"), "\n", "\nnode1: "),
				"log":              "2026-01-01T00:00:00 node1 GPUs: \n" + plain + "\nLegend:\n\n  X    = Self\n  NV#  = GPU0 to GPU1\n",
				"second matrix":    plain + "\n" + matrix(middle, "99\t9"),
				"after topo -p2p":  strings.NewReplacer("SYS", "OK", "\t"+c.titles, "").Replace(matrix(c.titles, make([]string, len(c.values))...)) + "\n" + plain,
			} {
				m, unknown, err := smi.Parse([]byte(text))
				if err != nil {
					t.Fatalf("%s: %v:\n%s", form, err, text)
				}
				if got := facts(m); got != c.want {
					t.Errorf("%s: %s, want %s; unknown %q:\n%s", form, got, c.want, unknown, text)
				}
			}
		})
	}
}

// TestForms reads matrices that people made something else of.
func TestForms(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"glued":             {"\tGPU0\tGPU1\tNIC0\tCPU Affinity\nGPU0\tX\tNODEPXB\t0-5\nGPU1\tNODE\tX\tPH0-115\n", "0-5@- 0-115@-"},
		"title apart":       {"GPU0 GPU1 CPU    Affinity   NUMA Affinity\nGPU0 X SYS 0-5 0\nGPU1 SYS X 6-11 1\n", "0-5@0 6-11@1"},
		"collapsed":         {"GPU0 CPU Affinity | |\nGPU0 X 0-7 | |\n", "0-7@-"},
		"blank lines":       {"GPU0 GPU1\n\n  \nGPU0 X NV1\n\nGPU1 NV1 X\n", "-@- -@-"},
		"Markdown":          {"| | GPU0 | GPU1 | CPU Affinity | NUMA Affinity |\n|---|---|---|---|---|\n| GPU0 | X | SYS | 0-5 | 0 |\n| GPU1 | SYS | X | | 1 |\n", "0-5@0 -@1"},
		"Markdown, turned":  {"| NUMA Affinity | CPU Affinity | | GPU0 |\n| 3 | 0-7 | GPU0 | X |\n", "0-7@3"},
		"numbers with gaps": {"\tGPU0\tGPU4\tCPU Affinity\nGPU0\tX\tSYS\t0-5\nGPU4\tSYS\tX\t6-11\n", "0-5@- 6-11@-"},
		"rows cut off":      {"\tGPU0\tGPU1\tCPU Affinity\nGPU0\tX\tSYS\t0-5\n", "0-5@- -@-"},
		"cannot be told":    {"GPU0 GPU1 CPU Affinity NUMA Affinity GPU NUMA ID\nGPU0 X SYS 0 N/A\nGPU1 SYS X 1 N/A\n", "-@- -@-"},
		"with lscpu": {
			matrix(old, "0-5", "6-11") + "CPU(s):  12\nOn-line CPU(s) list:  0-11\nNUMA node(s): 2\nNUMA node0 CPU(s):  0-5\nNUMA node1 CPU(s):  6-11\n",
			"0-5@0 6-11@1",
		},
		"cut, with lscpu": {
			matrix(middle, "0,2,4,6,8,10\t0", "1,3,5,7,9,11\t1") + "NUMA node0 CPU(s):  0,2,4,6,8,10,12,14\nNUMA node1 CPU(s):  1,3,5,7,9,11,13,15\n",
			"0,2,4,6,8,10,12,14@0 1,3,5,7,9,11,13,15@1",
		},
		"nodes without CPUs": {
			matrix(middle, "0-71\t0-1,2,10", "72-143\t0-1,2,10") + "NUMA node0 CPU(s): 0-71\nNUMA node1 CPU(s): 72-143\nNUMA node2 CPU(s):\nNUMA node10 CPU(s): \n",
			"0-71@- 72-143@-",
		},
		"part of a node": {matrix(old, "0-3", "0-3") + "node 0 cpus: 0 1 2 3 4 5\nnode 1 cpus: 6 7 8 9 10 11\n", "0-3@- 0-3@-"},
	} {
		t.Run(name, func(t *testing.T) {
			m, unknown, err := smi.Parse([]byte(c.text))
			if err != nil {
				t.Fatal(err)
			}
			if got := facts(m); got != c.want {
				t.Errorf("%s, want %s; unknown %q", got, c.want, unknown)
			}
		})
	}
}

// TestMachine looks at all that one text says.
func TestMachine(t *testing.T) {
	text := samples["tabs"] + samples["numactl"] +
		"GPU 0: NVIDIA A100 (UUID: GPU-00000000-0000-0000-0000-000000000001)\n1, 00000000:81:00.0\n"
	m, unknown, err := smi.Parse([]byte(strings.NewReplacer("0-63", "0-1").Replace(text)))
	if err != nil {
		t.Fatal(err)
	}
	if got := facts(m); got != "0-1@0 2-3@1" || m.CPUs.String() != "0-3" {
		t.Errorf("%s of CPUs %s", got, m.CPUs)
	}
	if len(m.Nodes) != 2 || m.Nodes[1].MemoryMiB != 2048 || m.Nodes[1].Distances[0] != 21 || m.Nodes[1].CPUs.String() != "2-3" {
		t.Errorf("nodes %+v", m.Nodes)
	}
	if len(m.NICs) != 1 || m.NICs[0].Names[0] != "mlx5_0" || m.NICs[0].Nodes.String() != "0" {
		t.Errorf("NICs %+v", m.NICs)
	}
	if m.GPUs[0].Model != "NVIDIA A100" || m.GPUs[0].UUID == "" || m.GPUs[0].PCI != "" || m.GPUs[1].PCI != "0000:81:00.0" {
		t.Errorf("GPUs %+v", m.GPUs)
	}
	want := []string{
		"The PCI addresses of GPUs are not stated.",
		"The CPUs of GPU1 are not stated: a process that may use none of them is shown none.",
		"The PCI addresses of NICs are not stated.",
		"Packages are not stated.",
		"Cores are not stated.",
		"L3 caches are not stated.",
	}
	if !slices.Equal(unknown, want) {
		t.Errorf("unknown %q, want %q", unknown, want)
	}
}

// TestLscpuTable reads the table of lscpu -p, in its two forms.
func TestLscpuTable(t *testing.T) {
	for name, rows := range map[string]string{
		"new": "# CPU,Core,Socket,Node,,L1d,L1i,L2,L3\n0,0,0,0,,0,0,0,0\n1,1,1,1,,1,1,1,1\n2,0,0,0,,0,0,0,0\n3,1,1,1,,1,1,1,1\n",
		"old": "# CPU,Core,Socket,Node,L1d,L1i,L2,L3\n0,0,0,0,0,0,0,0\n1,1,1,1,1,1,1,1\n2,0,0,0,0,0,0,0\n3,1,1,1,1,1,1,1\n",
	} {
		t.Run(name, func(t *testing.T) {
			m, unknown, err := smi.Parse([]byte(matrix(old, "0,2", "1,3") + rows))
			if err != nil {
				t.Fatal(err)
			}
			got := fmt.Sprint(facts(m), m.Cores, m.Packages, m.L3)
			if want := "0,2@0 1,3@1[{0,2} {1,3}] [{0 0,2} {1 1,3}] [{0,2} {1,3}]"; got != want {
				t.Errorf("%s, want %s; unknown %q", got, want, unknown)
			}
		})
	}
	m, _, err := smi.Parse([]byte(matrix(old, "0-1") + "Thread(s) per core:  1\nOn-line CPU(s) list: 0-3\n"))
	if err != nil || len(m.Cores) != 4 {
		t.Errorf("%+v, %v: want four cores", m, err)
	}
}

// TestListsOfTheAsker shows that lists of CPUs are doubted where GPUs of other
// nodes have the same.
func TestListsOfTheAsker(t *testing.T) {
	for _, c := range []struct {
		second string
		want   bool
	}{{"0-3\t1", true}, {"0-3\t0", false}, {"4-7\t1", false}} {
		m, _, err := smi.Parse([]byte(matrix(middle, "0-3\t0", c.second)))
		if err != nil {
			t.Fatal(err)
		}
		for _, gpu := range m.GPUs {
			if gpu.CPUsDoubted != c.want {
				t.Errorf("%q: GPU %d: doubted is %v", c.second, gpu.Index, gpu.CPUsDoubted)
			}
		}
	}
}

func TestRefused(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"no matrix":       {"GPU0 is here\n", smi.ErrNoMatrix.Error()},
		"a row cut":       {"\tGPU0\tGPU1\tCPU Affinity\nGPU0\tX\tSYS\t0-5\nGPU1\tSYS\n", "line 3: row GPU1: 1 links to other devices: the header in line 1 names 2 devices"},
		"a row too long":  {"\tGPU0\tCPU Affinity\nGPU0\tX\tSYS\t0-5\n", "line 2: row GPU0: 2 links to other devices: the header in line 1 names 1 devices"},
		"a row twice":     {"\tGPU0\tCPU Affinity\nGPU0\tX\t0-5\nGPU0\tX\t0-5\n", "line 3: row GPU0: is in line 2 already"},
		"a list":          {matrix(middle, "5-0\t0"), `line 2: row GPU0: CPU Affinity: list "5-0": "5-0": range runs backwards`},
		"a node":          {matrix(middle, "0-5\t4096"), `line 2: row GPU0: NUMA Affinity: "4096": want nodes below 1024`},
		"a GPU node":      {matrix(recent, "0-5\t0\t\t0-1"), `line 2: row GPU0: GPU NUMA ID: "0-1": want the number of a node`},
		"lscpu":           {"NUMA node0 CPU(s): 0-x\n", "line 1: NUMA node0 CPU(s): list"},
		"nodes overlap":   {"NUMA node0 CPU(s): 0-3\nNUMA node1 CPU(s): 3-5\n", "line 2: node 1: CPUs 3 are on node 0 already"},
		"two machines":    {"NUMA node0 CPU(s): 0-3\nnode 0 cpus: 0 1\n", `line 2: node 0 has CPUs "0-1" here and "0-3" further up`},
		"distances":       {"node 0 cpus: 0\nnode   0   1\n  0:  10\n", "line 3: 1 distances from node 0: want 2, one for each node"},
		"a distance":      {"node 0 cpus: 0\nnode   0\n  0:  999\n", `line 3: distance "999": want a number up to 255`},
		"a CPU twice":     {"# CPU,Core,Socket,Node\n0,0,0,0\n0,0,0,0\n", "line 3: CPU 0 is there twice"},
		"a CPU's core":    {"# CPU,Core,Socket,Node\n0,x,0,0\n", `line 2: Core "x": want a number below 8192`},
		"a Markdown cell": {"| | GPU0 |\n| GPU0 | X |\n| | GPU1 | CPU Affinity |\n| GPU1 | ? | 0 |\n", "line 4: row GPU1"},
	} {
		t.Run(name, func(t *testing.T) {
			m, _, err := smi.Parse([]byte(c.text))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, %v: want %q", m, err, c.want)
			}
		})
	}
}
