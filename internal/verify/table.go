package verify

// Table is the processes of a machine at one moment, by pid, without those that
// have ended and were not waited for.
type Table map[int]Process

// Processes reads /proc.
func (h Host) Processes() (Table, error) {
	all, err := h.processes()
	return all, err
}

// Below returns a process and its descendants, parents first, without those for
// which but is true and what is below them. The process itself is there in any
// case, unless the table has it not.
func (t Table) Below(pid int, but func(pid int) bool) []Process {
	if _, there := t[pid]; !there {
		return nil
	}
	left := map[int]Process{}
	for id, p := range t {
		if id == pid || !but(id) {
			left[id] = p
		}
	}
	return below(left, pid)
}

// Descends tells whether a process is below another, or that one itself.
func (t Table) Descends(pid, from int) bool {
	for range t { // parents that changed meanwhile could go round
		if pid == from {
			return true
		}
		p, there := t[pid]
		if !there {
			return false
		}
		pid = p.parent
	}
	return false
}

// Began tells when the process began, in clock ticks after the machine did
// (proc_pid_stat(5)): with the pid it names one process for ever.
func (p Process) Began() string { return p.start }

// Find returns a process, false if it has ended.
func (h Host) Find(pid int) (Process, bool) { return parseStat(pid, h.read(pid, "stat")) }

// Still tells whether a process is the one that it was, and has not ended.
func (h Host) Still(p Process) bool { return h.still(p) }

// Threads returns the ids of a process's threads, none if it has ended.
func (h Host) Threads(pid int) []int { return h.threads(pid) }

// Cgroups returns /proc/PID/cgroup, "" if the process has ended.
func (h Host) Cgroups(pid int) string { return h.read(pid, "cgroup") }
