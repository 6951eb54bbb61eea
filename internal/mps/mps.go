// Package mps runs NVIDIA's Multi-Process Service for a job: a control daemon
// for the job's GPUs, as the job's user, in folders that nobody else can open,
// and no process, socket or folder left when it is stopped.
//
// # What is where
//
// Everything is below /run/gputune/mps (see Host), root's, mode 0711:
//
//	GPU-….json        the record of the daemon that serves this GPU first; 0600
//	7/                the folder of job 7; 0700, the job's user's, as all in it
//	7/pipe/           CUDA_MPS_PIPE_DIRECTORY: sockets, lock, pid file
//	7/log/control.log what the daemon and its servers write
//
// # The order of things
//
// Start writes the record, makes the folders, starts the daemon and asks it a
// question; only an answer is success. Stop asks the daemon to quit, ends what
// is left of its processes, removes the folders and last the record. So what
// there is of a daemon always has a record, whatever was killed and when, and
// Stop removes all of it. Both can be called again at any time. Callers see to
// it that no two work on the same GPU at once (the ledger's locks).
//
// The daemon is nvidia-cuda-mps-control -f and stays that process. Where systemd
// runs, it is a transient unit; elsewhere it has a session of its own and, on
// cgroup v2, a cgroup. Slurmd kills the Prolog's process group after it and
// reads what it writes until nobody holds the pipe: neither meets the daemon.
//
// # Whose a process is
//
// A process is ended only if it is in the daemon's unit or cgroup, or is of the
// job's user and has the record's token in its environment, which servers
// inherit; signals go by pidfd after its start time was compared. Names and the
// pid file, which the user can write, are not asked.
//
// What the user's processes say or leave in those folders is hostile: nothing
// there is opened by name after it was handed over, and removing it follows no
// link. The client of the control socket runs as the user, with a deadline.
//
// Measured with driver 580 (program version 13000): the daemon answers some
// 25 ms after its start. It refuses CUDA programs of other users, and servers
// end with it when it is killed. "quit" waits for clients as long as there are
// some, and meanwhile no other command is answered; "quit -t N" ends servers
// that have clients after N seconds. set_default_… with a value that it does
// not take prints the one that holds, with exit status 0. A program that finds
// no daemon runs without MPS.
package mps

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"gputune/internal/folder"
)

// Host is a node on which daemons are run. The zero value is this one.
type Host struct {
	// Root is prepended to the paths of files and folders: /run, /usr, /sys.
	Root string
	// Run is the folder of what gputune keeps of this boot, below Root; "" is
	// /run/gputune. All of the daemons is in its folder mps.
	Run string
	// Proc is where the processes are, "" is /proc: they are those of the kernel
	// that this program runs on, whatever Root describes.
	Proc string
	// Systemd connects to the service manager. nil is systemd's own socket, where
	// there is one.
	Systemd func(context.Context) (Systemd, error)
	// Log gets what had to be ended by force. nil discards.
	Log *slog.Logger
	// Limits are how long things may take; zero ones have defaults.
	Limits Limits
}

// Limits bound the steps of Start and Stop. The context can end them earlier.
type Limits struct {
	Answer time.Duration // one command of the daemon; default 2 s
	Ready  time.Duration // from start to first answer; 10 s
	Quit   time.Duration // from "quit" to its end; 3 s
	Term   time.Duration // from SIGTERM to SIGKILL; 2 s
	Kill   time.Duration // from SIGKILL to an error; 5 s
}

func (h Host) limits() Limits {
	l := h.Limits
	for _, limit := range []struct {
		value    *time.Duration
		standard time.Duration
	}{
		{&l.Answer, 2 * time.Second},
		{&l.Ready, 10 * time.Second},
		{&l.Quit, 3 * time.Second},
		{&l.Term, 2 * time.Second},
		{&l.Kill, 5 * time.Second},
	} {
		if *limit.value == 0 {
			*limit.value = limit.standard
		}
	}
	return l
}

func (h Host) log() *slog.Logger {
	if h.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return h.Log
}

// path returns a path of the node under its root.
func (h Host) path(path string) string { return filepath.Join("/", h.Root, path) }

// ErrNoProgram is a node without nvidia-cuda-mps-control.
var ErrNoProgram = errors.New("nvidia-cuda-mps-control is not installed")

// programs are the places of nvidia-cuda-mps-control in the packages of Debian,
// Ubuntu, RHEL and SLES, NVIDIA's installer, and images with the driver mounted.
var programs = []string{
	"/usr/bin/nvidia-cuda-mps-control", "/usr/local/bin/nvidia-cuda-mps-control", "/usr/local/nvidia/bin/nvidia-cuda-mps-control",
}

// FindProgram returns the path of nvidia-cuda-mps-control: the given one, or
// with "" one of the usual places. ErrNoProgram if there is none; one that
// others than root can write to is refused.
func (h Host) FindProgram(given string) (string, error) {
	places, hint := programs, "install the driver's package with MPS (nvidia-cuda-mps, nvidia-compute-utils, nvidia-driver-cuda), or name its place"
	if given != "" {
		places, hint = []string{given}, "name the place where it is"
	}
	for _, place := range places {
		info, err := os.Stat(h.path(place))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("%w: %w", ErrNoProgram, err)
		}
		if !info.Mode().IsRegular() || info.Mode()&0o111 == 0 || info.Mode()&0o022 != 0 || owner(info) != 0 {
			return "", fmt.Errorf("%w: %s (%v, owner %d): want a program of root's that nobody else can write to",
				ErrNoProgram, place, info.Mode(), owner(info))
		}
		return h.path(place), nil
	}
	return "", fmt.Errorf("%w: not at %s: %s", ErrNoProgram, strings.Join(places, ", "), hint)
}

// Variables are what a step needs in its environment to reach the daemon of a
// spec, name and value. A daemon that caps its clients does so without them.
func (h Host) Variables(s Spec) [][2]string {
	return [][2]string{
		{pipeVariable, filepath.Join(h.jobFolder(s.Job), pipeName)},
		{logVariable, filepath.Join(h.jobFolder(s.Job), logName)},
	}
}

// Socket is the path of the socket that the daemon of a spec listens on: a
// process of its user that can connect to it has found the daemon alive.
func (h Host) Socket(s Spec) string { return filepath.Join(h.jobFolder(s.Job), pipeName, socketName) }

// Status is what there is of a daemon.
type Status struct {
	Spec Spec
	// Unfinished says that nothing but an empty record is there.
	Unfinished bool
	Processes  []Process
	// Silent is why the daemon does not answer, nil if it does.
	Silent error
}

// Value returns the text of the spec of the daemon that serves the GPU first;
// "" if there is nothing of one, Unfinished if somebody was killed at the first
// step of starting one. A daemon that was killed is still there: it has folders,
// and its user may have killed it.
func (h Host) Value(gpu string) (string, error) {
	r, err := h.load(gpu)
	switch {
	case err != nil || r == nil:
		return "", err
	case r.torn:
		return Unfinished, nil
	}
	return r.Spec, nil
}

// Unfinished is the value of a daemon with an unfinished record.
const Unfinished = "unfinished"

// Look returns what there is of the daemon that serves the GPU first, nil if
// there is nothing.
func (h Host) Look(ctx context.Context, gpu string) (*Status, error) {
	r, err := h.load(gpu)
	if err != nil || r == nil {
		return nil, err
	}
	if r.torn {
		return &Status{Unfinished: true, Silent: errors.New("not started")}, nil
	}
	d, err := h.daemon(ctx, r)
	if err != nil {
		return nil, err
	}
	defer d.keeper.close()
	status := &Status{Spec: d.spec}
	if status.Processes, err = d.owned(ctx); err != nil {
		return nil, err
	}
	if len(status.Processes) == 0 {
		status.Silent = errors.New("not running")
	} else {
		_, status.Silent = d.ask(ctx, listServers)
	}
	return status, nil
}

// Start starts a daemon and returns once it has answered and has its limits. One
// that is there and answers stays; whatever else there is of one for the same
// GPU is removed first. After an error nothing is left of it, unless the error
// says so; its text is one line with the daemon's own reason.
func (h Host) Start(ctx context.Context, s Spec) error {
	if err := s.check(); err != nil {
		return err
	}
	if longest := filepath.Join(h.jobFolder(s.Job), pipeName, longestSocket); len(longest) > maxSocket {
		return fmt.Errorf("MPS daemon of job %s: socket %s: %d bytes, a name of one has %d at most: use a shorter folder than %s",
			s.Job, longest, len(longest), maxSocket, h.run())
	}
	program, err := h.FindProgram(s.Program)
	if err != nil {
		return err
	}
	gpu := s.GPUs[0]
	if status, err := h.Look(ctx, gpu); err == nil && status != nil && status.Spec.String() == s.String() && status.Silent == nil {
		return nil
	}
	if err := h.Stop(ctx, gpu); err != nil {
		return fmt.Errorf("MPS daemon of job %s: an earlier one has to go first: %w", s.Job, err)
	}
	if err := h.begin(ctx, s, program); err != nil {
		err = fmt.Errorf("MPS daemon of job %s: %w", s.Job, err)
		// A deadline that ended the start must not end its undoing.
		if left := h.Stop(context.WithoutCancel(ctx), gpu); left != nil {
			err = fmt.Errorf("%w; not cleaned up: %w", err, left)
		}
		return err
	}
	return nil
}

// begin starts a daemon where nothing is.
func (h Host) begin(ctx context.Context, s Spec, program string) error {
	r, err := h.newRecord(s)
	if err != nil {
		return err
	}
	d, err := h.daemon(ctx, r)
	if err != nil {
		return err
	}
	defer d.keeper.close()
	d.program = program
	held, err := h.save(r)
	if err != nil {
		return err
	}
	defer held.Close()
	out, err := h.makeFolders(s)
	if err != nil {
		return err
	}
	defer out.Close()
	err = d.keeper.start(ctx, command{path: program, environment: d.environment(), output: out})
	if err == nil {
		err = d.ready(ctx)
	}
	if err == nil {
		err = d.limit(ctx)
	}
	if reason := lastWords(out); err != nil && reason != "" {
		err = fmt.Errorf("%w: %s", err, reason)
	}
	return err
}

// Stop ends the daemon that serves the GPU first and removes all that there is
// of it. None is no error. An error names the processes that would not end; it
// is worth calling again.
func (h Host) Stop(ctx context.Context, gpu string) error {
	// A record that is none is not locked either.
	if r, err := h.load(gpu); err != nil || r == nil {
		return err
	}
	held, err := h.lock(ctx, gpu)
	if err != nil || held == nil {
		return err
	}
	defer held.Close()
	r, err := h.load(gpu)
	if err != nil || r == nil {
		return err
	}
	if !r.torn {
		d, err := h.daemon(ctx, r)
		if err != nil {
			return err
		}
		defer d.keeper.close()
		if err := d.end(ctx); err != nil {
			return fmt.Errorf("MPS daemon of job %s: %w", d.spec.Job, err)
		}
		if err := h.removeFolder(ctx, d.spec.Job); err != nil {
			return fmt.Errorf("MPS daemon of job %s: %w", d.spec.Job, err)
		}
	}
	err = h.records().Remove(recordName(gpu))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// The folder of what gputune keeps of a boot, and that of all daemons in it.
const (
	standardRun = "/run/gputune"
	baseName    = "mps"
)

func (h Host) run() string { return h.path(cmp.Or(h.Run, standardRun)) }

// base is the folder of all daemons.
func (h Host) base() string { return filepath.Join(h.run(), baseName) }

func (h Host) jobFolder(job string) string { return filepath.Join(h.base(), job) }

// records is the folder of all daemons. Users pass through it to their own.
func (h Host) records() folder.Folder { return folder.Folder{Dir: h.base(), Mode: 0o711} }
