// Command demo shows what --gpu-numa-bind does: it starts a real Slurm on
// loopback, on a machine described as having two NUMA nodes, runs the same job of
// four tasks without and with the option, and prints where each task ran.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"

	"gputune/internal/idset"
	"gputune/internal/topology"
	"gputune/tests/slurm/bed"
	"gputune/tests/slurm/site"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := demo(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func demo(ctx context.Context) (err error) {
	fmt.Println("Starting Slurm on loopback …")
	s, err := site.Start(ctx, site.Options{Bed: bed.Options{ConstrainDevices: true}})
	if why := err; errors.Is(err, bed.ErrUnavailable) {
		if s, err = site.Start(ctx, site.Options{}); err == nil {
			fmt.Printf("  %v: devices are not constrained in this demonstration\n", why)
		}
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()

	describe(s)
	// Four tasks share two CPUs, and their GPUs are dealt out as a user might:
	// Slurm binds the tasks to CPUs without regard to that.
	job := []string{"-Q", "-n2", "--gpus=4", "srun", "-n4", "-O", "--gpu-bind=map_gpu:3,2,1,0"}
	before, err := run(ctx, s, job)
	if err != nil {
		return err
	}
	after, err := run(ctx, s, append(job, "--gpu-numa-bind"))
	if err != nil {
		return err
	}
	fmt.Printf("\n$ salloc %s …\n", strings.Join(job, " "))
	table(s, before)
	fmt.Printf("\n$ salloc %s --gpu-numa-bind …\n", strings.Join(job, " "))
	table(s, after)
	local := 0
	for _, task := range after {
		if locality(s, task) == "local" {
			local++
		}
	}
	if local != len(after) || len(after) != 4 {
		return fmt.Errorf("%d of %d tasks are local with the option: want 4 of 4", local, len(after))
	}
	return nil
}

// task is one task as it saw itself.
type task struct {
	id, gpu string // gpu is the minor number of the device that it may open
	cpus    string // Cpus_allowed_list of /proc/self/status
	policy  string // of /proc/self/numa_maps
}

// look prints what the kernel says about the task: which GPU it may open, where
// it may run, where its memory goes.
const look = `gpu=; for d in "$DEVICES"/nvidia[0-9]; do case "$( { : <"$d"; } 2>&1)" in *ermitted*) ;; *) gpu=$gpu,${d##*nvidia};; esac; done
case $gpu in ,?) gpu=${gpu#,};; *) gpu=$CUDA_VISIBLE_DEVICES;; esac
echo "$SLURM_PROCID $gpu $(sed -n 's/^Cpus_allowed_list:\t//p' /proc/self/status) $(sed -n '1s/^[^ ]* \([^ ]*\).*/\1/p' /proc/self/numa_maps)"`

func run(ctx context.Context, s *site.Site, arguments []string) ([]task, error) {
	command := s.Command("salloc", append(arguments, "sh", "-c", look)...)
	command.Env = []string{"DEVICES=" + s.Dir + "/dev"}
	result, err := command.Run(ctx)
	if err != nil {
		return nil, err
	}
	if !result.OK() {
		return nil, errors.New(result.String())
	}
	tasks := make([]task, strings.Count(result.Stdout, "\n"))
	for line := range strings.Lines(result.Stdout) {
		var t task
		if _, err := fmt.Sscan(line, &t.id, &t.gpu, &t.cpus, &t.policy); err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
		tasks[int(t.id[0]-'0')] = t
	}
	return tasks, nil
}

func describe(s *site.Site) {
	fmt.Println("The machine, as described to gputune:")
	for _, node := range s.Machine.Nodes {
		var gpus []string
		for _, gpu := range s.Machine.GPUs {
			if gpu.Nodes.Has(node.ID) {
				gpus = append(gpus, gpu.PCI)
			}
		}
		fmt.Printf("  node %d: cpus %s, gpus %s\n", node.ID, node.CPUs, strings.Join(gpus, " "))
	}
	fmt.Println("Its memory is this machine's, which may be all on node 0.")
}

func find(s *site.Site, minor string) *topology.GPU {
	for i := range s.Machine.GPUs {
		if fmt.Sprint(s.Machine.GPUs[i].Minor) == minor {
			return &s.Machine.GPUs[i]
		}
	}
	return nil
}

func locality(s *site.Site, t task) string {
	gpu := find(s, t.gpu)
	cpus, err := idset.Parse(t.cpus)
	if gpu == nil || err != nil {
		return "unknown"
	}
	var near idset.Set
	for _, node := range s.Machine.Nodes {
		if gpu.Nodes.Has(node.ID) {
			near = near.Or(node.CPUs)
		}
	}
	switch {
	case cpus.SubsetOf(near):
		return "local"
	case cpus.And(near).Empty():
		return "REMOTE"
	}
	return "MIXED"
}

func table(s *site.Site, tasks []task) {
	w := tabwriter.NewWriter(os.Stdout, 0, 8, 3, ' ', 0)
	fmt.Fprintln(w, "  task\tgpu\tof node\tcpus\tmemory policy\tlocality")
	for _, t := range tasks {
		pci, nodes := "?", "?"
		if gpu := find(s, t.gpu); gpu != nil {
			pci, nodes = gpu.PCI, gpu.Nodes.String()
		}
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\t%s\t%s\n", t.id, pci, nodes, t.cpus, t.policy, locality(s, t))
	}
	w.Flush()
}
