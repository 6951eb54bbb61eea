package job

import (
	"context"
	"errors"
	"slices"
	"sync"

	"gputune/conf"
	"gputune/internal/ledger"
	"gputune/internal/node"
	"gputune/internal/option"
	"gputune/internal/setting"
	"gputune/internal/slurm"
)

// wish is one option whose value the grammar has accepted.
type wish interface {
	// access says who may use the option.
	access() conf.Access
	// changes returns what the option sets for a job, in order; none is an option
	// that sets nothing. An error is why the node or the site does not give it, a
	// *setting.ValueError where another value would do, or a fault if it is nobody's
	// refusal. It changes nothing.
	changes(ctx context.Context, s *scene) ([]ledger.Change, error)
}

// wishes has the maker of each option's wish.
var wishes = map[string]func(value string, site conf.Config) (wish, error){
	option.HugepagesName:   newHugepages,
	option.THPName:         newTHP,
	option.DropCachesName:  newDropCaches,
	option.NodeProfileName: newProfile,
	option.MIGName:         newMIG,
	option.ClocksName:      newClocks,
	option.PowerName:       newPower,
	option.ComputeModeName: newComputeMode,
	option.MPSName:         newMPS,
	option.MemlockName:     newMemlock,
}

// gpuWish is an option that sets each GPU of the job by itself.
type gpuWish interface {
	access() conf.Access
	// gpuChanges is changes for one GPU.
	gpuChanges(env *setting.Environment, uuid string) ([]ledger.Change, error)
}

// eachGPU makes a wish of one for a single GPU.
type eachGPU struct{ gpuWish }

// changes implements wish.
func (e eachGPU) changes(_ context.Context, s *scene) ([]ledger.Change, error) {
	gpus, err := s.wholeGPUs()
	if err != nil {
		return nil, err
	}
	var all []ledger.Change
	for _, gpu := range gpus {
		changes, err := e.gpuChanges(s.env, gpu.uuid)
		if err != nil {
			return nil, err
		}
		all = append(all, changes...)
	}
	return all, nil
}

// stepFile is a wish that has something to say to the job's steps once it is
// applied: a file beside the report, which the plugin reads.
type stepFile interface {
	// file returns what the file's name has behind the job's number, and its text;
	// "" is no file.
	file(s *scene) (suffix, text string)
}

// cautious is a wish that the user should know something about once it is applied.
type cautious interface {
	// caution returns what, in one line; "" is nothing.
	caution(s *scene) string
}

// explaining is a wish that says in its own words why a setting could not be set.
type explaining interface{ explain(error) error }

// fault is an error that refuses nothing: gputune or the site cannot tell.
type fault struct{ error }

// Unwrap returns the error.
func (f fault) Unwrap() error { return f.error }

// scene is a job on its node as wishes see it.
type scene struct {
	root    string // of the node's own /proc, "/" outside tests
	job     slurm.Job
	site    conf.Config
	env     *setting.Environment
	options []*asked
	read    func() (*node.Node, error)
	find    func() (*jobGPUs, error)
	asked   bool // for the GPUs
}

func (h *Host) scene(job slurm.Job, env *setting.Environment, options []*asked) *scene {
	read := sync.OnceValues(h.node)
	return &scene{
		root: h.Root, job: job, site: h.Site, env: env, options: options, read: read,
		find: sync.OnceValues(func() (*jobGPUs, error) { return h.gpus(job, read) }),
	}
}

// wholeGPUs returns the GPUs that the job has on this node, at least one, in the
// order of Slurm's indices. An error is why they are not its to change, or a
// fault.
func (s *scene) wholeGPUs() ([]target, error) {
	found, err := s.find()
	if err != nil {
		return nil, err
	}
	s.asked = true
	return found.list, nil
}

// targets returns the GPUs that some option has asked for.
func (s *scene) targets() []target {
	if !s.asked {
		return nil
	}
	gpus, err := s.wholeGPUs()
	if err != nil {
		return nil
	}
	return gpus
}

// constrained tells whether Slurm keeps the job's tasks to their GPUs.
func (s *scene) constrained() bool {
	found, err := s.find()
	return err == nil && found.constrained
}

// value returns the value of another option of the job that nothing speaks
// against so far.
func (s *scene) value(name string) (value string, given bool) {
	i := slices.IndexFunc(s.options, func(a *asked) bool { return a.Name == name && a.State == "" })
	if i < 0 {
		return "", false
	}
	return s.options[i].Value, true
}

// resolve works out what each option sets. Its error is a fault.
func (s *scene) resolve(ctx context.Context) error {
	for _, a := range granted(s.options) {
		changes, err := a.wish.changes(ctx, s)
		var nobodys fault
		switch {
		case errors.As(err, &nobodys):
			return nobodys
		case err != nil:
			a.refuse(err)
		}
		a.changes = changes
	}
	return nil
}
