package mps

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// The daemon's environment.
const (
	pipeVariable  = "CUDA_MPS_PIPE_DIRECTORY"
	logVariable   = "CUDA_MPS_LOG_DIRECTORY"
	tokenVariable = "GPUTUNE_MPS_DAEMON"
)

// daemon is one that there is a record of.
type daemon struct {
	host    Host
	record  *record
	spec    Spec
	keeper  keeper
	program string // "" until somebody needs it
}

// keeper is what a daemon runs under.
type keeper interface {
	// start starts the daemon. It may have ended when start returns.
	start(ctx context.Context, c command) error
	// ended returns why the daemon has ended, nil as long as it runs.
	ended(ctx context.Context) error
	// members returns the pids of all that the daemon has started, as far as the
	// kernel keeps them together.
	members(ctx context.Context) ([]int, error)
	// stop ends what owned returns, which is the members and stray clients, with
	// signals, and returns once nothing is left of what kept them together. A
	// daemon that was never started is stopped.
	stop(ctx context.Context, owned ownedFunc) error
	// cgroup opens the cgroup v2 that clients are started in, so that the user
	// gets no process elsewhere by them; nil if there is none.
	cgroup(ctx context.Context) *os.File
	// close gives back what was opened.
	close()
}

// ownedFunc returns the processes of a daemon that have not ended.
type ownedFunc func(context.Context) ([]Process, error)

// command is how a daemon is started.
type command struct {
	path        string
	environment []string
	output      *os.File
}

// daemon returns the one that a record is of.
func (h Host) daemon(ctx context.Context, r *record) (*daemon, error) {
	s, err := ParseSpec(r.Spec)
	if err != nil {
		return nil, err
	}
	d := &daemon{host: h, record: r, spec: s}
	if r.Keeper == bySession {
		d.keeper = &session{host: h, spec: s, token: r.Token}
		return d, nil
	}
	manager, err := h.systemd(ctx)
	if err != nil {
		return nil, err
	}
	d.keeper = &unit{host: h, spec: s, manager: manager}
	return d, nil
}

func (d *daemon) token() string { return tokenVariable + "=" + d.record.Token }

func (d *daemon) folder(name string) string {
	return filepath.Join(d.host.jobFolder(d.spec.Job), name)
}

// environment is all that the daemon and the clients of its control socket get.
func (d *daemon) environment() []string {
	return []string{
		// The control program looks for nvidia-cuda-mps-server beside itself and here.
		"PATH=" + filepath.Dir(d.program) + ":/usr/sbin:/usr/bin:/sbin:/bin",
		"CUDA_VISIBLE_DEVICES=" + strings.Join(d.spec.GPUs, ","),
		pipeVariable + "=" + d.folder(pipeName),
		logVariable + "=" + d.folder(logName),
		d.token(),
	}
}

// owned returns the processes that are the daemon's and have not ended.
func (d *daemon) owned(ctx context.Context) ([]Process, error) {
	members, err := d.keeper.members(ctx)
	if err != nil {
		return nil, err
	}
	// Clients that a program left which was killed are no members where there is
	// no cgroup for them.
	marked, err := d.host.marked(d.spec.UID, d.token())
	if err != nil {
		return nil, err
	}
	all := append(members, marked...)
	slices.Sort(all)
	return d.host.living(slices.Compact(all))
}

// ready waits for the first answer.
func (d *daemon) ready(ctx context.Context) error {
	limit := d.host.limits().Ready
	wait, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		if err := d.keeper.ended(wait); err != nil {
			return err
		}
		_, err := d.ask(wait, listServers)
		if err == nil {
			return nil
		}
		if sleep(wait) != nil {
			if ctx.Err() != nil {
				return fmt.Errorf("no answer before the time was over: %w", ctx.Err())
			}
			return fmt.Errorf("no answer within %v", limit)
		}
	}
}

// limit sets what the daemon's clients can have and asks whether it holds: a
// command that is refused looks like one that is not.
func (d *daemon) limit(ctx context.Context) error {
	if d.spec.Percent != 0 {
		if err := d.set(ctx, "active_thread_percentage", fmt.Sprintf("%d.0", d.spec.Percent), fmt.Sprint(d.spec.Percent)); err != nil {
			return err
		}
	}
	if d.spec.Memory == 0 {
		return nil
	}
	is := fmt.Sprintf("%dM", d.spec.Memory)
	if d.spec.Memory%1024 == 0 {
		is = fmt.Sprintf("%dG", d.spec.Memory/1024)
	}
	for i := range d.spec.GPUs {
		if err := d.set(ctx, fmt.Sprintf("device_pinned_mem_limit %d", i), is, fmt.Sprintf("%dM", d.spec.Memory)); err != nil {
			return err
		}
	}
	return nil
}

func (d *daemon) set(ctx context.Context, what, is, value string) error {
	if _, err := d.ask(ctx, "set_default_"+what+" "+value); err != nil {
		return err
	}
	now, err := d.ask(ctx, "get_default_"+what)
	if err != nil {
		return err
	}
	if now != is && now != value {
		return fmt.Errorf("set_default_%s %s: it is %q after it", what, value, plain(now))
	}
	return nil
}

// end ends the daemon and all that it has started.
func (d *daemon) end(ctx context.Context) error {
	alive, err := d.owned(ctx)
	if err != nil {
		return err
	}
	forced := false
	if len(alive) > 0 {
		if err := d.quit(ctx); err != nil {
			d.host.log().Warn("an MPS daemon does not quit: ended by signals", "job", d.spec.Job, "reason", plain(err.Error()))
			forced = true
		}
	}
	if err := d.keeper.stop(ctx, d.owned); err != nil {
		return err
	}
	// What is left has the token and is no member: see owned.
	err = d.host.kill(ctx, d.owned)
	if err == nil && forced {
		d.host.log().Info("an MPS daemon has ended", "job", d.spec.Job)
	}
	return err
}

// quit asks the daemon to quit, after it has named those who hold it up, and
// waits for its end.
func (d *daemon) quit(ctx context.Context) error {
	clients, err := d.clients(ctx)
	if err != nil {
		return err
	}
	for _, client := range clients {
		d.host.log().Warn("a process still uses the MPS daemon of a job that is over", "job", d.spec.Job, "client", client)
	}
	ctx, cancel := context.WithTimeout(ctx, d.host.limits().Quit)
	defer cancel()
	// With clients, a quit without a time waits for them.
	if _, err := d.askWithin(ctx, d.host.limits().Quit, "quit -t 1"); err != nil {
		return err
	}
	for {
		alive, err := d.owned(ctx)
		if err != nil || len(alive) == 0 {
			return err
		}
		if sleep(ctx) != nil {
			return fmt.Errorf("%v is there %v after quit", alive[0], d.host.limits().Quit)
		}
	}
}

// clients returns the processes that the daemon says are connected.
func (d *daemon) clients(ctx context.Context) ([]string, error) {
	servers, err := d.ask(ctx, listServers)
	if err != nil {
		return nil, err
	}
	var list []string
	for server := range strings.FieldsSeq(servers) {
		pid, err := number(server)
		if err != nil {
			continue // the user can have replaced the daemon
		}
		clients, err := d.ask(ctx, fmt.Sprintf("get_client_list %d", pid))
		if err != nil {
			return list, err
		}
		for client := range strings.FieldsSeq(clients) {
			const most = 32
			pid, err := number(client)
			if err != nil || len(list) == most {
				continue
			}
			if p, err := d.host.process(int(pid)); err == nil {
				list = append(list, p.String())
			} else {
				list = append(list, fmt.Sprintf("process %d", pid))
			}
		}
	}
	return list, nil
}

// kill sends SIGKILL to what owned returns until that is nothing.
func (h Host) kill(ctx context.Context, owned ownedFunc) error {
	limit := h.limits().Kill
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		alive, err := owned(ctx)
		if err != nil || len(alive) == 0 {
			return err
		}
		for _, p := range alive {
			if err := h.signal(p, unix.SIGKILL); err != nil {
				return err
			}
		}
		if sleep(ctx) != nil {
			return stuck(alive)
		}
	}
}

// stuck names processes that do not end.
func stuck(alive []Process) error {
	var list []error
	for _, p := range alive {
		list = append(list, fmt.Errorf("%v does not end", p))
	}
	return oneLine(errors.Join(list...))
}

func oneLine(err error) error {
	if err == nil {
		return nil
	}
	return errors.New(strings.ReplaceAll(err.Error(), "\n", "; "))
}

// lastWords returns what a daemon has written last that tells something, without
// time and pid; "" if there is nothing.
func lastWords(output *os.File) string {
	const most = 8 << 10
	info, err := output.Stat()
	if err != nil {
		return ""
	}
	text := make([]byte, most)
	n, _ := output.ReadAt(text, max(info.Size()-most, 0)) // as much as there is
	last := ""
	for line := range strings.Lines(string(text[:n])) {
		if _, rest, found := strings.Cut(line, "] "); found && strings.HasPrefix(line, "[") {
			line = rest
		}
		line = strings.TrimSpace(line)
		if line != "" && !slices.ContainsFunc(chatter, func(c string) bool { return strings.HasPrefix(line, c) }) {
			last = line
		}
	}
	return plain(last)
}

// chatter is how lines begin that the daemon writes for each question, and at
// each start.
var chatter = []string{
	"Accepting connection", "NEW UI", "UI closed", "Cmd:", "Starting control daemon", "To connect CUDA applications", "CUDA MPS Control binary",
}
