package job

import (
	"fmt"
	"slices"
	"strings"
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
