package smi

import (
	"fmt"
	"strconv"
	"strings"

	"gputune/internal/idset"
	"gputune/internal/topology"
)

var (
	numactlCPUs     = pattern(`\bnode ([0-9]{1,4}) cpus:([ 0-9]*)$`)
	numactlSize     = pattern(`\bnode ([0-9]{1,4}) size: ([0-9]{1,12}) MB$`)
	numactlHeading  = pattern(`\bnode((?: +[0-9]{1,4})+)$`)
	numactlDistance = pattern(`\b([0-9]{1,4}):((?: +[0-9]{1,5})+)$`)
)

// numactl reads the lines of "numactl --hardware". columns are the nodes of
// its table of distances while the lines of that are read.
func (h *host) numactl(line string, number int, columns *[]int) error {
	line = strings.TrimRight(line, " \t")
	if *columns != nil {
		if found := numactlDistance().FindStringSubmatch(line); found != nil {
			return h.addDistances(found[1], strings.Fields(found[2]), *columns, number)
		}
		*columns = nil
	}
	if !strings.Contains(line, "node ") {
		return nil
	}
	if found := numactlCPUs().FindStringSubmatch(line); found != nil {
		var cpus idset.Set
		for _, field := range strings.Fields(found[2]) {
			cpu, err := topology.ParseList(field)
			if err != nil {
				return fmt.Errorf("line %d: %w", number, err)
			}
			cpus = cpus.Or(cpu)
		}
		return h.addNode(found[1], cpus, number)
	}
	if found := numactlSize().FindStringSubmatch(line); found != nil {
		id, err := nodeID(found[1], number)
		if err != nil {
			return err
		}
		h.memory[id], err = strconv.ParseInt(found[2], 10, 64)
		return err
	}
	if found := numactlHeading().FindStringSubmatch(line); found != nil {
		for _, field := range strings.Fields(found[1]) {
			id, err := nodeID(field, number)
			if err != nil {
				return err
			}
			*columns = append(*columns, id)
		}
	}
	return nil
}

func (h *host) addDistances(from string, values []string, columns []int, number int) error {
	id, err := nodeID(from, number)
	if err != nil {
		return err
	}
	if len(values) != len(columns) {
		return fmt.Errorf("line %d: %d distances from node %d: want %d, one for each node", number, len(values), id, len(columns))
	}
	distances := make(map[int]int, len(columns))
	for i, value := range values {
		distance, err := strconv.Atoi(value)
		if err != nil || distance > maxDistance {
			return fmt.Errorf("line %d: distance %q: want a number up to %d", number, value, maxDistance)
		}
		distances[columns[i]] = distance
	}
	h.distances[id] = distances
	return nil
}

// maxDistance is the largest that the firmware's table can state, in bytes.
const maxDistance = 255
