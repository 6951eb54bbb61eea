// Package shimtest tests the C half of the plugin by itself: what it makes of
// masks, lists and CUDA_VISIBLE_DEVICES must be what the Go half makes of them.
package shimtest

import (
	"bytes"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gputune/internal/idset"
	"gputune/internal/placement"
	"gputune/internal/slurm"
	"gputune/internal/topology"
)

// ask compiles the harness once more with the address sanitizer and puts all
// questions to one run of it.
func ask(t *testing.T, questions []string) []string {
	t.Helper()
	harness := filepath.Join(t.TempDir(), "harness")
	compile := exec.Command("cc", "-D_GNU_SOURCE", "-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror",
		"-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-o", harness, "testdata/text_harness.c", "../shim/text.c")
	if output, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	run := exec.Command(harness)
	run.Stdin = strings.NewReader(strings.Join(questions, "\n") + "\n")
	var stderr bytes.Buffer
	run.Stderr = &stderr
	output, err := run.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	answers := strings.Split(strings.TrimSuffix(string(output), "\n"), "\n")
	if len(answers) != len(questions) {
		t.Fatalf("%d answers to %d questions", len(answers), len(questions))
	}
	return answers
}

func TestListsAreIdsets(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	var questions, want []string
	add := func(s idset.Set) {
		question := "list 30000"
		for _, word := range s.Words() {
			question += fmt.Sprintf(" %x", word)
		}
		questions, want = append(questions, question), append(want, "0 "+s.String())
	}
	add(idset.Set{})
	add(idset.Range(0, idset.Limit-1))
	var alternate idset.Set
	for id := 0; id < idset.Limit; id += 2 {
		alternate.Add(id)
	}
	add(alternate) // the longest list there is
	for range 500 {
		var s idset.Set
		for range random.IntN(12) {
			first := random.IntN(idset.Limit)
			s = s.Or(idset.Range(first, min(idset.Limit-1, first+random.IntN(200))))
		}
		add(s)
	}
	for i, answer := range ask(t, questions) {
		if answer != want[i] {
			t.Errorf("%.80s: C %.80q, Go %.80q", questions[i], answer, want[i])
		}
	}
}

func TestTextThatDoesNotFitIsCut(t *testing.T) {
	answers := ask(t, []string{"list 4 ff", "list 3 ff", "list 1 1"})
	for i, want := range []string{"0 0-7", "1 0-", "1 "} {
		if answers[i] != want {
			t.Errorf("%d: %q, want %q", i, answers[i], want)
		}
	}
}

func TestItems(t *testing.T) {
	cases := map[string]string{
		"items off off":            "1",
		"items off ":               "0",
		"items off on":             "0",
		"items off office":         "0",
		"items off on,off":         "1",
		"items off off,smt=one":    "1",
		"items off cpus=off":       "0",
		"items off a,,off":         "1",
		"items off on,officer,of,": "0",
	}
	var questions []string
	for question := range cases {
		questions = append(questions, question)
	}
	for i, answer := range ask(t, questions) {
		if answer != cases[questions[i]] {
			t.Errorf("%q: %s", questions[i], answer)
		}
	}
}

// The harness's node has four GPUs; Slurm's order runs against that of the PCI
// addresses, so Slurm's index 0 is GPU 3. Answers are whether CUDA takes the list
// as it is, and the GPUs in the order in which it counts them.
func TestCUDAVisibleDevices(t *testing.T) {
	cases := []struct{ sees, list, want string }{
		{"f", "", "1 "},
		{"f", "NoDevFiles", "1 "},
		{"f", "0", "1 0"},
		{"f", "3,0", "1 3,0"},
		{"f", "3,1,0,2", "1 3,1,0,2"},
		{"f", "0,1,2,3", "1 0,1,2,3"},
		{"f", " 1, 0 ,2", "1 1,0,2"},
		{"f", "4", "0 "},
		{"f", "1,4,0", "0 1"},
		{"f", "-1", "1 "},
		{"f", "2,-1,0", "1 2"},
		{"f", "0,", "1 0"},
		{"f", ",0", "0 "},
		{"f", "1,,0", "0 1"},
		{"f", "1, ,0", "0 1"},
		{"f", "1,0,1", "0 1,0"},
		{"f", "1,1,-1", "0 1"},
		{"c", "0", "1 2"}, // of GPUs 2 and 3, as a task's cgroup has them
		{"c", "1,0", "1 3,2"},
		{"c", "3,1,0,2", "0 "}, // the fourth of two
		{"f", "GPU-02345678-aaaa-bbbb-cccc-000000000000", "1 0"},
		{"f", "gpu-1234", "1 1"},
		{"f", "GPU-", "0 "}, // fits all
		{"f", "GPU-9", "0 "},
		{"e", "GPU-0234", "0 "}, // not one that it may see
		{"f", "MIG-12222222-0000", "1 1"},
		{"f", "MIG-3", "1 3"}, // of two devices, but of one GPU
		{"f", "MIG-GPU-22345678-aaaa-bbbb-cccc-000000000002/7/0", "1 2"},
		{"f", "MIG-32222222,MIG-11111111,MIG-31111111", "1 3,1"},
		{"f", "GPU-32345678,GPU-02345678", "1 3,0"},
		{"f", "GPU-32345678,GPU-0234,GPU-3234", "0 3,0"},
		{"f", "GPU-32345678,0", "0 3"},
		{"f", "1,GPU-02345678", "0 1"},
		{"af", "0", "1 3"}, // Slurm's own index, where devices are not constrained
		{"af", "1", "1 2"},
		{"af", "2", "0 "}, // a GPU that is not known
		{"af", "3", "1 1"},
		{"af", "4", "1 0"},
		{"af", "5", "0 "},
		{"af", "4,0", "1 0,3"},
		{"f", "99999999999999999999", "0 "},
		{"f", "1x", "0 "},
		{"f", strings.Repeat("A", 900), "0 "},
	}
	var questions []string
	for _, c := range cases {
		questions = append(questions, "devices "+c.sees+" "+c.list)
	}
	for i, answer := range ask(t, questions) {
		if answer != cases[i].want {
			t.Errorf("sees %s, %.60q: got %q, want %q", cases[i].sees, cases[i].list, answer, cases[i].want)
		}
	}
}

// The pairing of gpus=auto exists twice, for the parent and for the child that
// alone knows its GPUs; both must give each task the same.
func TestPairingIsPlacements(t *testing.T) {
	machine := &topology.Machine{CPUs: idset.Of(0)}
	for i := range 16 {
		machine.GPUs = append(machine.GPUs, topology.GPU{Index: i})
	}
	random := rand.New(rand.NewPCG(9, 10))
	var questions, want []string
	for gpus := 0; gpus <= 16; gpus++ {
		for tasks := 1; tasks <= 17; tasks++ {
			var sees []int
			list := ""
			for i := range gpus {
				sees = append(sees, i)
			}
			if tasks%2 == 0 { // all tasks have a list of their own order
				sees = random.Perm(gpus)
				list = strings.Trim(strings.ReplaceAll(" "+fmt.Sprint(sees), "[", ""), "]")
			}
			request := placement.Request{Policy: placement.Default(), GPUs: sees}
			for id := range tasks {
				request.Tasks = append(request.Tasks, placement.Task{LocalID: id, GPUs: sees})
			}
			for id, binding := range placement.Plan(machine, request).Tasks {
				mask := uint64(0)
				for _, gpu := range binding.GPUs {
					mask |= 1 << gpu
				}
				questions = append(questions, strings.TrimRight(fmt.Sprintf("paired %x %x %d %d%s", 1<<gpus-1, 1<<gpus-1, tasks, id, list), " "))
				want = append(want, fmt.Sprintf("%x", mask))
			}
		}
	}
	// A task that does not see all of the step's GPUs has been given its own.
	questions, want = append(questions, "paired 3 f 2 0"), append(want, "3")
	// Unless all have the same two of four.
	questions, want = append(questions, "paired 5 f 2 0 2 0"), append(want, "4")
	for i, answer := range ask(t, questions) {
		if answer != want[i] {
			t.Errorf("%s: C %s, Go %s", questions[i], answer, want[i])
		}
	}
}

// What CUDA_VISIBLE_DEVICES says is read twice, here by the child and in Go
// where a whole machine is at hand; they agree on every list.
func TestCUDAVisibleDevicesAsInGo(t *testing.T) {
	machine := &topology.Machine{}
	for i := range 4 {
		machine.GPUs = append(machine.GPUs, topology.GPU{
			Index: i, UUID: fmt.Sprintf("GPU-%d2345678-aaaa-bbbb-cccc-0000000000%02d", i, i),
			MIG: []string{fmt.Sprintf("MIG-%d1111111-0000-0000-0000-000000000000", i), fmt.Sprintf("MIG-%d2222222-0000-0000-0000-000000000000", i)},
		})
	}
	order := []int{3, 2, -1, 1, 0}
	random := rand.New(rand.NewPCG(5, 6))
	words := []string{
		"0", "1", "2", "3", "4", "5", "17", "-1", "00", "NoDevFiles", "GPU-0", "GPU-12345678", "gpu-2234", "GPU-32345678-aaaa-bbbb-cccc-000000000003",
		"MIG-0111", "MIG-12222222-0000", "MIG-GPU-22345678-aaaa-bbbb-cccc-000000000002/1/0", "GPU-", "GPU-9", "MIG-7",
	}
	var lists, questions []string
	var orders [][]int
	for n := range 6000 {
		var entries []string
		for range 1 + random.IntN(4) {
			entries = append(entries, words[random.IntN(len(words))])
		}
		lists = append(lists, strings.Join(entries, ","))
		// numbers of Slurm's, and CUDA's of the GPUs that the task sees
		question, by := "devices af ", order
		if n%2 == 0 {
			question, by = "devices f ", []int{0, 1, 2, 3}
		}
		questions, orders = append(questions, question+strings.Join(entries, ",")), append(orders, by)
	}
	understood := 0
	for i, answer := range ask(t, questions) {
		visible, err := slurm.ParseVisible(lists[i], true)
		var gpus []int
		if err == nil {
			gpus, err = visible.Counted(machine, orders[i])
		}
		flag, got, _ := strings.Cut(answer, " ")
		if flag == "1" {
			understood++
		}
		want := strings.Trim(strings.ReplaceAll(fmt.Sprint(gpus), " ", ","), "[]")
		if flag == "1" && (err != nil || got != want) {
			t.Errorf("%s: C %s, Go %s, %v", questions[i], got, want, err)
		}
	}
	if understood < 300 {
		t.Errorf("%d of %d lists were understood: too few to say anything", understood, len(lists))
	}
}

func TestLengthsOfListsAreIdsets(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	questions, want := []string{"length", "length GPU-a,MIG-b", "length 5-3", "length 0-"}, []string{"0", "2", "1", "1"}
	for range 200 {
		var s idset.Set
		for range random.IntN(6) {
			first := random.IntN(60)
			s = s.Or(idset.Range(first, first+random.IntN(9)))
		}
		questions, want = append(questions, "length "+s.String()), append(want, fmt.Sprint(s.Len()))
	}
	for i, answer := range ask(t, questions) {
		if answer != want[i] {
			t.Errorf("%s: %s, want %s", questions[i], answer, want[i])
		}
	}
}

func TestEvenShares(t *testing.T) {
	var questions, want []string
	for _, c := range []struct{ tasks, gpus, want int }{
		{1, 1, 100},
		{2, 1, 50},
		{3, 1, 33},
		{7, 1, 14},
		{8, 4, 50},
		{3, 2, 50},
		{4, 8, 100},
		{0, 1, 100},
		{1, 0, 100},
		{200, 1, 1},
		{1000, 1, 1},
		{4294967295, 2, 1},
	} {
		questions, want = append(questions, fmt.Sprintf("share %d %d", c.tasks, c.gpus)), append(want, fmt.Sprint(c.want))
	}
	for i, answer := range ask(t, questions) {
		if answer != want[i] {
			t.Errorf("%s: %s, want %s", questions[i], answer, want[i])
		}
	}
}

func TestHashIsFNV(t *testing.T) {
	texts := []string{"", "a", "=mlx5_0", "narenas:8,background_thread:true", "\u00e9", strings.Repeat("x", 1000)}
	var questions []string
	for _, text := range texts {
		questions = append(questions, "hash "+text)
	}
	for i, answer := range ask(t, questions) {
		h := fnv.New64a()
		h.Write([]byte(texts[i]))
		if answer != fmt.Sprint(h.Sum64()) {
			t.Errorf("%.80q: %s, want %d", texts[i], answer, h.Sum64())
		}
	}
}
