package setting

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

const nodesFolder = "/sys/devices/system/node"

func init() {
	register(kind{
		Kind: Kind{
			Pattern: "hugepages/*/*", Example: "hugepages/node1/2048kB",
			Doc: "number of hugepages of a size in the pool of a NUMA node: hugepages/node1/2048kB",
		},
		open: func(env *Environment, key string, wild []string) (Setting, error) {
			node, okNode := suffixNumber(wild[0], "node")
			kib, okSize := strings.CutSuffix(wild[1], "kB")
			size, err := strconv.ParseUint(kib, 10, 32)
			if !okNode || !okSize || err != nil {
				return nil, fmt.Errorf("%w: %s: want hugepages/nodeN/SIZEkB", ErrUnknownKey, key)
			}
			return newHugepages(env, key, node, size), nil
		},
	})
}

// hugepages is the pool of hugepages of one size on one NUMA node.
//
// Documentation/admin-guide/mm/hugetlbpage.rst: nr_hugepages below
// /sys/devices/system/node/nodeN/hugepages/hugepages-SIZEkB. A write asks for a
// number and succeeds with fewer where the memory is fragmented or used; then it
// is refused here, and the ledger puts back what was there. Pages that are in
// use when the pool is made smaller stay until they are freed, and count.
type hugepages struct {
	kernelFile
	node int
	size uint64 // KiB
}

func newHugepages(env *Environment, key string, node int, size uint64) hugepages {
	return hugepages{kernelFile: kernelFile{
		env: env, key: key, of: fmt.Sprintf("node %d: hugepages of %d kB", node, size),
		path: fmt.Sprintf("%s/node%d/hugepages/hugepages-%dkB/nr_hugepages", nodesFolder, node, size),
	}, node: node, size: size}
}

// suffixNumber reads the number behind a prefix: node12.
func suffixNumber(text, prefix string) (int, bool) {
	digits, found := strings.CutPrefix(text, prefix)
	number, err := strconv.ParseUint(digits, 10, 16)
	return int(number), found && err == nil && strconv.FormatUint(number, 10) == digits
}

// Traits implements Setting. A write that is killed may have made some pages.
func (hugepages) Traits() Traits {
	return Traits{Needs: WholeNode, Lifetime: UntilReboot, Loose: true}
}

// Check implements Setting.
func (s hugepages) Check(_ context.Context, value string) (string, error) {
	is, err := s.number("nr_hugepages")
	if err != nil {
		return "", s.explain(err)
	}
	fail := &ValueError{Of: s.of, Value: shown(value), Accepts: "want a number"}
	count, err := strconv.ParseUint(value, 10, 40)
	if err != nil || value[0] == '+' {
		return "", fail
	}
	total, err := nodeMemory(s.env, s.node, "MemTotal")
	if err != nil {
		return "", err
	}
	if most := total / s.size; count > most {
		fail.Accepts = fmt.Sprintf("the node has %d MiB", total>>10)
		fail.Nearest = strconv.FormatUint(most, 10)
		return "", fail
	}
	// The kernel looks for tens of seconds before it gives up.
	available, err := s.available()
	if err != nil {
		return "", err
	}
	if most := is + available/s.size; count > most {
		fail.Accepts = fmt.Sprintf("%d MiB of the node are free or cached files", available>>10)
		fail.Nearest = strconv.FormatUint(most, 10)
		return "", fail
	}
	return strconv.FormatUint(count, 10), nil
}

// available is what the node could give to a pool, in KiB.
func (s hugepages) available() (uint64, error) {
	var sum uint64
	for _, name := range []string{"MemFree", "Active(file)", "Inactive(file)", "SReclaimable"} {
		kib, err := nodeMemory(s.env, s.node, name)
		if err != nil {
			return 0, err
		}
		sum += kib
	}
	return sum, nil
}

// explain says which sizes there are where this one is missing.
func (s hugepages) explain(err error) error {
	if missing := (*MissingError)(nil); !errors.As(err, &missing) {
		return err
	}
	folder := fmt.Sprintf("%s/node%d/hugepages", nodesFolder, s.node)
	entries, _ := os.ReadDir(s.env.Path(folder))
	var sizes []string
	for _, entry := range entries {
		sizes = append(sizes, strings.TrimPrefix(entry.Name(), "hugepages-"))
	}
	if len(sizes) == 0 {
		return err
	}
	slices.Sort(sizes)
	return fmt.Errorf("%w; the node has sizes %s", err, strings.Join(sizes, ", "))
}

// number reads one of the files of the pool.
func (s hugepages) number(name string) (uint64, error) {
	text, err := s.readFile(strings.TrimSuffix(s.path, "nr_hugepages") + name)
	if err != nil {
		return 0, err
	}
	number, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		return 0, fmt.Errorf("%s: %s: %w", s.of, name, err)
	}
	return number, nil
}

// Read implements Setting.
func (s hugepages) Read(context.Context) (string, error) {
	number, err := s.number("nr_hugepages")
	return strconv.FormatUint(number, 10), err
}

// Write implements Setting. Where the kernel makes fewer pages, the node's memory
// is compacted and it is asked once more.
func (s hugepages) Write(ctx context.Context, value string) error {
	want, err := strconv.ParseUint(value, 10, 63)
	if err != nil {
		return fmt.Errorf("%s: value %q: %w", s.key, value, err)
	}
	for try := range 2 {
		if err := s.write(value); err != nil {
			return err
		}
		is, err := s.number("nr_hugepages")
		switch {
		case err != nil:
			return err
		case is == want:
			return nil
		case is > want:
			free, err := s.number("free_hugepages")
			if err != nil {
				return err
			}
			return fmt.Errorf("%s: %d cannot be %d: %d are %w by programs or files", s.of, is, want, is-min(free, is), ErrInUse)
		case try > 0:
			return &ValueError{
				Of: s.of, Value: value, Nearest: strconv.FormatUint(is, 10),
				Accepts: fmt.Sprintf("the kernel finds memory for %d: the rest is used or fragmented", is),
			}
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		// Where it cannot be compacted, the second try says what is missing.
		_ = s.writeFile(fmt.Sprintf("%s/node%d/compact", nodesFolder, s.node), "1")
	}
	return nil
}

// HugepagesKey returns the key of a node's pool of hugepages of a size in KiB.
func HugepagesKey(node int, size uint64) string {
	return fmt.Sprintf("hugepages/node%d/%dkB", node, size)
}

// Hugepages returns what to set so that a job finds count free hugepages of a
// size in KiB on a node: those in use are added, and those that programs were
// promised and have not touched yet; a pool that is larger stays as it is. Asked
// again before the job uses some, the answer is the same.
func Hugepages(env *Environment, node int, size, count uint64) (Wish, error) {
	s := newHugepages(env, HugepagesKey(node, size), node, size)
	total, err := s.number("nr_hugepages")
	if err != nil {
		return Wish{}, s.explain(err)
	}
	free, err := s.number("free_hugepages")
	if err != nil {
		return Wish{}, err
	}
	promised, err := s.promised()
	if err != nil {
		return Wish{}, err
	}
	need := total - min(free, total) + min(free, promised) + count
	return Wish{s.key, strconv.FormatUint(max(total, need), 10)}, nil
}

// promised returns how many of the free pages belong to mappings already. The
// kernel does not say of which node they will be.
func (s hugepages) promised() (uint64, error) {
	text, err := s.readFile(fmt.Sprintf("/sys/kernel/mm/hugepages/hugepages-%dkB/resv_hugepages", s.size))
	if missing := (*MissingError)(nil); errors.As(err, &missing) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	number, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		return 0, fmt.Errorf("%s: resv_hugepages: %w", s.of, err)
	}
	return number, nil
}

// nodeMemory reads a value of a NUMA node's meminfo, in KiB:
// "Node 1 MemTotal:  1015520 kB".
func nodeMemory(env *Environment, node int, name string) (uint64, error) {
	path := fmt.Sprintf("%s/node%d/meminfo", nodesFolder, node)
	text, err := os.ReadFile(env.Path(path))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) >= 4 && fields[2] == name+":" {
			return strconv.ParseUint(fields[3], 10, 63)
		}
	}
	return 0, fmt.Errorf("%s: no %s", path, name)
}
