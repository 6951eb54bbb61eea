// Command bench measures what the plugin costs a step: the time of the same
// step without the plugin, with the plugin and no option, and with the option,
// in turn within one run, and the memory of slurmstepd.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"time"

	"gputune/tests/slurm/bed"
	"gputune/tests/slurm/site"
)

func main() {
	rounds := flag.Int("rounds", 100, "steps of each kind")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := bench(ctx, *rounds); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// kind is one way to run the step.
type kind struct {
	name   string
	site   *site.Site
	job    string
	option []string
	times  []time.Duration
}

func bench(ctx context.Context, rounds int) (err error) {
	without, err := start(ctx, site.Options{Without: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, without.Close()) }()
	// Quiet: this machine's memory is not the described one's, and warnings of
	// that are no part of what a step costs.
	with, err := start(ctx, site.Options{Config: "[numa_bind]\nitems = \"quiet\"\n"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, with.Close()) }()

	kinds := []*kind{
		{name: "no plugin", site: without},
		{name: "plugin idle", site: with},
		{name: "option on", site: with, option: []string{"--gpu-numa-bind"}},
	}
	for _, k := range kinds {
		result, err := run(ctx, k.site, "salloc", "--no-shell", "-n2", "--gpus=4")
		if err != nil {
			return err
		}
		for field := range strings.FieldsSeq(result.Stderr) {
			if _, err := strconv.Atoi(field); err == nil {
				k.job = field
			}
		}
		if k == kinds[1] {
			kinds[2].job = k.job
			break
		}
	}
	for round := range rounds + 1 {
		for _, k := range kinds {
			begin := time.Now()
			if _, err := run(ctx, k.site, "srun", slices.Concat(k.option, []string{"--jobid=" + k.job, "-n8", "-O", "true"})...); err != nil {
				return err
			}
			if round > 0 { // the first warms up
				k.times = append(k.times, time.Since(begin))
			}
		}
	}
	fmt.Printf("step time of srun -n8 true, %d steps of each kind in turn (aims: idle 1.01, on 1.05 and 5 ms)\n", rounds)
	for _, k := range kinds {
		var differences []time.Duration
		for i, t := range k.times {
			differences = append(differences, t-kinds[0].times[i])
		}
		fmt.Printf("  %-12s median %6.1f ms   ratio %.3f   paired difference, median %+.2f ms\n", k.name, ms(median(k.times)),
			float64(median(k.times))/float64(median(kinds[0].times)), ms(median(differences)))
	}
	return memory(ctx, kinds)
}

// run is Bed.Run for a command that has to succeed.
func run(ctx context.Context, s *site.Site, name string, arguments ...string) (bed.Result, error) {
	result, err := s.Run(ctx, name, arguments...)
	if err == nil && !result.OK() {
		err = errors.New(result.String())
	}
	return result, err
}

func start(ctx context.Context, options site.Options) (*site.Site, error) {
	s, err := site.Start(ctx, withDevices(options, true))
	if errors.Is(err, bed.ErrUnavailable) {
		s, err = site.Start(ctx, withDevices(options, false))
	}
	return s, err
}

func withDevices(options site.Options, constrained bool) site.Options {
	options.Bed.ConstrainDevices = constrained
	return options
}

// memory prints the peak resident memory (VmHWM) of the step's slurmstepd while
// a task of it runs.
func memory(ctx context.Context, kinds []*kind) error {
	fmt.Println("peak memory of slurmstepd (aim: 6000 kB more)")
	base := 0
	for i, k := range kinds {
		before := k.site.Stepds()
		command := k.site.Command("srun", slices.Concat(k.option, []string{"--jobid=" + k.job, "-n8", "-O", "sh", "-c", "echo ready; sleep 2"})...)
		if err := command.Start(ctx); err != nil {
			return err
		}
		if err := command.WaitOutput(ctx, strings.Repeat("ready\n", 8)); err != nil {
			return err
		}
		peak := 0
		for _, pid := range k.site.Stepds() {
			if !slices.Contains(before, pid) {
				peak = max(peak, highWater(pid))
			}
		}
		if _, err := command.Wait(); err != nil {
			return err
		}
		if i == 0 {
			base = peak
		}
		fmt.Printf("  %-12s %6d kB   %+d kB\n", k.name, peak, peak-base)
	}
	return nil
}

func highWater(pid int) int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if value, found := strings.CutPrefix(line, "VmHWM:"); found {
			kb, _ := strconv.Atoi(strings.Fields(value)[0])
			return kb
		}
	}
	return 0
}

func median(times []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(times))
	return sorted[len(sorted)/2]
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
