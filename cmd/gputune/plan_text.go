package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"gputune/internal/compare"
	"gputune/internal/idset"
	"gputune/internal/option"
	"gputune/internal/placement"
	"gputune/internal/table"
)

// planText is a plan as "gputune plan" shows it.
type planText struct {
	plan
	colours bool
}

func (t planText) write(w io.Writer) error {
	from := t.machine.Source
	if t.source.File != "/" {
		from = t.source.File + " (" + from + ")"
	}
	fmt.Fprintf(w, "%s\n\n", strings.Join(table.Wrap(fmt.Sprintf("%s: %s, %s, --%s=%s", from, counted(len(t.request.Tasks), "task"),
		counted(len(t.request.GPUs), "GPU"), option.BindName, t.bind), table.Width), "\n"))
	tasks := t.tasks()
	if err := tasks.Write(w, t.colours); err != nil {
		return err
	}
	if err := t.writeWorkers(w); err != nil {
		return err
	}
	if err := writeRemarks(w, t.warnings(), slices.Concat(t.source.Unknown, t.assumed()), t.colours); err != nil {
		return err
	}
	if err := t.writeReasons(w); err != nil {
		return err
	}
	return t.writeComparison(w)
}

func (t planText) tasks() table.Table {
	list := table.Table{Head: []string{"TASK", "GPUS", "OF NODE", "CPUS", "MEMORY", "LOCALITY"}}
	for _, b := range t.result.Tasks {
		memory := string(b.MemPolicy)
		if !b.Mems.Empty() {
			memory += " " + b.Mems.String()
		}
		list.Add(table.Text(fmt.Sprint(b.LocalID)), table.Text(idset.Of(b.GPUs...).String()), table.Text(t.nodesOf(b.GPUs)),
			table.Text(b.CPUs.String()), table.Text(memory), locality(b.Locality))
	}
	return list
}

// writeWorkers shows where the agent puts the workers of tasks that are followed.
func (t planText) writeWorkers(w io.Writer) error {
	if !t.bind.Follow {
		return nil
	}
	list := table.Table{Head: []string{"GPU", "OF NODE", "CPUS", "MEMORY", "LOCALITY"}}
	for _, share := range t.result.Shares {
		list.Add(table.Text(fmt.Sprint(share.GPU)), table.Text(t.nodesOf([]int{share.GPU})), table.Text(share.CPUs.String()),
			table.Text(share.Mems.String()), locality(share.Locality))
	}
	fmt.Fprintln(w, "\nWhere gputuned puts the worker that uses a GPU; of several GPUs, all that they have:")
	return list.Write(w, t.colours)
}

func (t planText) nodesOf(gpus []int) string {
	var nodes idset.Set
	for _, gpu := range gpus {
		if t.machine.GPUs[gpu].Nodes.Empty() {
			return "unknown"
		}
		nodes = nodes.Or(t.machine.GPUs[gpu].Nodes)
	}
	return nodes.String()
}

func locality(l placement.Locality) table.Cell {
	styles := map[placement.Locality]table.Style{
		placement.Local: table.Good, placement.Mixed: table.Odd, placement.Remote: table.Bad, placement.Unknown: table.Odd,
	}
	return table.Cell{Text: string(l), Style: styles[l]}
}

// warnings says each warning once, with the tasks that it is about.
func (t planText) warnings() []string {
	var texts []string
	of := make(map[string]idset.Set)
	for _, b := range t.result.Tasks {
		for _, warning := range b.Warnings {
			if _, said := of[warning.Text]; !said {
				texts = append(texts, warning.Text)
			}
			of[warning.Text] = of[warning.Text].Or(idset.Of(b.LocalID))
		}
	}
	for i, text := range texts {
		texts[i] = fmt.Sprintf("%s: %s", tasksNamed(of[text]), text)
	}
	return texts
}

func tasksNamed(ids idset.Set) string {
	if ids.Len() == 1 {
		return "task " + ids.String()
	}
	return "tasks " + ids.String()
}

// assumed says what the plan rests on that only Slurm decides: which CPUs it binds
// each task to, before gputune does.
func (t planText) assumed() []string {
	several := slices.ContainsFunc(t.request.Tasks, func(task placement.Task) bool { return len(task.GPUs) > 1 })
	switch {
	case len(t.request.Tasks) < 2:
	case t.bind.Policy.CPUs == placement.CPUsNone:
		return []string{"where Slurm binds each task: the locality is that of all CPUs granted"}
	case t.bind.Policy.GPUs == placement.GPUsLocal && several:
		return []string{"where Slurm binds each task: gpus=local takes all CPUs granted for its own"}
	}
	return nil
}

func (t planText) writeReasons(w io.Writer) error {
	for i, reasons := range t.reasons {
		fmt.Fprintf(w, "\n%s\n", table.Paint(fmt.Sprintf("task %d", t.result.Tasks[i].LocalID), table.Head, t.colours))
		for _, reason := range reasons {
			fmt.Fprintf(w, "  %s\n", strings.Join(table.Wrap(reason, table.Width-4), "\n    "))
		}
	}
	return nil
}

func (t planText) writeComparison(w io.Writer) error {
	if len(t.ways) == 0 {
		return nil
	}
	sums := table.Table{Head: []string{"TASKS PLACED BY", "LOCAL", "MIXED", "REMOTE", "UNKNOWN", "NOT STARTED", "THAT IS"}}
	for _, way := range t.ways {
		c := way.Counts()
		sums.Add(table.Text(way.Name), number(c.Local, table.Good), number(c.Mixed, table.Odd), number(c.Remote, table.Bad),
			number(c.Unknown, table.Odd), number(c.Failed, table.Bad), table.Text(way.Means))
	}
	fmt.Fprintln(w)
	if err := sums.Write(w, t.colours); err != nil {
		return err
	}
	if len(t.machine.Packages) == 0 || len(t.machine.Cores) == 0 {
		fmt.Fprintln(w, "\nPackages or cores are not stated: each CPU counts as a core, and all as one package.")
	}
	each := table.Table{Head: []string{"TASK", "OF NODE"}}
	for _, way := range t.ways {
		each.Head = append(each.Head, strings.TrimPrefix(strings.TrimPrefix(way.Name, "torchrun "), "slurm "))
	}
	for i, b := range t.result.Tasks {
		row := []table.Cell{table.Text(fmt.Sprint(b.LocalID)), table.Text(t.nodesOf(b.GPUs))}
		for _, way := range t.ways {
			row = append(row, t.where(way.Tasks[i]))
		}
		each.Add(row...)
	}
	fmt.Fprintln(w, "\nNodes of the CPUs that each task would run on:")
	if err := each.Write(w, t.colours); err != nil {
		return err
	}
	return t.writeFailures(w)
}

func number(n int, style table.Style) table.Cell {
	if n == 0 {
		return table.Text("0")
	}
	return table.Cell{Text: fmt.Sprint(n), Style: style}
}

// where names the nodes of a task's CPUs.
func (t planText) where(task compare.Task) table.Cell {
	if task.Failure != "" {
		return table.Cell{Text: "fails", Style: table.Bad}
	}
	cell := locality(task.Locality)
	var nodes idset.Set
	for _, node := range t.machine.Nodes {
		if !node.CPUs.And(task.CPUs).Empty() {
			nodes.Add(node.ID)
		}
	}
	cell.Text = nodes.String()
	return cell
}

// writeFailures says once for each way why tasks would not start.
func (t planText) writeFailures(w io.Writer) error {
	for _, way := range t.ways {
		var said []string
		for _, task := range way.Tasks {
			if task.Failure != "" && !slices.Contains(said, task.Failure) {
				said = append(said, task.Failure)
				line := fmt.Sprintf("%s: task %d: %s", way.Name, task.LocalID, task.Failure)
				if _, err := fmt.Fprintf(w, "%s\n", strings.Join(table.Wrap(line, table.Width), "\n  ")); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
