package job

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gputune/conf"
	"gputune/internal/ledger"
	"gputune/internal/node"
	"gputune/internal/option"
	"gputune/internal/setting"
	"gputune/internal/slurm"
)

// asked is one option of the job on its way.
type asked struct {
	Option
	wish    wish
	changes []ledger.Change
	// suffix and text are of a file for the job's steps; "" is none.
	suffix, text string
}

func (a *asked) refuse(err error) {
	a.State, a.Reason, a.Nearest = Refused, err.Error(), nearest(err)
}

// fail refuses for what went wrong when the option was set.
func (a *asked) fail(err error) {
	if w, has := a.wish.(explaining); has {
		err = w.explain(err)
	}
	a.refuse(err)
}

// target is one GPU of the job.
type target struct {
	pci, uuid string
	index     int    // Slurm's, -1 not known
	device    string // its device file, "" not known
	model     string // as the driver names it, "" not known
}

// jobGPUs are the GPUs of the job on this node.
type jobGPUs struct {
	list        []target
	constrained bool // Slurm keeps the job's tasks to them
}

// Asks tells whether the job asked for something, or left something from an
// earlier run: whether Prolog has work that can take time.
func (h *Host) Asks() bool {
	return len(h.variables()) > 0 || h.Holds() || h.dropsBeforeBind()
}

// variables returns the names of gputune's variables of the job.
func (h *Host) variables() []string {
	var list []string
	for _, variable := range h.Environ {
		name, _, _ := strings.Cut(variable, "=")
		if _, ours := option.JobOptionName(name); ours {
			list = append(list, name)
		}
	}
	return list
}

// held tells whether the ledger may have something of a job. It loads nothing.
func (h *Host) held(id string) bool {
	_, err := os.Lstat(filepath.Join(h.Root, string(h.Site.Paths.State), "jobs", id))
	return !errors.Is(err, fs.ErrNotExist)
}

// Prolog carries out the options of the job that the environment names and
// reports on it. Nothing that a user asks for and nothing that goes wrong here
// is a reason to keep the job from running, so it always succeeds; what the user
// has to know is in the report.
func (h *Host) Prolog(ctx context.Context) {
	job, err := slurm.ReadJob(h.getenv)
	if job.ID == "" {
		h.say("%v: nothing is done", err)
		return
	}
	defer h.begun(job)
	if h.held(job.ID) {
		// It has said what is wrong; Apply and the Epilog try again.
		_ = h.release(ctx, job.ID, "its earlier run has left something changed")
	}
	report := h.report(job, "")
	options := h.read()
	switch {
	case len(options) == 0:
		if err := h.reports().remove(job.ID); err != nil {
			h.say("job %s: earlier reports: %v", job.ID, err)
		}
		if err == nil {
			h.beforeBind(ctx, job, options)
		}
		return
	case err != nil:
		report.Fault = err.Error()
	case h.SiteError != nil:
		report.Fault = h.SiteError.Error()
	default:
		report.Fault = h.carryOut(ctx, job, options)
		h.beforeBind(ctx, job, options)
	}
	h.tell(report, options)
}

// Undo puts back what a Prolog has done that died.
func (h *Host) Undo(ctx context.Context) error {
	id, err := slurm.JobID(h.getenv)
	if err != nil || !h.held(id) {
		return err
	}
	return h.release(ctx, id, "not finished")
}

// Lost reports on a Prolog that has not done its work. It touches no GPU.
func (h *Host) Lost(why error) {
	job, err := slurm.ReadJob(h.getenv)
	if err != nil && job.ID == "" {
		h.say("%v", why)
		return
	}
	defer h.begun(job)
	fault := why.Error()
	if h.held(job.ID) {
		fault += "; what is changed is put back by the Epilog"
	}
	h.tell(h.report(job, fault), h.read())
}

// report returns the beginning of a report.
func (h *Host) report(job slurm.Job, fault string) *Report {
	name, _ := slurm.NodeName(h.getenv)
	return &Report{
		Version: reportVersion, Job: job.ID, UID: job.UID, Node: name, Time: h.Now().UTC(),
		OnRefusal: h.Site.Job.OnRefusal, Fault: fault,
	}
}

// tell writes the report and a line for each result.
func (h *Host) tell(report *Report, options []*asked) {
	for _, a := range options {
		if report.Fault != "" && a.State != Refused {
			a.State = Dropped
		}
		report.Options = append(report.Options, a.Option)
		switch a.State {
		case Refused:
			h.say("job %s: %s", report.Job, oneLine(a.line(report.OnRefusal)))
		case Dropped:
			h.say("job %s: %s: not applied", report.Job, a.given())
		case Applied:
			for _, gpu := range a.GPUs {
				for _, s := range gpu.Settings {
					h.say("job %s: --%s: gpu %s: %s %s, was %s", report.Job, a.Name, gpu.PCI, s.Setting, s.Now, s.Before)
				}
			}
			var lines []line
			for _, s := range a.Node {
				lines = append(lines, line{report.Job, s.Setting, fmt.Sprintf("%s, was %s", s.Now, s.Before)})
			}
			for _, l := range together(lines) {
				h.say("job %s: --%s: %s %s", l.job, a.Name, l.key, l.text)
			}
			for _, line := range a.remarks() {
				h.say("job %s: %s: %s", report.Job, a.given(), oneLine(line))
			}
		}
	}
	if report.Fault != "" {
		h.say("job %s: %s", report.Job, oneLine(report.Fault))
	}
	files := map[string]string{}
	for _, a := range options {
		if a.State == Applied && a.suffix != "" {
			files[a.suffix] = a.text
		}
	}
	if err := h.reports().write(report, files); err != nil {
		h.say("job %s: report: %v", report.Job, err)
	}
}

// read reads the options from the environment, in the order in which they are
// carried out. All of it can come from anybody who can submit a job.
func (h *Host) read() []*asked {
	var options []*asked
	for _, o := range option.JobOptions() {
		value, given := h.getenv(o.Variable())
		if !given {
			continue
		}
		a := &asked{Option: Option{Name: o.Name, Value: value}} // what the grammar accepts is short and printable
		var err error
		if a.wish, err = wishes[o.Name](value, h.Site); err != nil {
			a.Value = option.Shown(value)
			a.refuse(err)
		}
		options = append(options, a)
	}
	known := knownVariables()
	unknown := slices.DeleteFunc(h.variables(), func(name string) bool { return known[name] })
	for _, variable := range unknown[:min(len(unknown), maxUnknown)] {
		name, _ := option.JobOptionName(variable)
		value, _ := h.getenv(variable)
		a := &asked{Option: Option{Name: strings.Trim(option.Shown(name), `"`), Value: option.Shown(value)}}
		why := "not an option of the gputune that is installed on this node"
		if len(unknown) > maxUnknown {
			why += ", nor are others that were passed"
		}
		a.refuse(errors.New(why))
		options = append(options, a)
	}
	return options
}

// maxUnknown is how many options are reported that are none. A newer plugin on a
// login node can pass a few; more are nobody's mistake.
const maxUnknown = 4

// carryOut decides about each option and applies what is granted. It returns
// what kept it from doing so at all, "" for nothing.
func (h *Host) carryOut(ctx context.Context, job slurm.Job, options []*asked) (fault string) {
	h.judge(job, options)
	if h.over(options) {
		return ""
	}
	defer h.quiet(job.ID)()
	env := h.environment()
	defer func() {
		if err := env.Close(); err != nil {
			h.say("%v", err)
		}
	}()
	s := h.scene(job, env, options)
	if err := s.resolve(ctx); err != nil {
		return err.Error()
	}
	if h.over(options) {
		return ""
	}
	l, err := h.ledger(env)
	if err != nil {
		return err.Error()
	}
	if err := h.noteMoved(job.ID); err != nil {
		h.say("job %s: where the ledger is cannot be noted: %v", job.ID, err)
	}
	if err := h.clear(ctx, l, job, s.targets()); err != nil {
		return err.Error()
	}
	if err := h.clearNode(ctx, l, s); err != nil {
		return err.Error()
	}
	if err := h.act(ctx, s); err != nil {
		return err.Error()
	}
	for !h.over(options) {
		again, err := h.apply(ctx, l, s)
		if err != nil {
			return err.Error()
		}
		if !again {
			break
		}
	}
	return ""
}

// granted returns the options that nothing speaks against so far.
func granted(options []*asked) []*asked {
	return slices.DeleteFunc(slices.Clone(options), func(a *asked) bool { return a.State != "" })
}

// over tells whether nothing is left to apply. Where a refusal fails the job,
// that is so with the first one.
func (h *Host) over(options []*asked) bool {
	left := granted(options)
	refused := slices.ContainsFunc(options, func(a *asked) bool { return a.State == Refused })
	if refused && h.Site.Job.OnRefusal == conf.RefusalFails {
		for _, a := range left {
			a.State = Dropped
		}
		return true
	}
	return len(left) == 0
}

// judge asks the site who may do what.
func (h *Host) judge(job slurm.Job, options []*asked) {
	who := conf.Identity{
		Partition: job.Partition, Account: job.Account, User: job.User,
		Groups: func() ([]string, error) { return h.Groups(job.UID) },
	}
	for _, a := range granted(options) {
		if err := a.wish.access().Permit(who); err != nil {
			a.refuse(err)
		}
	}
}

// node reads this node. Its error is a fault.
func (h *Host) node() (*node.Node, error) {
	n, err := node.Read(h.Root, h.Site.Paths, h.getenv)
	if err != nil {
		return nil, fault{err}
	}
	for _, line := range n.Log {
		h.say("%s", line)
	}
	return n, nil
}

// gpus returns the GPUs that the job has on this node. An error is why they are
// not its to change; a fault is why they cannot be told.
func (h *Host) gpus(job slurm.Job, read func() (*node.Node, error)) (*jobGPUs, error) {
	switch {
	case job.Part != "":
		return nil, fmt.Errorf("the job shares its GPU: %s, and only a whole GPU can be changed", job.Part)
	case job.HasMIG():
		return nil, errors.New("the job has MIG devices, and only a whole GPU can be changed")
	case !job.HasGPUs():
		return nil, errors.New("the job has no GPU of its own on this node, ask for one with --gpus or --gres=gpu")
	}
	n, err := read()
	if err != nil {
		return nil, err
	}
	if n.Unread != nil {
		return nil, fault{n.Unread}
	}
	positions, err := n.GPUs(job)
	if errors.Is(err, node.ErrPart) {
		return nil, fmt.Errorf("%w, and only a whole GPU can be changed", err)
	}
	if err != nil {
		return nil, fault{err}
	}
	found := &jobGPUs{constrained: n.ConstrainDevices}
	for _, position := range positions {
		gpu := n.Machine.GPUs[position]
		if n.Sharded[position] {
			return nil, fmt.Errorf("gpu %s: gres/shard can give it to several jobs at once, and only a whole GPU can be changed", gpu.PCI)
		}
		if n.Divided[position] {
			return nil, fmt.Errorf("gpu %s: gres.conf gives MIG devices of it to jobs, and only a whole GPU can be changed", gpu.PCI)
		}
		if gpu.UUID == "" {
			return nil, fault{fmt.Errorf("gpu %s: its UUID is not known: is the NVIDIA driver loaded?", gpu.PCI)}
		}
		found.list = append(found.list, target{
			pci: gpu.PCI, uuid: gpu.UUID, index: slices.Index(n.Order, position), device: n.Devices[position], model: gpu.Model,
		})
	}
	return found, nil
}

// clear puts back what other jobs have left on GPUs that Slurm has given to this
// job alone: they have ended, and their Epilog could not do it or never ran.
func (h *Host) clear(ctx context.Context, l *ledger.Ledger, job slurm.Job, gpus []target) error {
	domains := make([]string, len(gpus))
	for i, gpu := range gpus {
		domains[i] = setting.Domain(setting.GPUKey(gpu.uuid, setting.PersistenceName))
	}
	holders, err := l.Holders(domains...)
	if err != nil {
		return err
	}
	for _, holder := range holders {
		if holder == job.ID {
			continue
		}
		switch runs, err := slurm.HasStep(h.Root, holder); {
		case err != nil:
			return err
		case runs:
			return fmt.Errorf("job %s, which runs on this node, has changed a GPU that Slurm has given to this one: do gres.conf and the devices agree?", holder)
		}
		if err := h.releaseFrom(ctx, l, holder, "it has ended and left GPUs changed"); err != nil {
			return fmt.Errorf("job %s has left a GPU changed that cannot be put back: %w", holder, err)
		}
		if err := h.reports().remove(holder); err != nil {
			h.say("job %s: reports: %v", holder, err)
		}
	}
	return nil
}

// apply makes the changes of all granted options. It returns whether to try
// again, without an option that is refused now.
func (h *Host) apply(ctx context.Context, l *ledger.Ledger, s *scene) (again bool, err error) {
	if contradict(s.options) {
		return true, nil
	}
	changes, owner, err := h.changes(ctx, s)
	if err != nil {
		return false, err
	}
	result, err := l.Apply(ctx, s.job.ID, changes)
	if err == nil {
		for _, a := range granted(s.options) {
			a.State = Applied
			a.note(result, s.targets())
			if w, has := a.wish.(noted); has {
				w.note(&a.Option)
			}
			if w, has := a.wish.(stepFile); has {
				a.suffix, a.text = w.file(s)
			}
			if w, has := a.wish.(cautious); has {
				a.Caution = w.caution(s)
			}
		}
		h.others(s.job, result)
		return false, nil
	}
	var (
		key    *ledger.KeyError
		held   *ledger.HeldError
		failed *ledger.ApplyError
	)
	switch {
	case errors.As(err, &failed) && !failed.Clean():
		return false, fmt.Errorf("%w; the Epilog tries again to put back what is left", err)
	case ctx.Err() != nil: // the time is over, whatever it was spent on
		return false, err
	case errors.As(err, &failed) && owner[failed.Key] != nil:
		owner[failed.Key].fail(failed.Err)
		return true, nil
	case errors.As(err, &key):
		owner[key.Key].fail(key.Err)
		return true, nil
	case errors.As(err, &held):
		owner[held.Key].refuse(held)
		return true, nil
	}
	return false, err
}

// contradict refuses options that want another value of a setting than one before
// them. It returns whether there was any.
func contradict(options []*asked) bool {
	type want struct{ value, by string }
	wants := map[string]want{}
	found := false
	for _, a := range granted(options) {
		for _, change := range a.changes {
			key := change.Setting.Key()
			if other, has := wants[key]; has && other.value != change.Value && a.State == "" {
				a.refuse(fmt.Errorf("%s cannot be %s: --%s wants it to be %s", key, change.Value, other.by, other.value))
				found = true
			}
		}
		if a.State != "" {
			continue
		}
		for _, change := range a.changes {
			wants[change.Setting.Key()] = want{change.Value, a.Name}
		}
	}
	return found
}

// changes returns the changes of all granted options, each key once, and whose it
// is. Persistence comes first: without it the driver forgets the rest when the
// last program leaves the GPU.
func (h *Host) changes(ctx context.Context, s *scene) ([]ledger.Change, map[string]*asked, error) {
	var changes []ledger.Change
	owner := map[string]*asked{}
	for _, gpu := range s.targets() {
		persistence, err := setting.Parse(s.env, setting.GPUKey(gpu.uuid, setting.PersistenceName))
		if err != nil {
			return nil, nil, err
		}
		if _, err := persistence.Check(ctx, "on"); errors.Is(err, setting.ErrUnsupported) {
			continue
		}
		changes = append(changes, ledger.Change{Setting: persistence, Value: "on"})
		owner[persistence.Key()] = firstOnGPUs(s.options)
	}
	for _, a := range granted(s.options) {
		for _, change := range a.changes {
			key := change.Setting.Key()
			if slices.ContainsFunc(changes, func(c ledger.Change) bool { return c.Setting.Key() == key && c.Value == change.Value }) {
				continue // two options want the same
			}
			changes = append(changes, change)
			owner[key] = a
		}
	}
	for i := range changes {
		key := changes[i].Setting.Key()
		before := baseline(h.Site.Baseline, key[strings.LastIndexByte(key, '/')+1:])
		if before == "" {
			continue
		}
		if _, err := changes[i].Setting.Check(ctx, before); err != nil {
			return nil, nil, fmt.Errorf("[baseline] of gputune.toml: %w", err)
		}
		changes[i].Before = before
	}
	return changes, owner, nil
}

// firstOnGPUs returns the first granted option that changes a GPU, or else the
// first of all.
func firstOnGPUs(options []*asked) *asked {
	for _, a := range granted(options) {
		if slices.ContainsFunc(a.changes, func(c ledger.Change) bool {
			return setting.Domain(c.Setting.Key()) != setting.HostDomain
		}) {
			return a
		}
	}
	return granted(options)[0]
}

// note keeps what the ledger did for the option: by GPU, and for the node.
func (a *asked) note(result ledger.Report, gpus []target) {
	list := make([]GPU, len(gpus))
	for i, gpu := range gpus {
		list[i] = GPU{PCI: gpu.pci, UUID: gpu.uuid}
	}
	for _, outcome := range result.Outcomes {
		if !slices.ContainsFunc(a.changes, func(c ledger.Change) bool { return c.Setting.Key() == outcome.Key }) {
			continue
		}
		did := Changed{Setting: outcome.Key, Before: outcome.Prior, Now: outcome.Set}
		target := &a.Node
		for i, gpu := range gpus {
			if name, isGPUs := strings.CutPrefix(outcome.Key, setting.GPUKey(gpu.uuid, "")); isGPUs {
				did.Setting, target = name, &list[i].Settings
			}
		}
		*target = append(*target, did)
	}
	a.GPUs = slices.DeleteFunc(list, func(gpu GPU) bool { return len(gpu.Settings) == 0 })
}
