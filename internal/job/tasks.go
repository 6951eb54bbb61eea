package job

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gputune/internal/cgroup"
)

// tasksFile is the file of every wish that the processes of the job's tasks are
// given something by: all of it is in one. See process.c of the plugin, which
// reads it; each line has a word and what it is about.
func (s *scene) tasksFile() (suffix, text string) {
	var b strings.Builder
	if m, given := s.memlock(); given && m.want.Unlimited {
		b.WriteString("memlock unlimited\n")
	} else if given && m.want.Bytes != 0 {
		fmt.Fprintf(&b, "memlock %d\n", m.want.Bytes)
	}
	if s.thpDisable() {
		b.WriteString("thp-disable\n")
	}
	if s.noSwap() {
		b.WriteString("swap 0\n")
	}
	if b.Len() == 0 {
		return "", ""
	}
	return tasksSuffix, b.String()
}

// memlock returns the job's --gpu-memlock, false where it was not given or is
// refused.
func (s *scene) memlock() (memlock, bool) {
	i := slices.IndexFunc(s.options, func(a *asked) bool {
		_, is := a.wish.(memlock)
		return is && (a.State == "" || a.State == Applied)
	})
	if i < 0 {
		return memlock{}, false
	}
	return s.options[i].wish.(memlock), true
}

// file implements stepFile.
func (w *thp) file(s *scene) (suffix, text string) { return s.tasksFile() }

// file implements stepFile.
func (w *profile) file(s *scene) (suffix, text string) { return s.tasksFile() }

// caution implements cautious. The job's cgroup is not there yet; whether it will
// have a limit of swap the machine tells all the same.
func (w *profile) caution(s *scene) string {
	if !w.plan.NoSwap || cgroup.CountsSwap(s.root) || !swaps(string(s.site.Paths.Machine)) {
		return ""
	}
	return "swap: this node cannot keep a job's memory from being swapped out: it needs cgroup v2 and a kernel that counts swap"
}

// swaps tells whether a machine has somewhere to swap to: /proc/swaps, proc(5), has
// a line for each place below its head.
func swaps(machine string) bool {
	text, err := os.ReadFile(filepath.Join(machine, "proc/swaps"))
	return err == nil && bytes.Count(text, []byte("\n")) > 1
}
