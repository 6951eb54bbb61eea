package nccl_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"gputune/internal/topology"
	"gputune/internal/topology/nccl"
	"gputune/tests/published"
)

func summary(m *topology.Machine) string {
	var b strings.Builder
	fmt.Fprintf(&b, "cpus %s\n", m.CPUs)
	for _, n := range m.Nodes {
		fmt.Fprintf(&b, "node %d: %s, %d MiB\n", n.ID, n.CPUs, n.MemoryMiB)
	}
	for _, g := range m.GPUs {
		fmt.Fprintf(&b, "gpu %d %s: node %s, cpus %s, doubted %v, bridges %d\n", g.Index, g.PCI, g.Nodes, g.CPUs, g.CPUsDoubted, len(g.Bridges))
	}
	for _, n := range m.NICs {
		fmt.Fprintf(&b, "nic %s %q: node %s\n", n.PCI, n.Names, n.Nodes)
	}
	for _, w := range m.Warnings {
		fmt.Fprintf(&b, "warning %s\n", w)
	}
	return b.String()
}

func TestParse(t *testing.T) {
	m, unknown, err := nccl.Parse([]byte(samples["two nodes"]))
	if err != nil {
		t.Fatal(err)
	}
	const want = `cpus 0-31
node 0: 0-15, -1 MiB
node 1: 16-31, -1 MiB
gpu 0 0000:07:00.0: node 0, cpus 0-15, doubted false, bridges 0
gpu 1 0000:47:00.0: node 1, cpus 16-31, doubted false, bridges 1
gpu 2 0001:00:00.0: node , cpus , doubted false, bridges 0
nic 0000:45:00.0 ["mlx5_2"]: node 1
`
	if got := summary(m); got != want {
		t.Errorf("is\n%swant\n%s", got, want)
	}
	const wantUnknown = "The NUMA node of GPU 0001:00:00.0 is not stated. What PCI function 0000:08:00.0 is, is not stated: it has no class."
	if got := strings.Join(unknown, " "); !strings.HasPrefix(got, wantUnknown) {
		t.Errorf("unknown: %q, want %q", got, wantUnknown)
	}
}

// cpus is a file with a GPU below each node, which have these masks.
func cpus(masks ...string) string {
	var b strings.Builder
	b.WriteString("<system version=\"1\">\n")
	for i, mask := range masks {
		fmt.Fprintf(&b, "<cpu numaid=\"%d\" affinity=\"%s\"><pci busid=\"0000:%02x:00.0\" class=\"0x030200\"/></cpu>\n", i, mask, i)
	}
	b.WriteString("</system>\n")
	return b.String()
}

// TestMasksThatCannotBe shows what becomes of masks that contradict each other:
// they are shown, and doubted, and no node has those CPUs.
func TestMasksThatCannotBe(t *testing.T) {
	for name, c := range map[string]struct {
		masks []string
		nodes string
		doubt string
	}{
		"apart":              {[]string{"0000ffff", "ffff0000"}, "0-15 16-31", "false false"},
		"placeholder":        {[]string{"0000ffff,0000ffff", "0000ffff,0000ffff"}, " ", "true true"},
		"one of three apart": {[]string{"0000ffff", "0001fff0", "fff00000"}, "  20-31", "true true false"},
		"a digit lost":       {[]string{"00000000,0000ffff", "00000000,ffff0000", "ffff000,00000000"}, "0-15 16-31 ", "false false true"},
		"not padded":         {[]string{"ffff", "ffff0000", "ffff,00000000"}, "0-15 16-31 32-47", "false false false"},
		"one":                {[]string{"0fffffff"}, "0-27", "false"},
	} {
		t.Run(name, func(t *testing.T) {
			m, _, err := nccl.Parse([]byte(cpus(c.masks...)))
			if err != nil {
				t.Fatal(err)
			}
			var nodes, doubt []string
			for _, node := range m.Nodes {
				nodes = append(nodes, node.CPUs.String())
			}
			for i, gpu := range m.GPUs {
				doubt = append(doubt, fmt.Sprint(gpu.CPUsDoubted))
				if want, err := nccl.ParseMask(c.masks[i]); err != nil || !gpu.CPUs.Equal(want) {
					t.Errorf("GPU %d has CPUs %s, %v", i, gpu.CPUs, err)
				}
			}
			if strings.Join(nodes, " ") != c.nodes || strings.Join(doubt, " ") != c.doubt {
				t.Errorf("nodes %q, doubted %q: want %q, %q", nodes, doubt, c.nodes, c.doubt)
			}
			if (len(m.Warnings) > 0) != strings.Contains(c.doubt, "true") {
				t.Errorf("warnings %q", m.Warnings)
			}
		})
	}
}

func TestMask(t *testing.T) {
	for mask, want := range map[string]string{
		"f":                          "0-3",
		"0xf":                        "0-3",
		"3,ffff0000":                 "16-33",
		"0x3,0xffff0000":             "16-33",
		"00000000,00000000,00ffffff": "0-23",
		"0000,0fffff00,000fffff":     "0-19,40-59",
		"fffc00,0fffc000":            "14-27,42-55",
		"3fffff00000000":             "32-53",
		"0x00000001ffffffff":         "0-32",
		"FF,FFFF0000,00FFFFFF":       "0-23,48-71",
		"0-23,48-71":                 "0-23,48-71",
		"0":                          "",
		" ff ":                       "0-7",
	} {
		if got, err := nccl.ParseMask(mask); err != nil || got.String() != want {
			t.Errorf("%q: %q, %v: want %q", mask, got, err, want)
		}
	}
	for _, mask := range []string{"", ",", "f,", "g", "0x", "123456789,0", "3-1", "0-9999", "1" + strings.Repeat("0", 2048), "0xf...f"} {
		if got, err := nccl.ParseMask(mask); err == nil || len(err.Error()) > 500 {
			t.Errorf("%q: %q, %v", mask, got, err)
		}
	}
}

func TestRefused(t *testing.T) {
	sample := samples["two nodes"]
	change := func(from, to string) string {
		if !strings.Contains(sample, from) {
			t.Fatalf("the sample has no %q", from)
		}
		return strings.Replace(sample, from, to, 1)
	}
	for name, c := range map[string]struct{ text, want string }{
		"cut":              {sample[:len(sample)/2], "line 8: "},
		"no nodes":         {"<system version=\"1\">\n</system>", "line 1: <system>: no <cpu>"},
		"a mask":           {change("00000000,ffff0000", "0000ffff,xyz"), `line 3: <cpu>: mask "0000ffff,xyz": "xyz": want up to 8 hexadecimal digits`},
		"a long word":      {change("00000000,ffff0000", "00000000,0ffff0000"), `line 3: <cpu>: mask`},
		"a node":           {change(`numaid="1"`, `numaid="-2"`), `line 3: <cpu>: numaid "-2": want a number from -1 to 1023`},
		"two masks":        {change(`numaid="1"`, `numaid="0"`), `line 14: <cpu>: numaid 0: has CPUs "0-15" here and "16-31" in line 3`},
		"two machines":     {change(`numaid="0"`, `host_hash="0x2" numaid="0"`), `line 14: <cpu>: host_hash "0x2" after "": describes more than one machine`},
		"an address":       {change("0000:47:00.0", "47"), `line 5: <pci>: busid: PCI address "47"`},
		"a GPU twice":      {change("0000:47:00.0", "0000:07:00.0"), "line 15: <pci>: 0000:07:00.0 is in line 5 already"},
		"ends that differ": {change("</pci>\n  </cpu>", "</cpu>\n  </pci>"), "line 11: </cpu> ends nothing that is open: <pci> of line 4 is open"},
		"text":             {sample + "text", "line 19: text outside of the root element"},
		"deep":             {"<system>" + strings.Repeat("<cpu>", 1000), "more than 200 elements deep"},
	} {
		t.Run(name, func(t *testing.T) {
			m, _, err := nccl.Parse([]byte(c.text))
			if err == nil || !strings.HasPrefix(err.Error(), "line ") || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, %v: want %q", m, err, c.want)
			}
		})
	}
}

var excerptMask = regexp.MustCompile(`(?:affinity="|to )([0-9a-f,]+)`)

// TestPublishedMasks reads the masks of published excerpts and logs, and
// compares them with the lists that the index states.
func TestPublishedMasks(t *testing.T) {
	folder := published.Folder(t)
	list, err := os.ReadFile(filepath.Join(folder, "INDEX.tsv"))
	if err != nil {
		t.Fatal(err)
	}
	read := 0
	for line := range strings.Lines(string(list)) {
		fields := strings.Split(strings.TrimSpace(line), "\t")
		if fields[1] != "NCCL XML fragment" {
			continue
		}
		content, err := os.ReadFile(filepath.Join(folder, fields[0]))
		if err != nil {
			t.Fatal(err)
		}
		read++
		for _, found := range excerptMask.FindAllStringSubmatch(string(content), -1) {
			set, err := nccl.ParseMask(found[1])
			if err != nil {
				t.Errorf("%s: %v", fields[0], err)
			}
			if _, want, ok := strings.Cut(fields[6], ": "); ok && strings.HasPrefix(fields[6], "numa") && set.String() != want {
				t.Errorf("%s: %s is %s, want %s", fields[0], found[1], set, want)
			}
		}
	}
	t.Logf("read the masks of %d excerpts", read)
}
