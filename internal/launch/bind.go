package launch

import (
	"fmt"
	"slices"
	"strings"

	"gputune/internal/affinity"
	"gputune/internal/idset"
	"gputune/internal/mempolicy"
	"gputune/internal/placement"
	"gputune/internal/step"
	"gputune/internal/topology"
)

// Process is this process before it binds itself.
type Process struct {
	Machine *topology.Machine
	Policy  placement.Policy
	Rank    Rank
	Visible []int     // GPUs that it may open
	GPUs    []int     // GPUs that it uses, in its own order
	Mems    idset.Set // memory nodes that it may use, empty: not known
}

// Bound is what a process has been bound to.
type Bound struct {
	GPUs      []int
	CPUs      idset.Set // that it may run on now
	Mems      idset.Set // of the memory policy that was set, empty: none was
	MemPolicy placement.MemMode
	Locality  placement.Locality
	Warnings  []string // what could not be had as asked
	Notes     []string // what else is worth knowing

	ranks []idset.Set // GPUs of all ranks on the node, as far as this one can tell
	own   int         // position of this one
}

// plan plans for all ranks of the node, as if all saw the same; own is this one's
// position. Where there are more ranks than this one has GPUs, the others may have
// other ones: shares are then of all that is visible, so that they stay apart.
func (p Process) plan(now idset.Set) (bindings []placement.Binding, own int) {
	layout := step.Layout{Policy: p.Policy, CPUs: now, Mems: p.Mems, GPUs: idset.Of(p.GPUs...)}
	ranks := max(1, p.Rank.Size)
	if p.Rank.Size == 0 && p.Rank.Local > 0 || ranks > len(p.GPUs) && len(p.GPUs) > 0 {
		layout.GPUs = layout.GPUs.Or(idset.Of(p.Visible...))
	}
	if p.Rank.Size > 0 {
		own = p.Rank.Local
	}
	for local := range ranks {
		layout.Tasks = append(layout.Tasks, placement.Task{LocalID: local, GPUs: p.GPUs, CPUs: now})
	}
	return placement.Plan(p.Machine, layout.Request()).Tasks, own
}

// Bind sets CPU affinity and memory policy of the calling thread, to which its
// goroutine must be locked. Programs that this thread executes keep both. What the
// thread may run on before counts as granted.
func (p Process) Bind() (Bound, error) {
	now, err := affinity.Get(0)
	if err != nil {
		return Bound{}, err
	}
	bindings, own := p.plan(now)
	plan := bindings[own]
	b := Bound{GPUs: plan.GPUs, MemPolicy: placement.MemNone, own: own}
	for _, binding := range bindings {
		b.ranks = append(b.ranks, idset.Of(binding.GPUs...))
	}
	for _, warning := range plan.Warnings {
		text := warning.Text
		switch warning.Code {
		case placement.NoGPU:
			text = "no GPU is visible to it: want --gpus or a CUDA_VISIBLE_DEVICES that names one"
		case placement.RemoteCPUs:
			text += "; if its launcher bound it: want srun --cpu-bind=none, mpirun --bind-to none"
		}
		b.Warnings = append(b.Warnings, text)
	}
	if p.Rank.Size == 0 && len(p.GPUs) > 1 && p.Policy.GPUs == placement.GPUsAuto {
		b.Notes = append(b.Notes, p.Rank.From+" is set, but not how many ranks there are: all GPUs that it sees count as its own")
	}
	if !plan.CPUs.Empty() {
		if err := affinity.Set(0, plan.CPUs); err != nil {
			b.Warnings = append(b.Warnings, err.Error())
		}
	}
	if b.CPUs, err = affinity.Get(0); err != nil {
		return b, err
	}
	b.Locality = placement.Judge(p.Machine, b.CPUs, b.GPUs)
	b.setMemory(plan.MemPolicy, plan.Mems)
	return b, nil
}

// setMemory steps down from what was asked for to prefer and to nothing, each time
// only when the kernel refused.
func (b *Bound) setMemory(asked placement.MemMode, nodes idset.Set) {
	if asked == placement.MemNone || nodes.Empty() {
		return
	}
	for _, mode := range slices.Compact([]placement.MemMode{asked, placement.MemPrefer}) {
		got, err := mempolicy.Set(mode, nodes)
		if err != nil {
			b.Warnings = append(b.Warnings, err.Error())
			continue
		}
		b.MemPolicy, b.Mems = mode, got
		if !got.Equal(nodes) {
			b.Notes = append(b.Notes, fmt.Sprintf("this kernel prefers the memory of one node alone, %s of %s", got, nodes))
		}
		return
	}
}

// Site fills in the site's templates for this process: ranks that are as near to
// several network devices take turns.
func (b Bound) Site(templates step.Templates) step.Variables {
	if len(b.ranks) == 0 { // it was not bound
		return step.Variables{}
	}
	return templates.Fill(b.ranks)[b.own]
}

// Environment returns the variables that tell a command what it is bound to, the
// same as the plugin's: "GPUTUNE_CPUS=0-3", ….
func (b Bound) Environment(machine *topology.Machine) []string {
	return []string{
		"GPUTUNE_GPUS=" + strings.Join(b.names(machine), ","),
		"GPUTUNE_CPUS=" + b.CPUs.String(),
		"GPUTUNE_MEMS=" + b.Mems.String(),
		"GPUTUNE_MEM_POLICY=" + string(b.MemPolicy),
		"GPUTUNE_LOCALITY=" + string(b.Locality),
	}
}

func (b Bound) names(machine *topology.Machine) []string {
	var names []string
	for _, gpu := range b.GPUs {
		names = append(names, machine.GPUs[gpu].PCI)
	}
	return names
}

// Line says what was done as the plugin's verbose does: "gpu 0000:47:00.0 (node 1),
// cpus 16-31, mems 1 prefer, local".
func (b Bound) Line(machine *topology.Machine) string {
	gpus := "gpu none"
	for i, gpu := range b.GPUs {
		if i == 0 {
			gpus = map[bool]string{true: "gpu ", false: "gpus "}[len(b.GPUs) == 1]
		} else {
			gpus += ", "
		}
		node := machine.GPUs[gpu].Nodes.String()
		if node == "" {
			node = "unknown"
		}
		gpus += machine.GPUs[gpu].PCI + " (node " + node + ")"
	}
	mems := string(b.MemPolicy)
	if !b.Mems.Empty() {
		mems = b.Mems.String() + " " + mems
	}
	line := fmt.Sprintf("%s, cpus %s, mems %s, %s", gpus, b.CPUs, mems, b.Locality)
	for _, note := range b.Notes {
		line += "; " + note
	}
	return line
}
