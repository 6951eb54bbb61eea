package slurm

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Conf is what slurm.conf says that matters on a node. Lists are nil and words
// are empty where the file does not set them; what Slurm then takes is said at
// each field.
type Conf struct {
	ClusterName string

	// TaskPlugin has the prefix "task/" at each entry, which is optional in the
	// file. Not set: no plugin (task/none, as 22.05 calls it): tasks are neither
	// bound nor constrained.
	TaskPlugin []string

	// ProctrackType. Not set: proctrack/cgroup, since 20.11.
	ProctrackType string

	// GresTypes. Not set: Slurm manages no GPUs.
	GresTypes []string

	// PrologFlags. Not set: the Prolog runs before the first step on the node.
	PrologFlags []string

	// SlurmdParameters. Not set: none.
	SlurmdParameters []string

	// JobContainerType, called NamespaceType in newer releases. Not set: tasks
	// share the node's mount namespace.
	JobContainerType string

	// SlurmdSpoolDir, with %h and %n as in the file. Not set: /var/spool/slurmd.
	SlurmdSpoolDir string

	// Prolog and Epilog are the programs of slurmd's, each can be named several
	// times. Not set: none.
	Prolog, Epilog []string

	// PropagateResourceLimits and PropagateResourceLimitsExcept name limits of the
	// submitting shell that tasks get or do not get, one of the two. Neither set:
	// all of them.
	PropagateResourceLimits, PropagateResourceLimitsExcept []string

	// PlugStackConfig. Not set: plugstack.conf beside slurm.conf.
	PlugStackConfig string

	// PreemptMode. Not set: OFF.
	PreemptMode string

	nodes      []confNode
	partitions []confPartition
	nodeSets   []string
}

// confNode is one NodeName line, with what NodeName=DEFAULT lines before it say.
type confNode struct {
	names string // hostlist expression
	gres  string
	sizes map[string]string // of nodeSizes, those that are set
}

// DeclaredGPU is one entry "gpu[:type][:count]" of a node's Gres=.
type DeclaredGPU struct {
	Type  string // "" none
	Count int
}

// ReadSlurm reads slurm.conf(5). Keys it does not know are passed over. What
// could be read is returned beside an error, a *ConfigError or several joined.
func ReadSlurm(path string) (Conf, error) {
	lines, err := readConf(path)
	return parseSlurm(lines), err
}

func parseSlurm(lines []confLine) Conf {
	var conf Conf
	var nodeDefault confNode
	partitionDefault := confPartition{oversubscribe: "NO"}
	for _, line := range lines {
		switch line.pairs[0].key {
		case "nodename":
			node := confNode{names: line.pairs[0].value, gres: nodeDefault.gres, sizes: maps.Clone(nodeDefault.sizes)}
			if gres, found := line.get("gres"); found {
				node.gres = gres
			}
			for _, key := range nodeSizes {
				if value, found := line.get(key); found {
					if node.sizes == nil {
						node.sizes = map[string]string{}
					}
					node.sizes[key] = value
				}
			}
			if node.names == "DEFAULT" {
				nodeDefault = node
			} else {
				conf.nodes = append(conf.nodes, node)
			}
			continue
		case "nodeset":
			conf.nodeSets = append(conf.nodeSets, line.pairs[0].value)
			continue
		case "partitionname":
			partition := readPartition(line, partitionDefault)
			if partition.name == "DEFAULT" {
				partitionDefault = partition
			} else {
				conf.partitions = append(conf.partitions, partition)
			}
			continue
		}
		for _, pair := range line.pairs {
			conf.set(pair)
		}
	}
	return conf
}

func (c *Conf) set(pair confPair) {
	switch pair.key {
	case "clustername":
		c.ClusterName = pair.value
	case "taskplugin":
		c.TaskPlugin = splitList(pair.value)
		for i, name := range c.TaskPlugin {
			if !strings.Contains(name, "/") {
				c.TaskPlugin[i] = "task/" + name
			}
		}
	case "proctracktype":
		c.ProctrackType = pair.value
	case "grestypes":
		c.GresTypes = splitList(pair.value)
	case "prologflags":
		c.PrologFlags = splitList(pair.value)
	case "slurmdparameters":
		c.SlurmdParameters = splitList(pair.value)
	case "slurmdspooldir":
		c.SlurmdSpoolDir = pair.value
	case "prolog":
		c.Prolog = append(c.Prolog, pair.value)
	case "epilog":
		c.Epilog = append(c.Epilog, pair.value)
	case "propagateresourcelimits":
		c.PropagateResourceLimits = splitList(pair.value)
	case "propagateresourcelimitsexcept":
		c.PropagateResourceLimitsExcept = splitList(pair.value)
	case "preemptmode":
		c.PreemptMode = pair.value
	case "plugstackconfig":
		c.PlugStackConfig = pair.value
	case "jobcontainertype", "namespacetype":
		c.JobContainerType = pair.value
	}
}

func splitList(value string) []string {
	var words []string
	for word := range strings.SplitSeq(value, ",") {
		if word = strings.TrimSpace(word); word != "" {
			words = append(words, word)
		}
	}
	return words
}

// HasTaskPlugin tells whether a task plugin such as "task/cgroup" is used.
func (c Conf) HasTaskPlugin(name string) bool { return slices.Contains(c.TaskPlugin, name) }

// DeclaredGPUs returns the GPUs that the node's NodeName line declares, in order.
// They are nil where no line names the node, as for dynamic nodes, and empty but
// not nil where its line declares none.
func (c Conf) DeclaredGPUs(node string) []DeclaredGPU {
	for _, candidate := range c.nodes {
		// Slurm ignores a line whose names it cannot read, too.
		if match, err := MatchHost(candidate.names, node); err == nil && match {
			return parseDeclared(candidate.gres)
		}
	}
	return nil
}

// DeclaresShards tells whether the node's NodeName line has gres/shard. A node
// that no line names, a dynamic one, may have it where GresTypes does.
func (c Conf) DeclaresShards(node string) bool {
	for _, candidate := range c.nodes {
		if match, err := MatchHost(candidate.names, node); err == nil && match {
			for item := range strings.SplitSeq(withoutParentheses(candidate.gres), ",") {
				name, _, _ := strings.Cut(strings.TrimSpace(item), ":")
				if strings.EqualFold(name, "shard") {
					return true
				}
			}
			return false
		}
	}
	return slices.ContainsFunc(c.GresTypes, func(name string) bool { return strings.EqualFold(name, "shard") })
}

// parseDeclared reads a value such as "gpu:a100:4(S:0-1),gpu:v100:2,shard:8".
func parseDeclared(gres string) []DeclaredGPU {
	declared := []DeclaredGPU{}
	for item := range strings.SplitSeq(withoutParentheses(gres), ",") {
		words := strings.Split(strings.TrimSpace(item), ":")
		if !strings.EqualFold(words[0], "gpu") {
			continue
		}
		entry := DeclaredGPU{Count: 1}
		for _, word := range words[1:] {
			if count, isCount := parseCount(word); isCount {
				entry.Count = count
			} else if !strings.EqualFold(word, "no_consume") {
				entry.Type = word
			}
		}
		declared = append(declared, entry)
	}
	return declared
}

// withoutParentheses drops the socket lists "(S:0,1)", whose commas separate
// nothing.
func withoutParentheses(text string) string {
	var b strings.Builder
	depth := 0
	for i := range len(text) {
		switch text[i] {
		case '(':
			depth++
		case ')':
			depth = max(0, depth-1)
		default:
			if depth == 0 {
				b.WriteByte(text[i])
			}
		}
	}
	return b.String()
}

// parseCount reads a number with an optional suffix of powers of 1024. Counts
// beyond maxDeclared stand for maxDeclared: no node has as many GPUs.
func parseCount(text string) (int, bool) {
	digits := strings.TrimRight(text, "kKmMgGtTpP")
	number, err := strconv.ParseUint(digits, 10, 32)
	if err != nil || len(text)-len(digits) > 1 {
		return 0, false
	}
	if len(digits) < len(text) && number > 0 {
		return maxDeclared, true
	}
	return int(min(number, maxDeclared)), true
}

// maxDeclared is the most devices that one gres record can have: Slurm's limit
// for records with File (gres.conf(5), MAX_GRES_BITMAP).
const maxDeclared = 1024
