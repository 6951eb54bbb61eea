package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"gputune/conf"
	"gputune/internal/cgroup"
	"gputune/internal/launch"
	"gputune/internal/node"
	"gputune/internal/nvml"
	"gputune/internal/option"
	"gputune/internal/placement"
	"gputune/internal/step"
	"gputune/internal/topology"
)

// gpusAuto is the value of --gpus for those that the process sees.
const gpusAuto = "auto"

// errFollow is about the process alone that becomes the command: a site's default is
// passed over.
var errFollow = errors.New("--bind follow: the agent follows the workers of Slurm steps alone, not those of a process that binds itself: " +
	"want srun --gpu-numa-bind=follow, or gputune exec for each worker, as in torchrun --no-python gputune exec -- python train.py")

type execFlags struct{ gpus, bind, config string }

func execCommand() *cobra.Command {
	var f execFlags
	command := &cobra.Command{
		Use:   "exec [OPTION…] [--] COMMAND [ARGUMENT…]",
		Short: "Run a command near its GPUs, without Slurm's plugin and without root",
		Long: `Bind this process to the CPUs and the memory near its GPUs and become COMMAND.
It is one rank's wrapper for torchrun, mpirun and srun: each rank gets its part
of the GPUs that all see. What it may run on before counts as granted, so that
launchers must not bind it: srun --cpu-bind=none, mpirun --bind-to none.
GPUTUNE_GPUS and the like say what it was bound to. It has the variables of
[environment] in gputune.toml that are not set, as the tasks of a step do.
Signals and exit status are the command's own; 127: not found, 126: cannot be
run, 125: gputune itself failed.`,
		Example: `  gputune exec --gpus 0,1 --bind cpus=exclusive,mem=bind -- ./train
  torchrun --nproc-per-node 8 --no-python gputune exec -- python train.py
  mpirun --bind-to none gputune exec ./solver`,
		Args: func(_ *cobra.Command, arguments []string) error {
			if len(arguments) == 0 {
				return ownFault(errors.New("which command? want gputune exec [OPTION…] -- COMMAND"))
			}
			return nil
		},
		RunE: func(command *cobra.Command, arguments []string) error { return f.run(command.ErrOrStderr(), arguments) },
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveDefault
		},
	}
	flags := command.Flags()
	flags.SetInterspersed(false) // the command's flags are its own
	flags.StringVar(&f.gpus, "gpus", gpusAuto, "`LIST` of GPUs: indices, addresses, UUIDs; auto: those it sees")
	flags.StringVar(&f.bind, "bind", "", "`ITEMS` of --gpu-numa-bind: see gputune help items")
	configFlag(command, &f.config)
	completeItems(command, "bind")
	command.SetFlagErrorFunc(func(command *cobra.Command, err error) error { return ownFault(flagError(command, err)) })
	return command
}

func ownFault(err error) error { return statusError{err, launch.StatusOwnFault} }

// run binds and executes; it returns if it could not.
func (f execFlags) run(stderr io.Writer, arguments []string) error {
	// Affinity and memory policy are a thread's, and the one that executes keeps its own.
	runtime.LockOSThread()
	path, err := launch.Find(arguments[0])
	if err != nil {
		return statusError{err, launch.Status(err)}
	}
	site, err := conf.Load(f.config)
	if err != nil {
		fmt.Fprintf(stderr, "gputune: warning: %v: the defaults are used\n", err)
	}
	bind, err := option.ParseBind(f.bind, site.NUMABind.Items.Bind)
	if err != nil {
		return ownFault(err)
	}
	if given, err := option.ParseBind(f.bind, option.DefaultBind()); err == nil && given.Follow {
		return ownFault(errFollow)
	}
	environment := os.Environ()
	if bind.On {
		set, unset, err := f.bound(stderr, site, bind)
		if err != nil {
			return ownFault(err)
		}
		environment = with(environment, set, unset)
	}
	err = launch.Exec(path, arguments, environment)
	return statusError{err, launch.Status(err)}
}

// bound binds this process and returns the variables that say so and those that the
// site gives, and the names of those to be taken away. What cannot be had as asked is
// a warning, or under strict an error.
func (f execFlags) bound(stderr io.Writer, site conf.Config, bind option.Bind) (set, unset []string, err error) {
	say := speaker{w: stderr, report: bind.Report}
	process, note, err := f.process(site.Paths, bind.Policy)
	var unusable refusal
	switch {
	case errors.As(err, &unusable):
		return nil, nil, err
	case err != nil && bind.Strict:
		return nil, nil, err
	case err != nil:
		say.warn(fmt.Sprintf("not bound: %v", err))
		return nil, nil, nil
	}
	say.rank = process.Rank
	b, err := process.Bind()
	if err != nil {
		b.Warnings = append(b.Warnings, err.Error())
	}
	if note != "" {
		b.Notes = append(b.Notes, note)
	}
	if bind.Strict && len(b.Warnings) > 0 {
		return nil, nil, errors.New(strings.Join(b.Warnings, "; "))
	}
	say.warn(b.Warnings...)
	templates, err := step.ReadTemplates(site, process.Machine)
	if err != nil {
		b.Notes = append(b.Notes, err.Error())
	}
	set, unset, notes := launch.SiteVariables(b.Site(templates), os.LookupEnv)
	b.Notes = append(b.Notes, notes...)
	if bind.Report == option.ReportVerbose {
		say.line(b.Line(process.Machine))
	}
	return append(b.Environment(process.Machine), set...), unset, nil
}

// process finds out what this process is. A refusal is an error about a value that
// the user gave.
func (f execFlags) process(paths conf.Paths, policy placement.Policy) (p launch.Process, note string, err error) {
	p.Policy = policy
	if p.Rank, err = launch.FromEnvironment(os.LookupEnv); err != nil {
		return p, "", refusal{err}
	}
	// A stale snapshot is the administrator's business, not the user's.
	if p.Machine, _, err = node.Machine(paths); err != nil {
		return p, "", err
	}
	if string(paths.Machine) == "/" && doubtful(p.Machine) {
		p.Machine.AddNVML(nvml.New())
	}
	p.Visible = launch.Visible(p.Machine, string(paths.Machine))
	if f.gpus == gpusAuto {
		p.GPUs, note, err = launch.Uses(p.Machine, p.Visible, os.LookupEnv)
	} else {
		p.GPUs, err = p.Machine.FindGPUs(f.gpus)
	}
	if err != nil {
		return p, "", refusal{err}
	}
	p.Mems, err = cgroup.MemsAllowed("/", os.Getpid())
	return p, note, err
}

// doubtful tells whether NVML may know more than the kernel does; it is not asked
// otherwise, since that takes far longer than all the rest.
func doubtful(m *topology.Machine) bool {
	for _, gpu := range m.GPUs {
		if gpu.Nodes.Empty() {
			return true
		}
	}
	return false
}

// with returns the environment with variables set, and others, by name, taken away.
func with(environment, set, unset []string) []string {
	var all []string
	for _, variable := range environment {
		name, _, _ := strings.Cut(variable, "=")
		replaced := slices.ContainsFunc(set, func(s string) bool { return strings.HasPrefix(s, name+"=") })
		if !replaced && !slices.Contains(unset, name) {
			all = append(all, variable)
		}
	}
	return append(all, set...)
}

// speaker writes what exec has to say, as the plugin does.
type speaker struct {
	w      io.Writer
	rank   launch.Rank
	report option.Report
}

func (s speaker) line(text string) {
	host, err := os.Hostname()
	if err != nil {
		host = "this machine"
	}
	fmt.Fprintf(s.w, "gputune: %s task %d: %s\n", host, s.rank.Local, text)
}

func (s speaker) warn(texts ...string) {
	if s.report == option.ReportQuiet {
		return
	}
	for _, text := range texts {
		s.line("warning: " + text)
	}
}
