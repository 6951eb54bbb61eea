// Package job is what gputune does for a job on one node: the Prolog carries out
// the options that the job was submitted with, the Epilog puts back what that
// changed. Package slurm says who the job is, conf what the site allows, package
// ledger changes and restores; this package decides and reports.
package job

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"gputune/conf"
	"gputune/internal/action"
	"gputune/internal/ledger"
	"gputune/internal/mps"
	"gputune/internal/option"
	"gputune/internal/setting"
)

// Host is the node as Prolog and Epilog find it.
type Host struct {
	// Root is prepended to the folders of gputune's own files and to device
	// files, "/" outside tests.
	Root string
	// Environ is the environment that slurmd has made, as os.Environ gives it.
	Environ []string
	// Site is the configuration. SiteError is why it is only the default one.
	Site      conf.Config
	SiteError error
	// NVML opens the management library. It is called when a GPU is to be
	// changed and not before.
	NVML func() (setting.Devices, error)
	// Groups returns the names of a user's groups.
	Groups func(uid uint32) ([]string, error)
	// Sync writes what waits for the disks; nil is sync(1).
	Sync action.Syncer
	// Now is the clock for reports.
	Now func() time.Time
	// Output gets a line for each result, for slurmd's log.
	Output io.Writer

	usual bool // Site is that of the configuration's usual place
}

// getenv is getenv(3) of slurmd's environment.
func (h *Host) getenv(name string) (string, bool) {
	for _, variable := range h.Environ {
		if value, found := strings.CutPrefix(variable, name+"="); found {
			return value, true
		}
	}
	return "", false
}

// Relevant returns the part of the environment that the programs read, for a child
// of theirs: a user can make the whole of it as large as the kernel lets any
// process have.
func (h *Host) Relevant() []string {
	var list []string
	unknown := 0
	known := knownVariables()
	for _, variable := range h.Environ {
		name, _, _ := strings.Cut(variable, "=")
		_, ours := option.JobOptionName(name)
		if ours && !known[name] {
			if unknown++; unknown > 2*maxUnknown {
				continue
			}
		}
		if ours || strings.HasPrefix(name, "SLURM") || strings.HasPrefix(name, "CUDA_") || name == bindVariable || name == "LD_LIBRARY_PATH" || name == "PATH" {
			list = append(list, variable)
		}
	}
	return list
}

// knownVariables returns the names of the variables that options come in.
func knownVariables() map[string]bool {
	known := map[string]bool{}
	for _, o := range option.JobOptions() {
		known[o.Variable()] = true
	}
	return known
}

// say writes one line.
func (h *Host) say(format string, arguments ...any) {
	fmt.Fprintf(h.Output, format+"\n", arguments...)
}

// Open returns the node's ledger, and what its settings work on, which the
// caller closes.
func (h *Host) Open() (*ledger.Ledger, *setting.Environment, error) {
	environment := h.environment()
	l, err := h.ledger(environment)
	return l, environment, err
}

// environment returns what the node's settings work on. It touches nothing.
func (h *Host) environment() *setting.Environment {
	environment := setting.NewEnvironment(string(h.Site.Paths.Machine), h.NVML)
	environment.MPS = mps.Host{
		Root: h.Root, Run: string(h.Site.Paths.Run), Log: slog.New(lines{h.Output}),
		Limits: mps.Limits{Ready: time.Duration(h.Site.MPS.ReadyDeadline)},
	}
	return environment
}

func (h *Host) ledger(environment *setting.Environment) (*ledger.Ledger, error) {
	return ledger.Open(string(h.Site.Paths.State), ledger.Options{
		Root:     h.Root,
		Resolve:  func(key string) (setting.Setting, error) { return setting.Parse(environment, key) },
		Log:      slog.New(lines{h.Output}),
		LockWait: time.Duration(h.Site.Job.LockWait),
	})
}

// lines is a slog.Handler that writes "message: key value, …": slurmd puts its
// own time and level before what a Prolog writes.
type lines struct{ to io.Writer }

// Enabled implements slog.Handler.
func (lines) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }

// Handle implements slog.Handler.
func (l lines) Handle(_ context.Context, r slog.Record) error {
	text, separator := r.Message, ": "
	r.Attrs(func(a slog.Attr) bool {
		text += fmt.Sprintf("%s%s %v", separator, a.Key, a.Value)
		separator = ", "
		return true
	})
	_, err := fmt.Fprintln(l.to, text)
	return err
}

// WithAttrs implements slog.Handler. The ledger does not use it.
func (l lines) WithAttrs([]slog.Attr) slog.Handler { return l }

// WithGroup implements slog.Handler. The ledger does not use it.
func (l lines) WithGroup(string) slog.Handler { return l }
