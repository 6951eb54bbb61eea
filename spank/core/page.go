package main

/*
#include "../abi/gputune_core.h"
*/
import "C"

import (
	"fmt"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"gputune/internal/option"
	"gputune/internal/placement"
	"gputune/internal/step"
	"gputune/internal/topology"
)

// page is the memory shared with the C half and the tasks.
type page C.struct_gputune_page

func (p *page) slots() []C.struct_gputune_task {
	// task is a flexible array member, which cgo leaves out of the Go type.
	first := unsafe.Add(unsafe.Pointer(p), C.sizeof_struct_gputune_page)
	return unsafe.Slice((*C.struct_gputune_task)(first), int(p.tasks))
}

func (p *page) request() step.Request {
	environment := make(map[string]string)
	for variable := range strings.SplitSeq(C.GoStringN(&p.environment[0], C.int(p.environment_size)), "\x00") {
		if name, value, found := strings.Cut(variable, "="); found {
			environment[name] = value
		}
	}
	return step.Request{
		Root:        "/",
		Config:      text(p.config[:]),
		Option:      text(p.option[:]),
		Given:       p.given != 0,
		Job:         uint32(p.job),
		Step:        uint32(p.step),
		MIG:         text(p.mig[:]),
		MemoryMiB:   uint64(p.memory_mib),
		Environment: environment,
		Process: map[string]string{
			"SLURMD_NODENAME": text(p.node[:]),
			"SLURM_CONF":      text(p.slurm_conf[:]),
		},
	}
}

func (p *page) opened(s *step.Step) error {
	if len(s.Machine.GPUs) > len(p.gpu) || len(s.Order) > len(p.order) {
		return fmt.Errorf("%d GPUs, %d of Slurm's: at most %d are supported", len(s.Machine.GPUs), len(s.Order), len(p.gpu))
	}
	p.putLog(s)
	p.strict = 0
	if s.Option.Strict {
		p.strict = 1
	}
	p.report = map[option.Report]C.uint32_t{
		option.ReportWarnings: C.GPUTUNE_REPORT_WARNINGS,
		option.ReportVerbose:  C.GPUTUNE_REPORT_VERBOSE,
		option.ReportQuiet:    C.GPUTUNE_REPORT_QUIET,
	}[s.Option.Report]
	p.mem = map[placement.MemMode]C.uint32_t{
		placement.MemNone:       C.GPUTUNE_MEM_NONE,
		placement.MemPrefer:     C.GPUTUNE_MEM_PREFER,
		placement.MemBind:       C.GPUTUNE_MEM_BIND,
		placement.MemInterleave: C.GPUTUNE_MEM_INTERLEAVE,
	}[s.Option.Policy.Mem]
	p.pairing = map[placement.GPUMode]C.uint32_t{
		placement.GPUsAuto:  C.GPUTUNE_GPUS_AUTO,
		placement.GPUsAll:   C.GPUTUNE_GPUS_ALL,
		placement.GPUsLocal: C.GPUTUNE_GPUS_LOCAL,
	}[s.Option.Policy.GPUs]
	put(p.keep_cpus[:], s.KeepCPUs)
	put(p.keep_mems[:], s.KeepMems)
	p.gpus = C.uint32_t(len(s.Machine.GPUs))
	for i, gpu := range s.Machine.GPUs {
		slot := &p.gpu[i]
		slot.fd = -1
		slot.model = C.uint32_t(slices.IndexFunc(s.Machine.GPUs, func(other topology.GPU) bool { return other.Model == gpu.Model }))
		put(slot.device[:], s.Devices[i])
		put(slot.pci[:], gpu.PCI)
		put(slot.uuid[:], gpu.UUID)
		putWords(slot.nodes[:], gpu.Nodes)
		for m, uuid := range gpu.MIG[:min(len(gpu.MIG), len(slot.mig))] {
			put(slot.mig[m][:], uuid)
		}
	}
	p.state = C.GPUTUNE_OPEN
	return nil
}

// openDevices opens the GPUs' device files for the probe: O_PATH neither asks
// the driver nor wakes the GPU. A GPU without its file is lost to the step.
func (p *page) openDevices(s *step.Step) {
	for i, device := range s.Devices {
		if device == "" {
			continue
		}
		fd, err := unix.Open(device, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			s.Lose(i, fmt.Errorf("device file %s: %w", device, err))
			continue
		}
		p.gpu[i].fd = C.int32_t(fd)
	}
}

func (p *page) closeDevices() {
	for i := range p.gpus {
		if fd := p.gpu[i].fd; fd >= 0 {
			_ = unix.Close(int(fd)) // O_PATH: there is nothing to flush
			p.gpu[i].fd = -1
		}
	}
}

// putLog hands over what is for slurmd's log.
func (p *page) putLog(s *step.Step) {
	put(p.log[:], strings.Join(s.Log, "\n"))
	s.Log = nil
}

// putVariables hands over a task's variables. What there is no room for is logged.
func putVariables(s *step.Step, target []C.char, variables step.Variables) {
	text, err := variables.Pack(len(target))
	if err != nil {
		s.Log = append(s.Log, strings.Split(err.Error(), "\n")...)
	}
	for i := range len(text) {
		target[i] = C.char(text[i])
	}
}

func (p *page) bound(s *step.Step, result step.Result) {
	for i := range result.Tasks {
		slot := &p.slots()[i]
		slot.variables_gpus = gpuMask(result.Tasks[i].Variables.GPUs)
		putVariables(s, slot.variables[:], result.Tasks[i].Variables)
	}
	for _, variables := range result.OfGPU {
		putVariables(s, p.gpu[variables.GPUs.Min()].variables[:], variables)
	}
	putVariables(s, p.variables[:], result.Anywhere)
	put(p.cautions[:], strings.Join(result.Cautions, "\n"))
	p.putLog(s)
	p.orders = C.uint32_t(len(s.Order))
	for i, gpu := range s.Order {
		p.order[i] = C.int32_t(gpu)
	}
	p.step_gpus = gpuMask(result.GPUs)
	put(p.follow_file[:], result.FollowFile)
	put(p.not_followed[:], result.NotFollowed)
	for _, share := range result.Shares {
		slot := &p.gpu[share.GPU]
		putWords(slot.cpus[:], share.CPUs)
		putWords(slot.near[:], share.Near)
		putWords(slot.mems[:], share.Mems)
		lines := make([]string, len(share.Warnings))
		for i, warning := range share.Warnings {
			lines[i] = warning.Text
		}
		put(slot.warnings[:], strings.Join(lines, "\n"))
	}
	for i, outcome := range result.Tasks {
		slot := &p.slots()[i]
		put(slot.visible[:], strings.Join(outcome.Visible, ","))
		slot.sees = gpuMask(outcome.Sees)
		if outcome.ByEnvironment {
			slot.by_environment = 1
		}
		for _, gpu := range outcome.Binding.GPUs {
			slot.gpus |= 1 << gpu
		}
		putWords(slot.cpus[:], outcome.Binding.CPUs)
		putWords(slot.mems[:], outcome.Binding.Mems)
		put(slot.warnings[:], strings.Join(outcome.Warnings, "\n"))
		put(slot.notes[:], strings.Join(outcome.Notes, "\n"))
	}
	p.state = C.GPUTUNE_BOUND
}
