package mig

import (
	"cmp"
	"fmt"
	"slices"
)

// Split is one GPU of a step and its MIG devices.
type Split struct {
	GPU   int      // number of the GPU, as the tasks have it
	UUIDs []string // in the order in which they are dealt
}

// Hand is what one task gets.
type Hand struct {
	// UUIDs go to CUDA_VISIBLE_DEVICES, in order. CUDA uses the first alone; a
	// task that starts several programs can give each one of them. Empty: none of
	// the task's GPUs is split, and its variable stays as it is.
	UUIDs []string
	// GPUs are the GPUs of those devices, in order: where the task is to be bound.
	GPUs []int
	// Sharers is how many tasks have the same device, 1 for a task that has its
	// own.
	Sharers int
}

// Deal deals the MIG devices of a step out to its tasks on a node. tasks has for
// each task, in order, the GPUs that it may open. Tasks that may open the same
// ones are dealt their devices in order, as evenly as they go and none left over;
// where there are more tasks than devices, task after task gets one device in
// turn, and several share it.
//
// It is a pure function: the same input gives the same hands on every node.
func Deal(tasks [][]int, splits []Split) []Hand {
	hands := make([]Hand, len(tasks))
	groups := map[string][]int{}
	for i, gpus := range tasks {
		key := fmt.Sprint(ordered(gpus))
		groups[key] = append(groups[key], i)
	}
	for _, members := range groups {
		devices := devicesOf(tasks[members[0]], splits)
		if len(devices) == 0 {
			continue
		}
		for rank, task := range members {
			hands[task] = hand(rank, len(members), devices)
		}
	}
	return hands
}

// dealt is one device to be dealt.
type dealt struct {
	uuid string
	gpu  int
}

func ordered(gpus []int) []int {
	return slices.Compact(slices.Sorted(slices.Values(gpus)))
}

// devicesOf returns the devices of the GPUs that a task may open, by GPU.
func devicesOf(gpus []int, splits []Split) []dealt {
	splits = slices.SortedStableFunc(slices.Values(splits), func(a, b Split) int { return cmp.Compare(a.GPU, b.GPU) })
	var list []dealt
	for _, split := range splits {
		if !slices.Contains(gpus, split.GPU) {
			continue
		}
		for _, uuid := range split.UUIDs {
			list = append(list, dealt{uuid, split.GPU})
		}
	}
	return list
}

// hand is what the task of a rank gets of the devices that a number of tasks are
// dealt.
func hand(rank, tasks int, devices []dealt) Hand {
	first, last := rank*len(devices)/tasks, (rank+1)*len(devices)/tasks
	sharers := 1
	if tasks > len(devices) {
		first = rank % len(devices)
		last = first + 1
		sharers = (tasks - first + len(devices) - 1) / len(devices)
	}
	h := Hand{Sharers: sharers}
	for _, d := range devices[first:last] {
		h.UUIDs = append(h.UUIDs, d.uuid)
		if !slices.Contains(h.GPUs, d.gpu) {
			h.GPUs = append(h.GPUs, d.gpu)
		}
	}
	return h
}
