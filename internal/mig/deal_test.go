package mig_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"gputune/internal/mig"
)

func TestDeal(t *testing.T) {
	two := []mig.Split{{GPU: 5, UUIDs: []string{"e", "f"}}, {GPU: 2, UUIDs: []string{"a", "b"}}}
	seven := []mig.Split{{GPU: 0, UUIDs: strings.Split("abcdefg", "")}}
	for _, test := range []struct {
		name   string
		tasks  [][]int
		splits []mig.Split
		want   string // UUIDs@GPUs/sharers of each task
	}{
		{"one each", [][]int{{2, 5}, {2, 5}, {2, 5}, {2, 5}}, two, "a@[2]/1 b@[2]/1 e@[5]/1 f@[5]/1"},
		{"fewer tasks", [][]int{{2, 5}, {2, 5}}, two, "a,b@[2]/1 e,f@[5]/1"},
		{"one task", [][]int{{5, 2}}, two, "a,b,e,f@[2 5]/1"},
		{"three tasks", [][]int{{2, 5}, {2, 5}, {2, 5}}, two, "a@[2]/1 b@[2]/1 e,f@[5]/1"},
		{"shared", [][]int{{2, 5}, {2, 5}, {2, 5}, {2, 5}, {2, 5}, {2, 5}}, two, "a@[2]/2 b@[2]/2 e@[5]/1 f@[5]/1 a@[2]/2 b@[2]/2"},
		{"own GPUs", [][]int{{5}, {2}, {5}}, two, "e@[5]/1 a,b@[2]/1 f@[5]/1"},
		{"own GPU shared", [][]int{{5}, {5}, {5}, {2}}, two, "e@[5]/2 f@[5]/1 e@[5]/2 a,b@[2]/1"},
		{"seven", [][]int{{0}, {0}, {0}}, seven, "a,b@[0]/1 c,d@[0]/1 e,f,g@[0]/1"},
		{"not split", [][]int{{1}, {2}}, two, "@[]/0 a,b@[2]/1"},
		{"no GPU", [][]int{{}, {5, 5}}, two, "@[]/0 e,f@[5]/1"},
		{"no task", nil, two, ""},
	} {
		var got []string
		for _, h := range mig.Deal(test.tasks, test.splits) {
			got = append(got, fmt.Sprintf("%s@%v/%d", strings.Join(h.UUIDs, ","), h.GPUs, h.Sharers))
		}
		if strings.Join(got, " ") != test.want {
			t.Errorf("%s: %s, want %s", test.name, strings.Join(got, " "), test.want)
		}
	}
}

// TestDealRules: whatever is dealt, a task gets devices of GPUs that it may open
// and of no others, nothing is left over, no device is shared while another lies
// idle, and what each hand says of its sharers is true.
func TestDealRules(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		var splits []mig.Split
		owner := map[string]int{}
		for gpu := range 1 + random.IntN(4) {
			s := mig.Split{GPU: gpu}
			for n := range random.IntN(8) {
				id := fmt.Sprintf("MIG-%d-%d", gpu, n)
				s.UUIDs = append(s.UUIDs, id)
				owner[id] = gpu
			}
			splits = append(splits, s)
		}
		// Tasks with all GPUs, or with one each.
		tasks := make([][]int, 1+random.IntN(12))
		each := random.IntN(2) == 0
		for i := range tasks {
			if each {
				tasks[i] = []int{i % len(splits)}
				continue
			}
			for _, s := range splits {
				tasks[i] = append(tasks[i], s.GPU)
			}
		}
		hands := mig.Deal(tasks, splits)
		if again := mig.Deal(tasks, splits); fmt.Sprint(again) != fmt.Sprint(hands) {
			t.Fatalf("%v %v: %v and %v", tasks, splits, hands, again)
		}
		users := map[string]int{}
		for i, h := range hands {
			for _, id := range h.UUIDs {
				users[id]++
				if !slices.Contains(tasks[i], owner[id]) || !slices.Contains(h.GPUs, owner[id]) {
					t.Fatalf("%v %v: task %d: %v", tasks, splits, i, h)
				}
			}
		}
		for i, h := range hands {
			for _, id := range h.UUIDs {
				if users[id] != h.Sharers || h.Sharers > 1 && len(h.UUIDs) > 1 {
					t.Fatalf("%v %v: task %d: %v, %s has %d users", tasks, splits, i, h, id, users[id])
				}
			}
		}
		for id, gpu := range owner {
			reachable := slices.ContainsFunc(tasks, func(gpus []int) bool { return slices.Contains(gpus, gpu) })
			if reachable && users[id] == 0 {
				t.Fatalf("%v %v: %s is nobody's: %v", tasks, splits, id, hands)
			}
		}
	}
}
