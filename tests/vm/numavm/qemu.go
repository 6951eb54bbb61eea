package numavm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"time"
)

// QEMUVariable is the environment variable that chooses the QEMU: the path of a qemu-system-x86_64, or "system" for that in PATH
// whatever its version.
const QEMUVariable = "GPUTUNE_VM_QEMU"

const (
	qemuProgram = "qemu-system-x86_64"
	qemuScript  = "get-qemu.sh"
	installHint = "apt-get install qemu-system-x86 qemu-utils seabios"
	// wantedQEMU is the major version from which no newer one is looked for. A boot takes a third less emulated CPU time
	// than with 7.2, which works all the same.
	wantedQEMU = 10
	// retryBackports is for how long a failed attempt to get QEMU from the backports is remembered.
	retryBackports = time.Hour
)

// qemu is a QEMU to run.
type qemu struct {
	argv  []string // program and the folders of its firmware
	major int
}

// findQEMU returns the QEMU to run: what GPUTUNE_VM_QEMU says; else the system's, and if that is old, the one in the release's
// backports, unpacked into the cache, where it can be had.
func findQEMU(ctx context.Context, tree, cache string, log *slog.Logger) (qemu, error) {
	choice := os.Getenv(QEMUVariable)
	if choice != "" && choice != "system" {
		return newQEMU(ctx, choice)
	}
	path, err := exec.LookPath(qemuProgram)
	if err != nil {
		return qemu{}, fmt.Errorf("%w: %s, or set %s to the path of one", err, installHint, QEMUVariable)
	}
	system, err := newQEMU(ctx, path)
	if err != nil || choice == "system" || system.major >= wantedQEMU {
		return system, err
	}
	newer, err := backportsQEMU(ctx, tree, cache)
	if ctx.Err() != nil {
		return qemu{}, ctx.Err()
	}
	if err != nil {
		log.Debug("using the system's QEMU", "version", system.major, "why", err)
		return system, nil
	}
	return newer, nil
}

var versionPattern = regexp.MustCompile(`version (\d+)\.`)

func newQEMU(ctx context.Context, path string, args ...string) (qemu, error) {
	out, err := exec.CommandContext(ctx, path, "--version").CombinedOutput()
	if err != nil {
		return qemu{}, fmt.Errorf("%s --version: %w: %s", path, err, out)
	}
	m := versionPattern.FindSubmatch(out)
	if m == nil {
		return qemu{}, fmt.Errorf("%s --version printed no version: %q", path, out)
	}
	major, err := strconv.Atoi(string(m[1]))
	if err != nil {
		return qemu{}, fmt.Errorf("%s --version: %w", path, err)
	}
	return qemu{argv: append([]string{path}, args...), major: major}, nil
}

// backportsQEMU returns the backports' QEMU from the cache, and gets it when it is not there.
func backportsQEMU(ctx context.Context, tree, cache string) (qemu, error) {
	recipe := filepath.Join(tree, recipeDir)
	release, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return qemu{}, err
	}
	key, err := recipeKey([]string{filepath.Join(recipe, qemuScript), filepath.Join(recipe, "mirror.sh")}, string(release))
	if err != nil {
		return qemu{}, err
	}
	parent := filepath.Join(cache, "qemu")
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return qemu{}, err
	}
	turn, err := lock(ctx, filepath.Join(parent, "lock"))
	if err != nil {
		return qemu{}, err
	}
	defer turn.Close()
	dir := filepath.Join(parent, key)
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		refused := dir + ".refused"
		if st, err := os.Stat(refused); err == nil && time.Since(st.ModTime()) < retryBackports {
			why, err := os.ReadFile(refused)
			return qemu{}, errors.Join(fmt.Errorf("no newer one could be had at %s: %s", st.ModTime().Format(time.TimeOnly), why), err)
		}
		if err := buildFolder(ctx, dir, filepath.Join(recipe, qemuScript)); err != nil {
			if ctx.Err() != nil {
				return qemu{}, err
			}
			return qemu{}, errors.Join(err, os.WriteFile(refused, []byte(err.Error()), 0o644))
		}
	}
	share := filepath.Join(dir, "usr/share")
	return newQEMU(ctx, filepath.Join(dir, "usr/bin", qemuProgram), "-L", filepath.Join(share, "qemu"), "-L", "/usr/share/seabios")
}

// cpuModel is QEMU's -cpu. Kernel 6.1 sees no threads on an EPYC. On a Nehalem level=11 leaves out CPUID leaf 0x1f, in which QEMU
// 10 fails an assertion where packages have dies; leaf 0xb and the caches tell the same but for the die.
func cpuModel(s Suite, t Topology) string {
	if s == Bookworm || t.intel {
		return "Nehalem,level=11"
	}
	return "EPYC"
}

// findVirtiofsd returns the path of virtiofsd: QEMU 7.2's own, in C, or the later one in Rust, which takes the same options.
func findVirtiofsd() (string, error) {
	for _, p := range []string{"/usr/lib/qemu/virtiofsd", "/usr/libexec/virtiofsd"} {
		if _, err := os.Stat(p); err == nil {
			return p, nil
		}
	}
	p, err := exec.LookPath("virtiofsd")
	if err != nil {
		return "", fmt.Errorf("%w, nor in /usr/lib/qemu or /usr/libexec: it comes with qemu-system-common up to Debian 12, later with virtiofsd", err)
	}
	return p, nil
}
