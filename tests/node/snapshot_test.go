package node

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// file is a file or folder.
type file struct {
	mode fs.FileMode
	text string
}

// snapshot is what programs change on a node: gputune's own folders, by path
// below the node's, and the GPUs.
type snapshot struct {
	files  map[string]file
	gpus   string
	kernel map[string]string // see AddSettings
}

func (s snapshot) equal(other snapshot) bool {
	return s.gpus == other.gpus && maps.Equal(s.files, other.files) && maps.Equal(s.kernel, other.kernel)
}

// folders are what is gputune's.
func (n *Node) folders() []string { return []string{n.Run, n.State} }

// take returns what the node has now. Nothing may change it meanwhile.
func (n *Node) take() (snapshot, error) {
	s := snapshot{files: map[string]file{}}
	for _, folder := range n.folders() {
		err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) && path == folder {
				return nil
			}
			if err != nil {
				return err
			}
			info, err := entry.Info()
			if err != nil {
				return err
			}
			name, err := filepath.Rel(n.Dir, path)
			if err != nil {
				return err
			}
			f := file{mode: info.Mode()}
			if f.mode.IsRegular() {
				text, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				f.text = string(text)
			}
			s.files[name] = f
			return nil
		})
		if err != nil {
			return s, err
		}
	}
	var err error
	if s.kernel, err = n.Settings(); err != nil {
		return s, err
	}
	s.gpus, err = n.NVML.StateText()
	return s, err
}

// put makes the node what it was.
func (n *Node) put(s snapshot) error {
	for _, folder := range n.folders() {
		if err := os.RemoveAll(folder); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.files)) { // a folder before what is in it
		f, path := s.files[name], filepath.Join(n.Dir, name)
		var err error
		switch f.mode.Type() {
		case fs.ModeDir:
			err = os.Mkdir(path, f.mode.Perm())
		case 0:
			err = os.WriteFile(path, []byte(f.text), f.mode.Perm())
		default:
			err = fmt.Errorf("%s: a file of mode %v", name, f.mode)
		}
		if err != nil {
			return err
		}
	}
	for name, line := range s.kernel {
		if err := n.SetSetting(name, line); err != nil {
			return err
		}
	}
	return n.setGPUs(s.gpus)
}

// setGPUs makes the GPUs what a state file says.
func (n *Node) setGPUs(text string) error {
	path := filepath.Join(n.NVML.Folder, "fakenvml.state")
	if err := os.WriteFile(path+".test", []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".test", path)
}

// bump makes a GPU of the job differ from the driver's defaults: a site caps
// its power, has persistence off and lets one program use it.
func (n *Node) bump(t testing.TB) {
	t.Helper()
	uuid, text := n.Machine.GPUs[bumped].UUID, n.state(t)
	for key, values := range map[string][2]string{
		"power_limit": {"700000", "600000"}, "persistence": {"1", "0"}, "compute_mode": {"0", "3"},
	} {
		line := "gpu/" + uuid + "/" + key + " "
		changed := strings.Replace(text, line+values[0]+"\n", line+values[1]+"\n", 1)
		if changed == text {
			t.Fatalf("no %q in\n%s", line+values[0], text)
		}
		text = changed
	}
	if err := n.setGPUs(text); err != nil {
		t.Fatal(err)
	}
}

// dirt says what a node that ought to be as at first has of a job, "" for
// nothing.
func (n *Node) dirt(gpus string) string {
	var text []string
	switch now, err := n.NVML.StateText(); {
	case err != nil:
		text = append(text, err.Error())
	case now != gpus:
		text = append(text, "the GPUs are "+differences(now, gpus))
	}
	switch now, err := n.Settings(); {
	case err != nil:
		text = append(text, err.Error())
	default:
		for name, line := range now {
			if line != n.kernel[name] {
				text = append(text, fmt.Sprintf("%s is %s, was %s", name, line, n.kernel[name]))
			}
		}
	}
	left, err := n.Left()
	if len(left) > 0 || err != nil {
		text = append(text, fmt.Sprintf("left: %v, %v", left, err))
	}
	if n.MPS.Folder == "" {
		return strings.Join(text, "; ")
	}
	if processes, err := n.MPSProcesses(); len(processes) > 0 || err != nil {
		text = append(text, fmt.Sprintf("processes left: %v, %v", processes, err))
	}
	for _, j := range []Job{n.served(0), n.served(1)} {
		groups, err := filepath.Glob(fmt.Sprintf("/sys/fs/cgroup/*/gputune-mps/job-%d-*", j.ID))
		if len(groups) > 0 || err != nil {
			text = append(text, fmt.Sprintf("cgroups left: %v, %v", groups, err))
		}
	}
	return strings.Join(text, "; ")
}

// differences returns the lines of a state that are not another's.
func differences(is, want string) string {
	lines := slices.DeleteFunc(strings.Split(is, "\n"), func(line string) bool {
		return line == "" || strings.Contains("\n"+want, "\n"+line+"\n")
	})
	return strings.Join(lines, ", ")
}

// wantNobody is that no process of gputune is left.
func (n *Node) wantNobody(t testing.TB) {
	t.Helper()
	if pids, err := n.Processes(); err != nil || len(pids) > 0 {
		t.Errorf("processes left: %v, %v", pids, err)
	}
}
