package slurm

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// JobsHere tells which jobs are on this node by what slurmd and its children
// leave here: for each job one thing that shows it, for people. It makes no RPC.
//
// A job shows as
//
//   - a slurmstepd's socket NODE_JOB.STEP[.COMPONENT] in SlurmdSpoolDir that
//     somebody listens at (/proc/net/unix);
//   - a slurmstepd that calls itself "slurmstepd: [42.extern]";
//   - a process in a cgroup job_42 of Slurm's, or in one that has the job's SLUID
//     for a name, as since 26.05, if a slurmstepd or a variable SLURM_JOB_ID in it
//     says which job that is;
//   - a Prolog or Epilog: a process of root with SLURM_JOB_ID and
//     SLURM_SCRIPT_CONTEXT in its environment.
//
// The error is why that does not tell: no slurmd is visible here (it is stopped,
// or runs in another PID namespace), PrologFlags has no Contain, without which
// a job between two steps leaves no trace, or there are processes of a job that
// nothing names. Jobs that were seen are returned all
// the same. Between the end of a Prolog and the job's first slurmstepd there is
// nothing for some milliseconds: one look alone never tells that a job has ended.
func JobsHere(root string, c Conf) (map[string]string, error) {
	l := look{root: root, jobs: map[string]string{}, byID: map[string]*jobFolder{}}
	if err := l.processes(); err != nil {
		return l.jobs, err
	}
	if !l.slurmd {
		return l.jobs, errors.New("no slurmd is seen here: it is stopped or in another PID namespace")
	}
	if !c.Contains() {
		return l.jobs, errors.New("PrologFlags of slurm.conf has no Contain: a job between two steps leaves no trace on its node")
	}
	if err := l.sockets(c.spools()); err != nil {
		return l.jobs, err
	}
	return l.jobs, l.named()
}

// Contains tells whether each job has an extern step on each of its nodes:
// PrologFlags has Contain, or a flag that implies it (slurm.conf(5)).
func (c Conf) Contains() bool {
	for _, flag := range c.PrologFlags {
		switch strings.ToLower(flag) {
		case "contain", "x11", "runinjob":
			return true
		}
	}
	return false
}

const defaultSpool = "/var/spool/slurmd"

// spools returns patterns of the folders that can be SlurmdSpoolDir: a node's name
// is not always the host's, and any that fits will do to see a job in.
func (c Conf) spools() string {
	dir := c.SlurmdSpoolDir
	if dir == "" {
		dir = defaultSpool
	}
	quoted := strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(dir)
	return strings.NewReplacer("%h", "*", "%n", "*").Replace(quoted)
}

// look is one look at a node.
type look struct {
	root   string
	jobs   map[string]string
	slurmd bool
	byID   map[string]*jobFolder // cgroups by their SLUID
}

// jobFolder is a job's cgroup that does not have the job's number for a name.
type jobFolder struct {
	known bool     // a slurmstepd in it has said whose it is
	pids  []string // of the processes in it that are no slurmstepd
}

var stepSocket = regexp.MustCompile(`^.+_([1-9][0-9]*)\.[0-9]+(?:\.[0-9]+)?$`)

func (l *look) sockets(pattern string) error {
	names, err := filepath.Glob(filepath.Join(l.root, pattern, "*.*"))
	if err != nil {
		return fmt.Errorf("SlurmdSpoolDir: %w", err)
	}
	var listened map[string]bool
	for _, name := range names {
		parts := stepSocket.FindStringSubmatch(filepath.Base(name))
		if parts == nil || l.jobs[parts[1]] != "" {
			continue
		}
		if info, err := os.Lstat(name); err != nil || info.Mode()&fs.ModeSocket == 0 {
			continue
		}
		if listened == nil {
			if listened, err = l.listening(); err != nil {
				return err
			}
		}
		if listened[filepath.Base(name)] { // the path is as slurmstepd sees it
			l.jobs[parts[1]] = name
		}
	}
	return nil
}

// listening returns the last parts of the paths of Unix sockets at which somebody
// listens. The fields of a line are Num RefCount Protocol Flags Type St Inode
// Path; flag 0x10000 is __SO_ACCEPTCON (net/unix/af_unix.c).
func (l *look) listening() (map[string]bool, error) {
	file := filepath.Join(l.root, "proc/net/unix")
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	listened := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 8 {
			continue
		}
		const acceptCon = 0x10000
		if flags, err := strconv.ParseUint(fields[3], 16, 64); err == nil && flags&acceptCon != 0 {
			listened[filepath.Base(strings.Join(fields[7:], " "))] = true
		}
	}
	return listened, nil
}

var (
	stepTitle = regexp.MustCompile(`^slurmstepd: \[([1-9][0-9]*)[.+]`)
	jobCgroup = regexp.MustCompile(`(?m):/(?:.*[/_])?(?:slurmstepd\.scope|slurm(?:_[^/\n]+)?/uid_[0-9]+)/job_([1-9][0-9]*)(?:/|$)`)
	// A SLUID is an s and 13 digits and capitals.
	jobByID = regexp.MustCompile(`(?m):/(?:.*[/_])?slurmstepd\.scope/(s[0-9A-Z]{13})(?:/|$)`)
)

// processes looks at every process. One that ends meanwhile shows nothing.
func (l *look) processes() error {
	folder := filepath.Join(l.root, "proc")
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if strings.Trim(entry.Name(), "0123456789") != "" {
			continue
		}
		if err := l.process(filepath.Join(folder, entry.Name())); err != nil && !gone(err) {
			return err
		}
	}
	return nil
}

// gone tells whether an error is that of a process that has ended.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) }

func (l *look) process(folder string) error {
	pid := filepath.Base(folder)
	cgroup, err := os.ReadFile(filepath.Join(folder, "cgroup"))
	if err != nil {
		return err
	}
	for _, found := range jobCgroup.FindAllStringSubmatch(string(cgroup), -1) {
		l.see(found[1], "process "+pid+" in its cgroup")
	}
	in := &jobFolder{} // of no job
	if found := jobByID.FindStringSubmatch(string(cgroup)); found != nil {
		if l.byID[found[1]] == nil {
			l.byID[found[1]] = in
		}
		in = l.byID[found[1]]
	}
	info, err := os.Stat(folder)
	if err != nil {
		return err
	}
	// A user can give a process any title and environment.
	if owner, known := info.Sys().(*syscall.Stat_t); !known || owner.Uid != 0 {
		in.pids = append(in.pids, pid)
		return nil
	}
	command, err := os.ReadFile(filepath.Join(folder, "cmdline"))
	if err != nil {
		return err
	}
	if found := stepTitle.FindStringSubmatch(string(command)); found != nil {
		l.see(found[1], "slurmstepd "+pid)
		in.known = true
		return nil
	}
	switch program, _, _ := strings.Cut(string(command), "\x00"); filepath.Base(program) {
	case "slurmd":
		l.slurmd = true
	case "slurmstepd": // that has just begun
	default:
		in.pids = append(in.pids, pid)
	}
	environment, err := os.ReadFile(filepath.Join(folder, "environ"))
	if errors.Is(err, fs.ErrPermission) && !l.ofSlurmd(pid) {
		return nil // what guards itself even from root is no script of slurmd's
	}
	if err != nil {
		return err
	}
	// prolog_slurmd, epilog_slurmd; a task's are the user's.
	if script, job := scriptOf(string(environment)); strings.HasSuffix(script, "_slurmd") && job != "" {
		l.see(job, fmt.Sprintf("process %s of its %s", pid, script))
	}
	return nil
}

// named sees the jobs of the cgroups in which no slurmstepd is. It is for the
// processes to say in their environments which job that is: nobody else does. The
// error names a process that can be of any job.
func (l *look) named() error {
	for id, in := range l.byID {
		if in.known {
			continue
		}
		alive, job := "", ""
		for _, pid := range in.pids {
			environment, err := os.ReadFile(filepath.Join(l.root, "proc", pid, "environ"))
			if gone(err) {
				continue
			}
			if err != nil && !errors.Is(err, fs.ErrPermission) {
				return err
			}
			alive = pid
			if _, job = scriptOf(string(environment)); job != "" {
				l.see(job, "process "+pid+" in its cgroup")
				break
			}
		}
		if alive != "" && job == "" {
			return fmt.Errorf("process %s is in the cgroup of a job %s without a slurmstepd, and nothing says which job that is", alive, id)
		}
	}
	return nil
}

// ofSlurmd tells whether a process descends from a slurmd. One that cannot be
// followed up to the first process does.
func (l *look) ofSlurmd(pid string) bool {
	for range 64 { // a chain of parents that changes meanwhile has no end
		stat, err := os.ReadFile(filepath.Join(l.root, "proc", pid, "stat"))
		if err != nil {
			return true
		}
		// pid (name) state ppid …, where the name can have anything in it (proc(5)).
		text := string(stat)
		name := text[:max(0, strings.LastIndexByte(text, ')'))]
		fields := strings.Fields(text[len(name):])
		if strings.HasSuffix(name, "(slurmd") || len(fields) < 3 {
			return true
		}
		if pid = fields[2]; pid == "0" {
			return false
		}
	}
	return true
}

func (l *look) see(job, trace string) {
	if l.jobs[job] == "" {
		l.jobs[job] = trace
	}
}

// scriptOf returns which of Slurm's scripts a process belongs to, such as
// "prolog_slurmd", "" for none, and which job.
func scriptOf(environment string) (script, job string) {
	for variable := range strings.SplitSeq(environment, "\x00") {
		name, value, _ := strings.Cut(variable, "=")
		switch name {
		case "SLURM_SCRIPT_CONTEXT":
			script = value
		case "SLURM_JOB_ID":
			job = value
		}
	}
	return script, job
}

// FindConf returns where the slurm.conf is that a slurmd on this machine uses:
// SLURM_CONF of its environment or its -f, else the usual places. root is prepended
// to /proc, and to the path that is returned.
func FindConf(root string) string {
	entries, _ := os.ReadDir(filepath.Join(root, "proc")) // none: the usual places
	for _, entry := range entries {
		if strings.Trim(entry.Name(), "0123456789") != "" {
			continue
		}
		folder := filepath.Join(root, "proc", entry.Name())
		info, err := os.Stat(folder)
		if err != nil {
			continue
		}
		if owner, known := info.Sys().(*syscall.Stat_t); !known || owner.Uid != 0 {
			continue
		}
		command, err := os.ReadFile(filepath.Join(folder, "cmdline"))
		arguments := strings.Split(strings.TrimSuffix(string(command), "\x00"), "\x00")
		if err != nil || filepath.Base(arguments[0]) != "slurmd" {
			continue
		}
		for i, argument := range arguments {
			path, isFile := strings.CutPrefix(argument, "-f")
			if isFile && path == "" && i+1 < len(arguments) {
				path = arguments[i+1]
			}
			if isFile && filepath.IsAbs(path) {
				return filepath.Join(root, path)
			}
		}
		environment, _ := os.ReadFile(filepath.Join(folder, "environ"))
		for variable := range strings.SplitSeq(string(environment), "\x00") {
			if path, found := strings.CutPrefix(variable, "SLURM_CONF="); found && filepath.IsAbs(path) {
				return filepath.Join(root, path)
			}
		}
	}
	for _, path := range []string{defaultConf, "/run/slurm/conf/slurm.conf", defaultSpool + "/conf-cache/slurm.conf"} {
		if _, err := os.Stat(filepath.Join(root, path)); err == nil {
			return filepath.Join(root, path)
		}
	}
	return filepath.Join(root, defaultConf)
}
