// Package fakenvml builds and drives a libnvidia-ml.so.1 for tests: a C library
// that programs load as they load NVIDIA's, by LD_LIBRARY_PATH, with GPUs from
// a text file, settings that one process makes and another finds, and faults
// on demand.
//
// # Description
//
// The GPUs are in the file that FAKENVML_CONF names, else in fakenvml.conf in
// the folder of the library (of what a link to it points to), since programs
// under Slurm get no environment of the user's. One "key value" per line, # for
// comments. It is read anew at every call. File names are relative to it.
//
//	driver 580.159.04            what nvmlSystemGet… answer
//	library 13.580.159.04
//	cuda 13000
//	state fakenvml.state         where settings are
//	faults fakenvml.faults       more faults; may be missing
//	processes fakenvml.processes  more processes, "UUID PID BYTES [SLICE]"; may be missing
//	log calls.log                default: none
//	times times.log              how long the calls took, default: none
//	gpu GPU-4b0480b4-…           starts a GPU, the following lines are its
//	  name NVIDIA H200
//	  pci 0000:00:06.0
//	  pci_id 0x233510de          device, vendor
//	  pci_subsystem 0
//	  minor 0
//	  architecture 9             nvmlDeviceArchitecture_t: 9 is Hopper, 7 Ampere
//	  cpus 0-31                  or none: Not Supported, here and below
//	  cpus_socket 0-31           default: cpus
//	  nodes 0
//	  nodes_socket 0             default: nodes
//	  numa_node none
//	  mig_mode 0                 1: split, "0 1": from the next reset on, none: cannot be
//	  mig_instances none         19@0:1/0@0:1;9@4:4: GPU instances PROFILE@START:SIZE with
//	                             their compute instances, profiles by NVML's ids
//	  mig_activates 1            0: a mode that needs a reset does not become active
//	  mig 0 MIG-5d1c…            place (0-6) and UUID of a MIG device with the smallest profile
//	  ecc 1 1                    current and pending, or none
//	  power_range 200000 700000  mW, or none
//	  power_limit 700000         mW, at first and by default
//	  memory_clocks 3201 2201    MHz, falling, or none
//	  video_clocks 1545 765      highest, lowest, or none
//	  graphics_clocks 1980 345 15  highest, lowest, step, or none
//	  application_clocks 3201 1980  memory, graphics, at first, or none
//	  persistence 1              at first
//	  compute_mode 0             at first
//	  process 4711 1073741824    pid and bytes, once per process, and the first slice of its
//	                             MIG instance
//	  remapped_rows 0 0 0 0      correctable, uncorrectable, pending, failed
//	  event_reasons 0x1
//	  energy 1000000000          mJ
//	  temperature 30             °C
//	  performance_state 0
//	  power 75000                mW
//	  utilization 0 0            %, GPU and memory
//	  utilization_samples 40 60  %, one every 100 ms in turn; of the memory's, all are
//	                             utilization's; none: Not Supported
//	  ecc_errors 0 0             corrected, uncorrected
//	  pcie_replays 0
//	  field 197 4096             a field's number and value; others are Not Supported
//	  memory 150754820096        bytes
//	  memory_used 0
//
// The values above are the defaults, but for uuid, pci and minor, which count
// up, and for mig, process, utilization_samples and field, of which there are none.
//
// # Faults
//
// Lines of the faults file, or of the description after its GPUs:
//
//	fault CALL [gpu=INDEX|UUID] [program=NAME] [nth=N|N-|N-M] EFFECT…
//
//	error=GPU_IS_LOST   the call fails and does nothing
//	error=TIMEOUT applied  the call fails after it did what it was asked
//	ignored             the call succeeds and does nothing
//	value=N[,N]         a call that sets something sets this instead; a call
//	                    that reads answers this
//	slow=MS             the call takes longer; no lock is held meanwhile
//
// CALL is a name without nvml, Device and _v2, or a pattern with * and ?. A
// fault without nth hits every use; nth counts the uses by all processes since
// the description or the faults file last changed. Of several effects that hit
// the same use, the first that is not slow holds. A pattern or GPU that can
// never match, or an effect that a call cannot have, makes the description
// malformed: the library then says so on stderr and fails with Unknown Error.
//
// # State and log
//
// The state file has a line "gpu/UUID/KEY VALUE" for each setting of each GPU
// in a fixed order: power_limit, gpu_clocks and memory_clocks ("none" or the
// lock "MIN,MAX"), application_clocks, persistence, compute_mode, mig_mode ("none"
// or "NOW,NEXT") and mig_instances. Reading never
// changes it, and setting everything back makes the same bytes again. It is
// replaced by rename under a lock, so a killed process leaves the old or the
// new one. Beside it lie .lock, .uses (of faults with nth) and, after a kill,
// .tmp. A process that is not root has its sets refused with No Permission; to
// count uses of faults it needs to be able to write to the folder.
//
// The file of times gets a line "PROGRAM PID N CALLS M NS" when a program shuts
// the library down: what its calls took in all, so that a measurement can leave
// them out.
//
// The log gets a line for each call that would set something, such as
// "SetPowerManagementLimit GPU-… 500000 SUCCESS", after it is done: a process
// killed in between leaves a change without its line.
//
// # What no hardware was asked
//
// testdata/h200.record has what an H200 with driver 580 answered, and a test
// holds the library to it. All else is from nvml.h's comments or assumed:
//
//   - locks of clocks between two steps are accepted and the GPU runs at the
//     lower step; those outside the supported clocks are an Invalid Argument
//   - the TDP clock is the highest one
//   - a GPU with processes runs at its application clock, without at its
//     lowest; memory always at its highest; a lock overrules that at once
//   - performance states other than P0 have the lowest memory clock and, of the
//     other clocks, the full range
//   - the compute mode exclusive thread is Not Supported
//   - the default power limit is the one found set; the enforced limit is the
//     same as the limit
//   - what a call about a whole GPU answers for a MIG device: Not Supported;
//     names of MIG devices; the number of places for them
//   - PCI device and subsystem id, processes, readings of sensors, samples of
//     utilization, counters of errors, fields
//   - MIG, but for the profiles of an H200, their places and what they answer
//     with MIG mode off: ids of instances; the places, names and ids of compute
//     instances; which errors calls give; that UUIDs and indices of MIG devices
//     follow from the place; that processes and instances keep the mode from
//     being switched, before Hopper until a reset; the A100's table, which every
//     GPU before Hopper has
//   - that sets need the effective user id 0, and that persistence mode off
//     leaves the other settings as they are
package fakenvml

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

//go:embed lib/*.c lib/*.h
var sources embed.FS

// Library is a folder with a libnvidia-ml.so.1 and its files.
type Library struct {
	Folder string // absolute
}

// Build compiles the library into a folder, which it makes if need be. It
// needs the C compiler that CC names, default cc, and the go command, which
// tells where go-nvml's copy of nvml.h is: the compiler checks every function
// against it. flags are further ones for the compiler. The library is there
// whole or not at all, also for programs that run with an older one.
func Build(ctx context.Context, folder string, flags ...string) (Library, error) {
	folder, err := filepath.Abs(folder)
	if err != nil {
		return Library{}, fmt.Errorf("fake NVML: %w", err)
	}
	if err := os.MkdirAll(folder, 0o755); err != nil { //nolint:gosec // other users load the library
		return Library{}, fmt.Errorf("fake NVML: %w", err)
	}
	work, err := os.MkdirTemp(folder, ".build-")
	if err != nil {
		return Library{}, fmt.Errorf("fake NVML: %w", err)
	}
	defer func() { _ = os.RemoveAll(work) }()

	files, err := unpack(work)
	if err != nil {
		return Library{}, err
	}
	header, err := output(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/NVIDIA/go-nvml")
	if err != nil {
		return Library{}, fmt.Errorf("fake NVML: looking for nvml.h: %w", err)
	}
	compiler := strings.Fields(os.Getenv("CC"))
	if len(compiler) == 0 {
		compiler = []string{"cc"}
	}
	common := append(compiler[1:], "-std=gnu11", "-D_GNU_SOURCE", "-O2", "-g", "-Wall", "-Wextra", "-Werror",
		"-fPIC", "-fvisibility=hidden", "-isystem", filepath.Join(strings.TrimSpace(header), "pkg", "nvml"))
	common = append(common, flags...)
	objects := filesBut(files, "program.c")
	for name, what := range map[string][]string{
		"libnvidia-ml.so.1": append([]string{"-shared", "-Wl,-soname,libnvidia-ml.so.1", "-Wl,-z,defs"}, objects...),
		"fakenvml":          files,
	} {
		built := filepath.Join(work, name)
		args := append(append(append([]string{}, common...), what...), "-o", built)
		if _, err := output(ctx, compiler[0], args...); err != nil {
			return Library{}, fmt.Errorf("fake NVML: compiling %s: %w", name, err)
		}
		if err := os.Rename(built, filepath.Join(folder, name)); err != nil {
			return Library{}, fmt.Errorf("fake NVML: %w", err)
		}
	}
	return Library{Folder: folder}, nil
}

// unpack writes the sources into a folder and returns the C files' names.
func unpack(folder string) ([]string, error) {
	var files []string
	names, err := fs.Glob(sources, "lib/*")
	if err != nil {
		return nil, fmt.Errorf("fake NVML: %w", err)
	}
	for _, name := range names {
		text, err := sources.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("fake NVML: %w", err)
		}
		to := filepath.Join(folder, filepath.Base(name))
		if err := os.WriteFile(to, text, 0o600); err != nil {
			return nil, fmt.Errorf("fake NVML: %w", err)
		}
		if filepath.Ext(to) == ".c" {
			files = append(files, to)
		}
	}
	return files, nil
}

func filesBut(files []string, without string) []string {
	var left []string
	for _, file := range files {
		if filepath.Base(file) != without {
			left = append(left, file)
		}
	}
	return left
}

// output runs a program; its error has what it wrote to stderr.
func output(ctx context.Context, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		if text := strings.TrimSpace(stderr.String()); text != "" {
			err = fmt.Errorf("%w: %s", err, text)
		}
		return "", fmt.Errorf("%s: %w", program, err)
	}
	return stdout.String(), nil
}

// Environ is what a program needs in its environment to load the library.
func (l Library) Environ() []string { return []string{"LD_LIBRARY_PATH=" + l.Folder} }

// Path is where the library is.
func (l Library) Path() string { return filepath.Join(l.Folder, "libnvidia-ml.so.1") }

// Describe writes the description, takes faults, processes and log away and makes the
// state as described. A description that the library does not understand is an
// error with file, line and what is wrong.
func (l Library) Describe(ctx context.Context, d Description) error {
	if err := l.replace("fakenvml.conf", d.String()); err != nil {
		return err
	}
	for _, name := range []string{"fakenvml.faults", "fakenvml.processes", d.Log} {
		if name == "" {
			continue
		}
		if err := os.Remove(l.file(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("fake NVML: %w", err)
		}
	}
	return l.Reset(ctx)
}

// Change replaces the description alone: what is set stays, as long as the GPUs are
// the same.
func (l Library) Change(ctx context.Context, d Description) error {
	if err := l.replace("fakenvml.conf", d.String()); err != nil {
		return err
	}
	return l.program(ctx, "check")
}

// Reset makes the state as described, as a reboot does.
func (l Library) Reset(ctx context.Context) error { return l.program(ctx, "reset") }

// SetFaults replaces the faults; none takes them away. Uses are counted anew.
// A fault that the library does not understand is an error.
func (l Library) SetFaults(ctx context.Context, faults ...Fault) error {
	var text strings.Builder
	for _, fault := range faults {
		fmt.Fprintln(&text, fault)
	}
	if err := l.replace("fakenvml.faults", text.String()); err != nil {
		return err
	}
	return l.program(ctx, "check")
}

// SetProcesses replaces the processes of GPUs, by UUID, that are not in the description;
// each has 1 GiB. None takes them away. What was before is seen until then.
func (l Library) SetProcesses(pids map[string][]int) error {
	var text strings.Builder
	for _, uuid := range slices.Sorted(maps.Keys(pids)) {
		for _, pid := range pids[uuid] {
			fmt.Fprintf(&text, "%s %d %d\n", uuid, pid, 1<<30)
		}
	}
	return l.replace("fakenvml.processes", text.String())
}

// StateText returns the state file as it is.
func (l Library) StateText() (string, error) {
	text, err := os.ReadFile(l.file("fakenvml.state"))
	if err != nil {
		return "", fmt.Errorf("fake NVML: %w", err)
	}
	return string(text), nil
}

// State returns what is set, by UUID. Anything else than whole lines in the
// state file is an error.
func (l Library) State() (map[string]GPUState, error) {
	text, err := l.StateText()
	if err != nil {
		return nil, err
	}
	state, err := parseState(text)
	if err != nil {
		return nil, fmt.Errorf("fake NVML: %s: %w", l.file("fakenvml.state"), err)
	}
	return state, nil
}

// Log returns the lines of a log that the description names, nil if there is
// none yet.
func (l Library) Log(name string) ([]string, error) {
	text, err := os.ReadFile(l.file(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("fake NVML: %w", err)
	}
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n"), nil
}

func (l Library) file(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(l.Folder, name)
}

// replace writes a file whole: other processes may be reading it.
func (l Library) replace(name, text string) error {
	temp := l.file("." + name + ".new")
	if err := os.WriteFile(temp, []byte(text), 0o644); err != nil { //nolint:gosec // other users' programs read it
		return fmt.Errorf("fake NVML: %w", err)
	}
	if err := os.Rename(temp, l.file(name)); err != nil {
		return fmt.Errorf("fake NVML: %w", err)
	}
	return nil
}

func (l Library) program(ctx context.Context, verb string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(l.Folder, "fakenvml"), verb)
	cmd.Env = []string{} // FAKENVML_CONF is another library's
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("fake NVML: %s: %w: %s", verb, err, strings.TrimSpace(string(text)))
	}
	return nil
}
