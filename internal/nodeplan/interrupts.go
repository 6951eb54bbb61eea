package nodeplan

import (
	"errors"

	"gputune/internal/idset"
	"gputune/internal/placement"
	"gputune/internal/setting"
)

// interrupts returns where those of the job's GPUs and of the network devices on
// their nodes go. A device that is gone, or whose node is not known, keeps its own.
func (p *planner) interrupts() ([]setting.Wish, error) {
	nodes := map[string]idset.Set{}
	for _, gpu := range p.job.GPUs {
		nodes[gpu.PCI] = gpu.Nodes
	}
	near := p.gpuNodes()
	for _, nic := range p.job.Machine.NICs {
		if !nic.Nodes.And(near).Empty() {
			nodes[nic.PCI] = nic.Nodes
		}
	}
	var list []placement.Interrupt
	for pci, of := range nodes {
		movable, managed, err := setting.MovableInterrupts(p.env, pci)
		if errors.Is(err, setting.ErrGone) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, irq := range movable {
			list = append(list, placement.Interrupt{PCI: pci, IRQ: irq, Nodes: of})
		}
		if len(managed) > 0 {
			if p.Unmovable == nil {
				p.Unmovable = map[string][]int{}
			}
			p.Unmovable[pci] = managed
		}
	}
	var wishes []setting.Wish
	for _, place := range placement.Interrupts(p.job.Machine, list, p.cpus()) {
		wishes = append(wishes, setting.Wish{Key: setting.IRQKey(place.PCI, place.IRQ), Value: place.CPUs.String()})
	}
	return wishes, nil
}
