package slurm

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"gputune/internal/idset"
)

// confPartition is one PartitionName line, with what PartitionName=DEFAULT lines
// before it say.
type confPartition struct {
	name, nodes   string
	oversubscribe string // NO where nothing is said
	exclusive     string // since 26.05: NO, NODE, USER or TOPO
	preempt       string
}

// readPartition reads a PartitionName line over the defaults so far.
func readPartition(line confLine, defaults confPartition) confPartition {
	p := defaults
	p.name = line.pairs[0].value
	for key, target := range map[string]*string{
		"nodes": &p.nodes, "shared": &p.oversubscribe, "exclusive": &p.exclusive, "preemptmode": &p.preempt,
	} {
		if value, found := line.get(key); found {
			*target = value
		}
	}
	if value, found := line.get("oversubscribe"); found {
		p.oversubscribe = value
	}
	return p
}

// whole tells whether each job of the partition has its nodes for itself.
func (p confPartition) whole() bool {
	return strings.EqualFold(p.oversubscribe, "EXCLUSIVE") || strings.EqualFold(p.exclusive, "NODE")
}

// shares tells whether the partition can give a job's CPUs to other jobs, too:
// slurm.conf(5), OverSubscribe=FORCE[:N] and YES[:N], N being 4 by default.
func (p confPartition) shares() bool {
	word, count, counted := strings.Cut(p.oversubscribe, ":")
	if !strings.EqualFold(word, "FORCE") && !strings.EqualFold(word, "YES") {
		return false
	}
	n, err := strconv.Atoi(count)
	return !counted || err != nil || n > 1
}

// has tells whether a node may be the partition's. One whose nodes cannot be read,
// and one that is made of sets of nodes, counts as having it.
func (p confPartition) has(node string, sets []string) bool {
	names, err := Expand(p.nodes)
	return err != nil || strings.EqualFold(p.nodes, "ALL") || slices.Contains(names, node) ||
		slices.ContainsFunc(sets, func(set string) bool { return slices.Contains(names, set) })
}

// nodeCPUs returns how many CPUs of a node jobs can have, by its NodeName line; 0
// is not known.
func (c Conf) nodeCPUs(node string) int {
	for _, candidate := range c.nodes {
		if match, err := MatchHost(candidate.names, node); err == nil && match {
			return candidate.cpus()
		}
	}
	return 0
}

// cpus is what slurm.conf(5) says of CPUs=, its parts, CoreSpecCount= and
// CpuSpecList=.
func (n confNode) cpus() int {
	number := func(key string) int {
		value, err := strconv.Atoi(n.sizes[key])
		if err != nil || value < 0 || value > 1<<20 {
			return 0
		}
		return value
	}
	sockets := cmp.Or(number("sockets"), number("socketsperboard")*max(1, number("boards")))
	cores := max(1, sockets) * max(1, number("corespersocket"))
	all := cmp.Or(number("cpus"), number("procs"))
	if all == 0 && (sockets > 0 || cores > 1 || number("threadspercore") > 0) {
		all = cores * max(1, number("threadspercore"))
	}
	spared := number("corespeccount") * max(1, all/cores)
	if list := n.sizes["cpuspeclist"]; list != "" {
		set, err := idset.Parse(list)
		if err != nil {
			return 0
		}
		spared = max(spared, set.Len())
	}
	return max(0, all-spared)
}

// nodeSizes are the keys of a NodeName line that say how many CPUs it has.
var nodeSizes = []string{
	"cpus", "procs", "sockets", "socketsperboard", "boards", "corespersocket", "threadspercore", "corespeccount", "cpuspeclist",
}

// SharedError is why a job does not have its node for itself, or why that cannot
// be told.
type SharedError struct{ Why, Do string }

// Error says why, and what would work.
func (e *SharedError) Error() string { return fmt.Sprintf("%s: %s", e.Why, e.Do) }

// Shared returns nil where a job has a node for itself, and else a *SharedError.
// machine is how many CPUs the node has, for one that no line of slurm.conf names.
//
// slurmd tells its Prolog nothing up to 22.05. Since 23.02 there is
// SLURM_JOB_OVERSUBSCRIBE, where NO is what --exclusive and a partition with
// OverSubscribe=EXCLUSIVE make of a job (job_share_string in slurmctld; a job that
// only asked for nothing has OK). Since 26.05 NO says no more than that the job's
// CPUs are its own, and SLURM_JOB_EXCLUSIVE=NODE has the former meaning. Without
// these a job is alone on a node of which it has all CPUs, unless a partition can
// give them away twice.
func (c Conf) Shared(job Job, node string, machine int) error {
	switch {
	case job.Exclusive == "NODE":
		return nil
	case job.Exclusive == "" && job.Oversubscribe == "NO":
		return nil
	}
	told := job.Exclusive != "" || job.Oversubscribe != ""
	for _, p := range c.partitions {
		if !told && p.name == job.Partition && job.Partition != "" && p.whole() {
			return nil
		}
	}
	ask := &SharedError{"the job does not have the node for itself", "ask for --exclusive"}
	all := cmp.Or(c.nodeCPUs(node), machine)
	if job.Oversubscribe == "YES" || job.CPUs == 0 || all == 0 || job.CPUs < all {
		return ask
	}
	// All CPUs, and whether somebody else has some of them, too.
	for _, p := range c.partitions {
		if !p.shares() || !p.has(node, c.nodeSets) {
			continue
		}
		if told {
			return ask
		}
		return &SharedError{
			fmt.Sprintf("this release of Slurm does not tell whether the job has the node for itself, and partition %s has OverSubscribe=%s", p.name, p.oversubscribe),
			"use a node without such a partition, or one with OverSubscribe=EXCLUSIVE",
		}
	}
	if suspends := func(mode string) bool { return strings.Contains(strings.ToUpper(mode), "SUSPEND") }; suspends(c.PreemptMode) ||
		slices.ContainsFunc(c.partitions, func(p confPartition) bool { return suspends(p.preempt) }) {
		if told {
			return ask
		}
		return &SharedError{
			"this release of Slurm does not tell whether the job has the node for itself, and PreemptMode=SUSPEND can leave others there",
			"use a partition with OverSubscribe=EXCLUSIVE",
		}
	}
	return nil
}

// cpusHere returns how many CPUs a job has on a node: SLURM_JOB_CPUS_PER_NODE is
// "4(x2),8" for the nodes of SLURM_JOB_NODELIST in their order. Where the node is
// not found there it is the least of all; 0 is not known.
func cpusHere(perNode, nodes, node string) int {
	names, err := Expand(nodes)
	position := slices.Index(names, node)
	if err != nil {
		position = -1
	}
	least, first := 0, 0
	for group := range strings.SplitSeq(perNode, ",") {
		count, times, repeated := strings.Cut(strings.TrimSuffix(group, ")"), "(x")
		n, err := strconv.ParseUint(count, 10, 20)
		many := uint64(1)
		if err == nil && repeated {
			many, err = strconv.ParseUint(times, 10, 20)
		}
		if err != nil || n == 0 {
			return 0
		}
		if position >= first && position < first+int(many) {
			return int(n)
		}
		first += int(many)
		if least == 0 || int(n) < least {
			least = int(n)
		}
	}
	return least
}
