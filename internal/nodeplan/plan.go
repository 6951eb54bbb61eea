// Package nodeplan turns a profile of node settings into what is to be set and
// done on a node for a job. It reads the node and changes nothing.
package nodeplan

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"gputune/conf"
	"gputune/internal/idset"
	"gputune/internal/option"
	"gputune/internal/setting"
	"gputune/internal/topology"
)

// Job is what a plan is for.
type Job struct {
	Machine *topology.Machine // with its network devices
	GPUs    []topology.GPU    // those of the job
	CPUs    idset.Set         // those of the job; empty: not known, which counts as all
	Alone   bool              // the job has the node for itself
	// WhyShared is why it does not, or why that cannot be told, and what would
	// work; nil is no more than that.
	WhyShared error
	// HugepagesPercent is how much of a node's memory pools of hugepages may have.
	HugepagesPercent int
}

// Plan is what to do for a job on a node.
type Plan struct {
	// Wishes are in the order in which they have to be set. They have passed
	// their checks.
	Wishes []setting.Wish
	// Compact are the NUMA nodes to compact before, outside of every lock.
	Compact idset.Set
	// DropCaches is what to drop, "" nothing.
	DropCaches option.Caches
	// GPUClocks is what to lock the GPUs' clocks to, zero for nothing.
	GPUClocks option.Clocks
	// NoSwap asks for a limit of 0 on the job's cgroup, which there is only once
	// its first step has begun.
	NoSwap bool

	// Skipped are keys of the profile that this machine does not have.
	Skipped []Skip
	// Unmovable are interrupts that the kernel manages, by PCI address.
	Unmovable map[string][]int
}

// Skip is a key of a profile that was left out, and why.
type Skip struct {
	Key    string
	Reason error
}

// RefusedError is a key of a profile that cannot be had on this node.
type RefusedError struct {
	Key    string // of the profile: "thp", "sysctl.vm.swappiness"
	Reason error
}

// Error names the key and the reason.
func (e *RefusedError) Error() string { return fmt.Sprintf("%s: %v", e.Key, e.Reason) }

// Unwrap returns the reason.
func (e *RefusedError) Unwrap() error { return e.Reason }

var (
	errNoGPU   = errors.New("it is about the job's GPUs, and the job has none on this node")
	errNowhere = errors.New("the NUMA node of the job's GPUs is not known")
)

// SharedError is a key that is the whole node's, for a job that does not have the
// node for itself.
type SharedError struct{ Why error }

// Error says why it is refused, and what would work where that is known.
func (e *SharedError) Error() string {
	if e.Why == nil {
		return "it is the whole node's, and the job does not have the node for itself"
	}
	return "it is the whole node's, and " + e.Why.Error()
}

// Unwrap returns why the node is not the job's alone.
func (e *SharedError) Unwrap() error { return e.Why }

// order is that of a profile's keys. Hugepages come first, while memory is as free
// as it was made; an energy preference before the governor that fixes it.
var order = []string{
	"hugepages", "thp", "thp_defrag", "khugepaged_defrag", "energy", "governor", "min_frequency", "idle_latency", "irqs",
}

// planner is a plan in the making.
type planner struct {
	Plan
	env *setting.Environment
	job Job
	// scattered are nodes whose free memory is not enough of one piece for the
	// hugepages that are to be made.
	scattered idset.Set
}

// New returns the plan for a profile, as conf.Config.Profile gives it. A key that
// the machine does not have is skipped or refused as the profile says; any other
// that cannot be had is a *RefusedError.
func New(ctx context.Context, env *setting.Environment, profile conf.Profile, job Job) (Plan, error) {
	p := &planner{env: env, job: job}
	wants := profile.Wants()
	sysctls := slices.DeleteFunc(slices.Sorted(maps.Keys(wants)), func(key string) bool { return !strings.HasPrefix(key, "sysctl.") })
	for _, key := range slices.Concat(order, sysctls) {
		want, is := wants[key]
		if !is {
			continue
		}
		if !job.Alone && want.Shared != conf.SharingAllowed {
			return Plan{}, &RefusedError{key, &SharedError{job.WhyShared}}
		}
		wishes, err := p.wishes(ctx, key, want.Value)
		for i := 0; i < len(wishes) && err == nil; i++ {
			wishes[i].Value, err = p.check(ctx, wishes[i])
		}
		switch {
		case err == nil:
			p.Wishes = append(p.Wishes, wishes...)
		case lacking(err) && want.Missing != conf.MissingRefuses:
			p.Skipped = append(p.Skipped, Skip{key, err})
		default:
			return Plan{}, &RefusedError{key, err}
		}
	}
	p.once()
	if err := p.actions(wants); err != nil {
		return Plan{}, err
	}
	return p.Plan, nil
}

// once leaves each setting in the plan once. Two keys can want one: transparent
// hugepages raise vm.min_free_kbytes before they are set, which a profile may have
// among its sysctls. The larger value of that goes to the first place.
func (p *planner) once() {
	first := map[string]int{}
	var wishes []setting.Wish
	for _, w := range p.Wishes {
		i, again := first[w.Key]
		if !again {
			first[w.Key] = len(wishes)
			wishes = append(wishes, w)
			continue
		}
		is, errIs := strconv.ParseUint(wishes[i].Value, 10, 63)
		also, errAlso := strconv.ParseUint(w.Value, 10, 63)
		if errIs != nil || errAlso != nil || also > is {
			wishes[i].Value = w.Value
		}
	}
	p.Wishes = wishes
}

func (p *planner) check(ctx context.Context, wish setting.Wish) (string, error) {
	s, err := setting.Parse(p.env, wish.Key)
	if err != nil {
		return "", err
	}
	return s.Check(ctx, wish.Value)
}

// Files of the kernel's that package action writes to.
const (
	dropFile    = "/proc/sys/vm/drop_caches"
	compactFile = "/sys/devices/system/node/node%d/compact"
)

// lacking tells whether the machine, or the job, does not have what a key is about.
func lacking(err error) bool {
	return errors.Is(err, setting.ErrUnsupported) || errors.Is(err, errNoGPU)
}

// actions fills in what is no setting of the node.
func (p *planner) actions(wants map[string]conf.Want) (err error) {
	for _, key := range []string{"compact_memory", "drop_caches"} {
		if want, is := wants[key]; is && want.Value != "off" && !p.job.Alone && want.Shared != conf.SharingAllowed {
			return &RefusedError{key, &SharedError{p.job.WhyShared}}
		}
	}
	if wants["compact_memory"].Value == "on" {
		nodes := p.withMemory()
		if p.Compact = p.canCompact(nodes); !p.Compact.Equal(nodes) {
			if err := p.without("compact_memory", wants, &setting.MissingError{Of: "compact memory", File: fmt.Sprintf(compactFile, nodes.AndNot(p.Compact).Min())}); err != nil {
				return err
			}
		}
	}
	p.Compact = p.Compact.Or(p.canCompact(p.scattered)) // it helps; without it the kernel is asked all the same
	if want, is := wants["drop_caches"]; is {
		if p.DropCaches, err = option.ParseDropCaches(want.Value); err != nil {
			return &RefusedError{"drop_caches", err}
		}
		if _, err := os.Stat(p.env.Path(dropFile)); err != nil {
			p.DropCaches = ""
			if err := p.without("drop_caches", wants, &setting.MissingError{Of: "drop caches", File: dropFile}); err != nil {
				return err
			}
		}
	}
	if want, is := wants["gpu_clocks"]; is {
		switch p.GPUClocks, err = option.ParseClocks(want.Value); {
		case err != nil:
			return &RefusedError{"gpu_clocks", err}
		case len(p.job.GPUs) == 0:
			p.GPUClocks = option.Clocks{}
			if err := p.without("gpu_clocks", wants, errNoGPU); err != nil {
				return err
			}
		}
	}
	p.NoSwap = wants["swap"].Value == "off"
	return nil
}

// without skips a key, or refuses it where the profile says so.
func (p *planner) without(key string, wants map[string]conf.Want, reason error) error {
	if wants[key].Missing == conf.MissingRefuses {
		return &RefusedError{key, reason}
	}
	p.Skipped = append(p.Skipped, Skip{key, reason})
	return nil
}

// withMemory returns the NUMA nodes that have memory.
func (p *planner) withMemory() (nodes idset.Set) {
	for _, node := range p.job.Machine.Nodes {
		if node.MemoryMiB > 0 {
			nodes.Add(node.ID)
		}
	}
	return nodes
}

// canCompact returns those of the nodes whose memory the kernel can compact.
func (p *planner) canCompact(nodes idset.Set) (can idset.Set) {
	for node := range nodes.All() {
		if _, err := os.Stat(p.env.Path(fmt.Sprintf(compactFile, node))); err == nil {
			can.Add(node)
		}
	}
	return can
}

// gpuNodes returns the local nodes of the job's GPUs.
func (p *planner) gpuNodes() (nodes idset.Set) {
	for _, gpu := range p.job.GPUs {
		nodes = nodes.Or(gpu.Nodes)
	}
	return nodes
}

// cpus returns the CPUs of the job, all where they are not known.
func (p *planner) cpus() idset.Set {
	if p.job.CPUs.Empty() {
		return p.job.Machine.CPUs
	}
	return p.job.CPUs.And(p.job.Machine.CPUs)
}

// wishes returns what to set for a key of a profile.
func (p *planner) wishes(ctx context.Context, key, value string) ([]setting.Wish, error) {
	switch key {
	case "thp":
		return setting.THP(p.env, value)
	case "thp_defrag":
		return []setting.Wish{{Key: "thp/defrag", Value: value}}, nil
	case "khugepaged_defrag":
		return []setting.Wish{{Key: "thp/khugepaged.defrag", Value: map[string]string{"on": "1", "off": "0"}[value]}}, nil
	case "hugepages":
		return p.hugepages(ctx, value)
	case "governor", "energy":
		return p.frequency(key, value)
	case "min_frequency":
		if value != "max" {
			value += "000" // MHz to kHz
		}
		return p.frequency("min", value)
	case "idle_latency":
		return p.idle(value), nil
	case "irqs":
		if len(p.job.GPUs) == 0 {
			return nil, errNoGPU
		}
		return p.interrupts()
	default:
		return []setting.Wish{setting.Sysctl(strings.TrimPrefix(key, "sysctl."), value)}, nil
	}
}

func (p *planner) frequency(name, value string) ([]setting.Wish, error) {
	policies, err := setting.FrequencyPolicies(p.env, p.cpus())
	if err != nil {
		return nil, err
	}
	wishes := make([]setting.Wish, len(policies))
	for i, policy := range policies {
		wishes[i] = setting.Wish{Key: "cpufreq/" + policy + "/" + name, Value: value}
	}
	return wishes, nil
}

func (p *planner) idle(value string) (wishes []setting.Wish) {
	switch value {
	case "any":
		value = setting.AnyLatency
	case "none":
		value = setting.NoLatency
	}
	for cpu := range p.cpus().All() {
		wishes = append(wishes, setting.Wish{Key: setting.IdleLatencyKey(cpu), Value: value})
	}
	return wishes
}

func (p *planner) hugepages(ctx context.Context, value string) ([]setting.Wish, error) {
	pools, err := option.ParseHugepages(value)
	if err != nil {
		return nil, err
	}
	nodes := p.gpuNodes()
	switch {
	case len(p.job.GPUs) == 0:
		return nil, errNoGPU
	case nodes.Empty():
		return nil, errNowhere
	}
	var wishes []setting.Wish
	for node := range nodes.All() {
		var mib uint64
		grows := false // what a site has made itself is no matter of its bound
		for _, pool := range pools {
			wish, err := setting.Hugepages(p.env, node, pool.KiB, pool.Count)
			if err != nil {
				return nil, err
			}
			count, err := strconv.ParseUint(wish.Value, 10, 63)
			if err != nil {
				return nil, err
			}
			present, err := p.present(ctx, wish.Key)
			if err != nil {
				return nil, err
			}
			if present != wish.Value {
				grows = true
				more := count
				if is, err := strconv.ParseUint(present, 10, 63); err == nil {
					more -= min(is, count)
				}
				if setting.FreeBlocks(p.env, node, pool.KiB) < more {
					p.scattered.Add(node)
				}
			}
			mib += count * pool.KiB >> 10
			wishes = append(wishes, wish)
		}
		if most := p.memory(node) * uint64(p.job.HugepagesPercent) / 100; grows && mib > most {
			near := ""
			if used := mib - pools[0].Count*pools[0].KiB>>10; len(pools) == 1 && (most-min(used, most))<<10 >= pools[0].KiB {
				near = option.HugepagesString([]option.Hugepages{{KiB: pools[0].KiB, Count: (most - used) << 10 / pools[0].KiB}})
			}
			return nil, &setting.ValueError{
				Of: fmt.Sprintf("node %d", node), Value: fmt.Sprintf("%s: pools of %d MiB", value, mib), Nearest: near,
				Accepts: fmt.Sprintf("the site allows %d %% of the node's memory, %d MiB", p.job.HugepagesPercent, most),
			}
		}
	}
	return wishes, nil
}

// present returns the value that a setting has.
func (p *planner) present(ctx context.Context, key string) (string, error) {
	s, err := setting.Parse(p.env, key)
	if err != nil {
		return "", err
	}
	return s.Read(ctx)
}

// memory returns a node's memory in MiB.
func (p *planner) memory(node int) uint64 {
	for _, n := range p.job.Machine.Nodes {
		if n.ID == node {
			return uint64(max(n.MemoryMiB, 0))
		}
	}
	return 0
}
