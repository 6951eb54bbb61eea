package setting

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"

	"gputune/internal/cgroup"
)

// SwapUnlimited is the value of a cgroup's swap limit that limits nothing.
const SwapUnlimited = "max"

func init() {
	register(kind{
		Kind: Kind{
			Pattern: "cgroup/*/swap.max", Example: "cgroup/:2Fsystem.slice:2Fslurmstepd.scope:2Fjob_1/swap.max",
			Doc: "how much of a cgroup's memory may be swapped out: bytes, 0 for none, or max; the cgroup's path with :XX for other signs than letters, digits, . _ and -",
		},
		open: func(env *Environment, key string, wild []string) (Setting, error) {
			cgroupPath, err := unescapePath(wild[0])
			if err != nil {
				return nil, fmt.Errorf("%w: %s: %w", ErrUnknownKey, key, err)
			}
			return swapLimit{kernelFile{env: env, key: key, of: "cgroup " + cgroupPath + ": swap"}, cgroupPath}, nil
		},
	})
}

// swapLimit is memory.swap.max of a cgroup v2, a job's own.
// Documentation/admin-guide/cgroup-v2.rst: the kernel rounds down to whole pages.
// The limit ends with the cgroup.
type swapLimit struct {
	kernelFile
	cgroup string
}

// SwapKey returns the key of the swap limit of the cgroup at a path as
// /proc/PID/cgroup has it. A path that is too long for a key is an error.
func SwapKey(cgroupPath string) (string, error) {
	key := "cgroup/" + escapePath(cgroupPath) + "/swap.max"
	if _, err := unescapePath(escapePath(cgroupPath)); err != nil {
		return "", err
	}
	return key, CheckKey(key)
}

func escapePath(text string) string {
	var b strings.Builder
	for i := range len(text) {
		if c := text[i]; notInKey(rune(c)) || c == ':' || c == '.' && i == 0 {
			fmt.Fprintf(&b, ":%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

func unescapePath(text string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] != ':' {
			b.WriteByte(text[i])
			continue
		}
		if i+2 >= len(text) {
			return "", strconv.ErrSyntax
		}
		code, err := strconv.ParseUint(text[i+1:i+3], 16, 8)
		if err != nil {
			return "", strconv.ErrSyntax
		}
		b.WriteByte(byte(code))
		i += 2
	}
	result := b.String()
	if !path.IsAbs(result) || path.Clean(result) != result || strings.ContainsRune(result, 0) {
		return "", fmt.Errorf("cgroup %q: want an absolute path", result)
	}
	return result, nil
}

// Traits implements Setting.
func (swapLimit) Traits() Traits { return Traits{Needs: WholeNode, Lifetime: WhileThere} }

// file finds the limit's file.
func (s swapLimit) file() (string, error) {
	hierarchies, err := cgroup.Mounted(s.env.Path("/"))
	if err != nil {
		return "", err
	}
	place, err := hierarchies.Unified(s.cgroup)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "", fmt.Errorf("%s: %w", s.of, ErrGone)
	case err != nil:
		return "", fmt.Errorf("%s: %w", s.of, err)
	case place.None():
		return "", &MissingError{Of: s.of, File: "a mounted cgroup v2"}
	}
	return strings.TrimPrefix(place.Dir, strings.TrimSuffix(s.env.Path("/"), "/")) + "/memory.swap.max", nil
}

// Check implements Setting.
func (s swapLimit) Check(ctx context.Context, value string) (string, error) {
	if _, err := s.Read(ctx); err != nil {
		return "", err
	}
	if value == SwapUnlimited {
		return value, nil
	}
	bytes, err := strconv.ParseUint(value, 10, 62)
	if err != nil {
		return "", &ValueError{Of: s.of, Value: shown(value), Accepts: "want bytes, or max"}
	}
	return strconv.FormatUint(bytes-bytes%uint64(os.Getpagesize()), 10), nil
}

// Read implements Setting.
func (s swapLimit) Read(context.Context) (string, error) {
	file, err := s.file()
	if err != nil {
		return "", err
	}
	return s.readFile(file)
}

// Write implements Setting.
func (s swapLimit) Write(ctx context.Context, value string) error {
	file, err := s.file()
	if err != nil {
		return err
	}
	if err := s.writeFile(file, value); err != nil {
		return err
	}
	return readBack(ctx, s, s.of, value)
}
