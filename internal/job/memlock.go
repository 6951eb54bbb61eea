package job

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"

	"gputune/conf"
	"gputune/internal/ledger"
	"gputune/internal/option"
	"gputune/internal/setting"
)

// memlock is --gpu-memlock: how much memory the processes of the job's tasks may
// lock. The steps see to it; nothing of the node is changed.
type memlock struct {
	want option.Memlock
	site conf.Memlock
}

func newMemlock(value string, site conf.Config) (wish, error) {
	want, err := option.ParseMemlock(value)
	return memlock{want, site.Memlock}, err
}

func (m memlock) access() conf.Access { return m.site.Access }

// changes implements wish.
func (m memlock) changes(_ context.Context, s *scene) ([]ledger.Change, error) {
	want := m.want.Bytes
	if m.want.Unlimited {
		want = unlimited
	}
	refuse := func(most uint64, why string) error {
		err := &setting.ValueError{Of: "locked memory", Value: m.want.String(), Accepts: why}
		if most >= 1<<20 {
			err.Nearest = option.Memlock{Bytes: most >> 20 << 20}.String()
		}
		return err
	}
	if most := uint64(m.site.Max) << 20; most != 0 && want > most {
		return nil, refuse(most, fmt.Sprintf("the site allows %d MiB at most", m.site.Max))
	}
	if most, known := mostLocked(s.root); known && want > most {
		return nil, refuse(most, fmt.Sprintf("slurmd runs without CAP_SYS_RESOURCE, and its own limit is %d KiB", most>>10))
	}
	return nil, nil
}

// file implements stepFile.
func (m memlock) file(s *scene) (suffix, text string) { return s.tasksFile() }

// note implements noted.
func (m memlock) note(o *Option) { o.TasksOnly = m.want != option.Memlock{} }

// unlimited is RLIM_INFINITY.
const unlimited = ^uint64(0)

const capSysResource = 24 // linux/capability.h

var (
	effective  = regexp.MustCompile(`(?m)^CapEff:\s*([0-9a-f]+)$`)
	hardLocked = regexp.MustCompile(`(?m)^Max locked memory\s+\S+\s+(\S+)`)
)

// mostLocked returns to how many bytes slurmd can set its tasks' limit. The Prolog
// has slurmd's own limit and capabilities. Source: proc(5), status and limits of
// this process below root; where they cannot be read it is not known.
func mostLocked(root string) (bytes uint64, known bool) {
	read := func(file string, line *regexp.Regexp) string {
		text, err := os.ReadFile(filepath.Join(root, "proc/self", file))
		if found := line.FindSubmatch(text); err == nil && found != nil {
			return string(found[1])
		}
		return ""
	}
	capabilities, err := strconv.ParseUint(read("status", effective), 16, 64)
	if err != nil {
		return 0, false
	}
	if capabilities>>capSysResource&1 == 1 {
		return unlimited, true
	}
	hard := read("limits", hardLocked)
	if hard == "unlimited" {
		return unlimited, true
	}
	bytes, err = strconv.ParseUint(hard, 10, 64)
	return bytes, err == nil
}
