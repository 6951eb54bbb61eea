package draw

import (
	"fmt"
	"strings"

	"gputune/internal/idset"
	"gputune/internal/placement"
	"gputune/internal/topology"
)

// task is one task of a plan.
type task struct {
	name    string
	binding placement.Binding
}

// Plan draws a machine with each task's cores, memory and GPUs in its colour.
// request and result are those of the plan.
func Plan(m *topology.Machine, request placement.Request, result placement.Result) Drawing {
	p := painter{m: m, granted: m.CPUs}
	if !request.CPUs.Empty() {
		p.granted = request.CPUs
	}
	for _, binding := range result.Tasks {
		p.tasks = append(p.tasks, task{fmt.Sprint(binding.LocalID), binding})
	}
	counted := fmt.Sprintf("%d tasks", len(p.tasks))
	if len(p.tasks) == 1 {
		counted = "1 task"
	}
	return p.drawing(counted+" on "+p.summary(), p.legend())
}

// legend says in words what each task has.
func (p *painter) legend() group {
	var rows []group
	for i, t := range p.tasks {
		b := t.binding
		var gpus []string
		for _, gpu := range b.GPUs {
			gpus = append(gpus, fmt.Sprint(gpu))
		}
		text := fmt.Sprintf("task %s: GPU %s, cpus %s, mem %s", t.name, or(strings.Join(gpus, ","), "none"), or(b.CPUs.String(), "left alone"), b.MemPolicy)
		if !b.Mems.Empty() {
			text += " " + b.Mems.String()
		}
		style := Shape{Title: text}
		if b.Locality == placement.Remote || b.Locality == placement.Mixed {
			style.Fill = alarm
		}
		var row group
		row.add(Shape{Kind: Box, Y: 1, W: cell, H: cell, Fill: taskColour(i), Title: text})
		row.put(cell+6, 0, paragraph(text+", "+string(b.Locality), small, 560, 2, style))
		rows = append(rows, row)
	}
	if len(rows) > 4 {
		half := (len(rows) + 1) / 2
		left := stack(4, rows[:half]...)
		var both group
		both.put(0, 0, left)
		both.put(left.w+3*gap, 0, stack(4, rows[half:]...))
		rows = []group{both}
	}
	rows = append(rows, paragraph("Grey cores are granted and no task's, white ones are not granted.", small, 560, 2, Shape{Fill: faint}))
	return stack(4, rows...)
}

func or(text, other string) string {
	if text == "" {
		return other
	}
	return text
}

// names says which tasks are meant.
func (p *painter) names(tasks []int) string {
	var ids idset.Set
	for _, i := range tasks {
		if id := p.tasks[i].binding.LocalID; id >= 0 && id < idset.Limit {
			ids.Add(id)
		}
	}
	if ids.Len() == 1 {
		return "task " + ids.String()
	}
	return "tasks " + ids.String()
}
