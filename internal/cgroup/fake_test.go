package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"gputune/internal/idset"
)

// put writes files below a new folder and returns it. A name with a slash at its
// end is a folder.
func put(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		folder := filepath.Dir(path)
		if strings.HasSuffix(name, "/") {
			folder = path
		}
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		if folder == path {
			continue
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// fakeKernel is cgroup v2's cpuset over plain files: a value is kept as it is
// written, what is effective is its part inside the parent's effective set or all
// of that, and an empty value is refused, as it is with processes inside.
type fakeKernel struct {
	kernel
	t    *testing.T
	log  []string         // writes, "file=value"
	fail map[string]error // by file name
}

func (f *fakeKernel) write(name, value string) error {
	base := filepath.Base(name)
	f.log = append(f.log, base+"="+value)
	if err := f.fail[base]; err != nil {
		return &os.PathError{Op: "write", Path: name, Err: err}
	}
	if value == "" {
		return &os.PathError{Op: "write", Path: name, Err: syscall.ENOSPC}
	}
	ids, err := idset.Parse(value)
	if err != nil {
		return &os.PathError{Op: "write", Path: name, Err: syscall.EINVAL}
	}
	if err := os.WriteFile(name, []byte(value+"\n"), 0o644); err != nil {
		return err
	}
	parent := f.set(filepath.Join(filepath.Dir(filepath.Dir(name)), base+".effective"))
	effective := ids.And(parent)
	if effective.Empty() {
		effective = parent
	}
	if err := os.WriteFile(name+".effective", []byte(effective.String()+"\n"), 0o644); err != nil {
		f.t.Fatal(err)
	}
	return nil
}

func (f *fakeKernel) set(file string) idset.Set {
	set, err := readSet(file)
	if err != nil {
		f.t.Fatal(err)
	}
	return set
}

const taskPath = "/system.slice/n1_slurmstepd.scope/job_7/step_0/user/task_0"

// slurmV2 is a node with cgroup v2 on which process 100 is the one process of a
// task whose step may use CPUs 0-7 and nodes 0-1.
func slurmV2(t *testing.T) (root, leaf string) {
	t.Helper()
	const top = "sys/fs/cgroup"
	root = put(t, map[string]string{
		"proc/100/cgroup":                  "0::" + taskPath + "\n",
		"proc/100/status":                  "Name:\ttrain\nMems_allowed:\t00000003\nMems_allowed_list:\t0-1\n",
		"proc/self/mountinfo":              "22 1 0:5 / /proc rw - proc proc rw\n30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
		top + "/cpuset.cpus.effective":     "0-15\n",
		top + "/cpuset.mems.effective":     "0-3\n",
		top + taskPath + "/cgroup.procs":   "100\n",
		top + taskPath + "/cgroup.threads": "100\n101\n",
	})
	leaf = filepath.Join(root, top, taskPath)
	for dir, values := range map[string][2]string{filepath.Dir(leaf): {"0-7", "0-1"}, leaf: {"", ""}} {
		for i, name := range []string{cpusFile, memsFile} {
			for file, value := range map[string]string{name: values[i], name + ".effective": []string{"0-7", "0-1"}[i]} {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(value+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	return root, leaf
}

func sets(cpus, mems string) Cpuset {
	return Cpuset{CPUs: idset.MustParse(cpus), Mems: idset.MustParse(mems)}
}

func (s Cpuset) String() string { return fmt.Sprintf("%s/%s", s.CPUs, s.Mems) }
