package bed

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	dirPattern = "slurm-bed-*"
	recordName = "bed.json"
	// NVIDIA's driver, Documentation/admin-guide/devices.txt; one minor number
	// for each GPU.
	nvidiaMajor = 195
	// sun_path of unix(7), with the zero byte that ends it.
	socketPathLimit = 108
)

// record is what a later program has to know to clear away a bed whose own
// program has died. It is in bed.json in the private folder.
type record struct {
	Node    string `json:"node"`
	Cluster string `json:"cluster"`
}

// makeDir makes the private folder with all folders, the munge key and the
// device nodes in it.
func (b *Bed) makeDir() error {
	var err error
	if b.options.Dir == "" {
		if b.Dir, err = os.MkdirTemp("", dirPattern); err != nil {
			return fmt.Errorf("bed: %w", err)
		}
	} else {
		b.keepDir = true
		if b.Dir, err = filepath.Abs(b.options.Dir); err != nil {
			return fmt.Errorf("bed: Options.Dir %q: %w", b.options.Dir, err)
		}
	}
	b.Conf = filepath.Join(b.Dir, "etc", "slurm.conf")
	text, err := json.Marshal(record{Node: b.Node, Cluster: b.Cluster})
	if err != nil {
		return fmt.Errorf("bed: %w", err)
	}
	if err := os.WriteFile(filepath.Join(b.Dir, recordName), text, 0o644); err != nil {
		return fmt.Errorf("bed: %w", err)
	}
	// The modes are set as such: the umask of a careful caller would lock
	// unprivileged jobs out.
	modes := []struct {
		name string
		mode fs.FileMode
	}{
		{"", 0o755},
		{"etc", 0o755},
		{"log", 0o755},
		{"run", 0o755},
		{"spool", 0o755},
		{"dev", 0o755},
		{"state", 0o700},
		{"munge", 0o700},
		{"work", 0o777 | fs.ModeSticky},
	}
	for _, m := range modes {
		path := filepath.Join(b.Dir, m.name)
		if err := errors.Join(os.MkdirAll(path, m.mode), os.Chmod(path, m.mode)); err != nil {
			return fmt.Errorf("bed: %w", err)
		}
	}
	if err := openToAll(b.Dir); err != nil {
		return err
	}
	// munged(8): any 32 to 1024 bytes that only its user may read.
	key := make([]byte, 1024)
	_, _ = rand.Read(key) // never fails, crypto/rand
	if err := os.WriteFile(filepath.Join(b.Dir, "munge", "munge.key"), key, 0o400); err != nil {
		return fmt.Errorf("bed: %w", err)
	}
	longest := filepath.Join(b.Dir, "spool", b.Node+"_4294967295.4294967295")
	if len(longest) >= socketPathLimit {
		return fmt.Errorf("bed: folder %s is too deep: slurmstepd's socket %s has %d characters and may have %d", b.Dir, longest, len(longest), socketPathLimit-1)
	}
	for i := range b.options.GPUs {
		device := b.GPU(i)
		if err := unix.Mknod(device, unix.S_IFCHR|0o666, int(unix.Mkdev(nvidiaMajor, uint32(i)))); err != nil {
			return fmt.Errorf("bed: %w: mknod %s: %w", ErrUnavailable, device, err)
		}
		if err := os.Chmod(device, 0o666); err != nil {
			return fmt.Errorf("bed: %w", err)
		}
	}
	return nil
}

// emptyDir makes sure that dir is there and empty. What an earlier bed has left
// there is removed, what anybody else has put there is not.
func emptyDir(dir string) error {
	names, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		err = os.MkdirAll(dir, 0o755)
	}
	if err != nil {
		return fmt.Errorf("bed: %w", err)
	}
	if len(names) == 0 {
		return nil
	}
	if err := sweepDir(dir); err != nil {
		return fmt.Errorf("bed: Options.Dir %s: it is not empty, and not the folder of an earlier bed that has ended: %w", dir, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("bed: %w", err)
	}
	return nil
}

// openToAll returns an error if a folder above dir is closed to others.
func openToAll(dir string) error {
	for above := filepath.Dir(dir); ; above = filepath.Dir(above) {
		info, err := os.Stat(above)
		if err != nil {
			return fmt.Errorf("bed: %w", err)
		}
		if info.Mode().Perm()&0o001 == 0 {
			return fmt.Errorf("bed: folder %s: %s above it has mode %04o; munged and unprivileged jobs need one that everybody may enter: set Options.Dir or TMPDIR", dir, above, info.Mode().Perm())
		}
		if above == filepath.Dir(above) {
			return nil
		}
	}
}

// sweep clears away the beds below dir whose programs have died.
func sweep(dir string) error {
	dirs, err := filepath.Glob(filepath.Join(dir, dirPattern))
	if err != nil {
		return fmt.Errorf("bed: %w", err)
	}
	var errs []error
	for _, dir := range dirs {
		err := sweepDir(dir)
		if !errors.Is(err, errClaimed) && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// sweepDir ends the processes of the bed in dir and removes its cgroup folders
// and dir itself. An error wraps errClaimed if the bed is alive.
func sweepDir(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("bed: %w", err)
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() || int(owner.Uid) != os.Geteuid() || info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("bed: %s is not a folder of ours alone", dir)
	}
	text, err := os.ReadFile(filepath.Join(dir, recordName))
	if err != nil {
		return fmt.Errorf("bed: %w", err)
	}
	var r record
	if err := json.Unmarshal(text, &r); err != nil {
		return fmt.Errorf("bed: %s: %w", filepath.Join(dir, recordName), err)
	}
	if !nodeName.MatchString(r.Node) || r.Cluster == "" {
		return fmt.Errorf("bed: %s: node %q, cluster %q name no bed", filepath.Join(dir, recordName), r.Node, r.Cluster)
	}
	dead := &Bed{Dir: dir, Node: r.Node, Cluster: r.Cluster, proc: procfs{root: procRoot}, cgroups: cgroupTree{root: cgroupRoot, node: r.Node}}
	if err := dead.claims.take("node/" + r.Node); err != nil {
		return err
	}
	defer dead.claims.release()
	return errors.Join(dead.cgroups.thaw(), dead.killProcesses(), dead.cgroups.remove(), os.RemoveAll(dir))
}

// expand puts the private folder in for ${DIR}.
func (b *Bed) expand(text string) string {
	return strings.ReplaceAll(text, "${DIR}", b.Dir)
}
