package bed

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	shmRoot = "/dev/shm"
	// markVariable is in the daemons' environment, and thereby in slurmstepd's
	// and in that of what slurmstepd starts for itself.
	markVariable = "SLURM_BED"
	// clusterVariable is in the environment of tasks, batch scripts, Prolog and
	// Epilog, whatever --export says.
	clusterVariable = "SLURM_CLUSTER_NAME"
)

// Stepds returns the process ids of the slurmstepds of this bed.
func (b *Bed) Stepds() []int {
	found, err := b.processes()
	if err != nil {
		return nil
	}
	var pids []int
	for _, p := range found {
		if strings.HasPrefix(b.proc.program(p.pid), "slurmstepd") {
			pids = append(pids, p.pid)
		}
	}
	return pids
}

// LeftBehind describes what is there although it should not be once all steps
// have ended (WaitIdle). Each line begins with what it is about:
//
//	process  a slurmstepd, a task, a Prolog or Epilog, or anything they started
//	cgroup   a folder of a job, step or task
//	spool    a file in slurmd's spool folder that is a job's or step's
//	shm      a shared memory object or semaphore (shm_open(3), sem_open(3)) that
//	         was not there at the start and that no process of somebody else
//	         has open; who has made it is not to be found out
//	error    why it could not be found out
func (b *Bed) LeftBehind() []string {
	var left []string
	found, err := b.processes()
	if err != nil {
		left = append(left, "error "+err.Error())
	}
	own := map[int]bool{}
	for _, p := range found {
		own[p.pid] = true
		left = append(left, fmt.Sprintf("process %d (parent %d): %s", p.pid, p.parent, b.proc.commandLine(p)))
	}
	folders, err := b.cgroups.folders()
	if err != nil {
		left = append(left, "error "+err.Error())
	}
	for _, folder := range folders {
		if filepath.Base(folder) != b.cgroups.name() {
			left = append(left, "cgroup "+folder)
		}
	}
	spool, err := leftInSpool(filepath.Join(b.Dir, "spool"))
	if err != nil {
		left = append(left, "error "+err.Error())
	}
	left = append(left, spool...)
	shm, err := b.leftInShm(own)
	if err != nil {
		left = append(left, "error "+err.Error())
	}
	return append(left, shm...)
}

// leftInSpool lists what slurmd does not keep there for itself.
func leftInSpool(spool string) ([]string, error) {
	names, err := listNames(spool)
	if err != nil {
		return nil, err
	}
	var left []string
	for name := range names {
		switch name {
		case "cred_state", "cred_state.old", "cred_state.new", "hwloc_topo_whole.xml":
		default:
			left = append(left, "spool "+filepath.Join(spool, name))
		}
	}
	slices.Sort(left)
	return left, nil
}

func (b *Bed) leftInShm(own map[int]bool) ([]string, error) {
	entries, err := os.ReadDir(b.shmRoot)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("bed: %w", err)
	}
	fresh := map[string]bool{}
	for _, entry := range entries {
		// Folders are somebody's working space in memory, made by hand.
		if entry.Type().IsRegular() && !b.shmNames[entry.Name()] {
			fresh[filepath.Join(b.shmRoot, entry.Name())] = true
		}
	}
	if len(fresh) == 0 {
		return nil, nil
	}
	everybody, err := b.proc.list()
	if err != nil {
		return nil, err
	}
	for _, p := range everybody {
		if own[p.pid] {
			continue
		}
		for _, path := range append(b.proc.openFiles(p.pid), b.proc.mappedFiles(p.pid)...) {
			delete(fresh, path)
		}
	}
	left := make([]string, 0, len(fresh))
	for path := range fresh {
		left = append(left, "shm "+path)
	}
	slices.Sort(left)
	return left, nil
}

func listNames(dir string) (map[string]bool, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("bed: %w", err)
	}
	names := make(map[string]bool, len(entries))
	for _, entry := range entries {
		names[entry.Name()] = true
	}
	return names, nil
}

// processes returns the processes that are there because of this bed, without
// its daemons and the commands that were run through it.
func (b *Bed) processes() ([]process, error) {
	all, err := b.proc.list()
	if err != nil {
		return nil, err
	}
	return b.ownAmong(all), nil
}

// ownAmong picks the bed's processes: those that carry its name, those in its
// cgroup folders, Slurm's own with a file of its folder open, and what descends
// from those.
func (b *Bed) ownAmong(all []process) []process {
	byPID := make(map[int]process, len(all))
	for _, p := range all {
		byPID[p.pid] = p
	}
	// We and what we run in are never the bed's, whatever our environment says.
	verdict := map[int]bool{}
	for pid := os.Getpid(); pid > 0; pid = byPID[pid].parent {
		verdict[pid] = false
		if _, known := byPID[pid]; !known {
			break
		}
	}
	daemons := b.daemonPIDs()
	isDaemon := func(p process) bool {
		// slurmctld forks slurmscriptd, which runs its scripts.
		return daemons[p.pid] || (daemons[p.parent] && p.command == "slurmscriptd")
	}
	var judge func(p process) bool
	judge = func(p process) bool {
		if own, known := verdict[p.pid]; known {
			return own
		}
		verdict[p.pid] = false // ends the recursion should the list be torn
		own := b.marked(p)
		if parent, known := byPID[p.parent]; !own && known {
			own = judge(parent)
		}
		verdict[p.pid] = own
		return own
	}
	var own []process
	for _, p := range all {
		if judge(p) && !isDaemon(p) {
			own = append(own, p)
		}
	}
	return own
}

func (b *Bed) marked(p process) bool {
	for _, variable := range b.proc.environment(p.pid) {
		if variable == clusterVariable+"="+b.Cluster || variable == markVariable+"="+b.Cluster {
			return true
		}
	}
	if b.proc.inCgroup(p.pid, b.cgroups.name()) {
		return true
	}
	program := b.proc.program(p.pid)
	if !strings.HasPrefix(program, "slurmstepd") && !strings.HasPrefix(program, "slurmd") {
		return false
	}
	return slices.ContainsFunc(b.proc.openFiles(p.pid), func(path string) bool { return strings.HasPrefix(path, b.Dir+"/") })
}

// killProcesses ends all processes of the bed but living daemons.
func (b *Bed) killProcesses() error {
	deadline := time.Now().Add(termTimeout)
	for {
		found, err := b.processes()
		if err != nil || len(found) == 0 {
			return err
		}
		var errs []error
		for _, p := range found {
			errs = append(errs, b.proc.signal(p, unix.SIGKILL))
		}
		if time.Now().After(deadline) {
			for _, p := range found {
				errs = append(errs, fmt.Errorf("process %d has not ended after SIGKILL: %s", p.pid, b.proc.commandLine(p)))
			}
			return errors.Join(errs...)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
