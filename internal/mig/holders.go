package mig

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// maxHolders bounds what one error lists.
const maxHolders = 8

// Busy returns who uses the instances that a change would take away, or the
// whole GPU where it changes the mode, "" if NVML sees nobody: "pid 4711
// (python)". It changes nothing.
func (h Host) Busy(card Card, want Layout) (string, error) {
	is, present, err := read(card)
	if err != nil || is.String() == want.String() {
		return "", err
	}
	processes, err := card.Processes()
	if err != nil {
		return "", err
	}
	d := compare(is, want)
	goes := map[int]bool{}
	for _, p := range present {
		goes[p.ID] = slices.ContainsFunc(append(d.drop, d.cut...), p.sameGPUInstance)
	}
	var pids []int
	for _, p := range processes {
		if is.Mode != want.Mode || goes[p.Instance] {
			pids = append(pids, p.PID)
		}
	}
	return h.name(pids), nil
}

// Holders returns who holds a card as far as can be told, "" if nobody is found:
// the programs that NVML sees on it, and those that have one of its device files
// open, such as nvidia-persistenced and DCGM. This very program is not counted.
func (h Host) Holders(card Card) string {
	var pids []int
	processes, err := card.Processes()
	if err == nil {
		for _, p := range processes {
			pids = append(pids, p.PID)
		}
	}
	minor, err := card.Minor()
	if err != nil {
		return h.name(pids)
	}
	return h.name(append(pids, h.open(h.files(minor))...))
}

// name writes pids with their programs, in order and once each.
func (h Host) name(pids []int) string {
	slices.Sort(pids)
	pids = slices.Compact(pids)
	var texts []string
	for _, pid := range pids {
		if len(texts) == maxHolders {
			texts = append(texts, fmt.Sprintf("%d more", len(pids)-maxHolders))
			break
		}
		// proc_pid_comm(5): the program's name, cut to 15 bytes.
		text, err := os.ReadFile(filepath.Join(h.Root, "/proc", strconv.Itoa(pid), "comm"))
		program := strings.TrimSpace(string(text))
		if err != nil {
			program = "unknown"
		}
		texts = append(texts, fmt.Sprintf("pid %d (%s)", pid, program))
	}
	return strings.Join(texts, ", ")
}

// files returns the device files that stand for a GPU and its MIG devices. The
// latter's minor numbers are in /proc/driver/nvidia-caps/mig-minors, in lines
// "gpu0/gi1/ci0/access 13", where the GPU's number is its own minor (NVIDIA's
// guide to MIG, "Device Nodes and Capabilities").
func (h Host) files(minor int) map[string]bool {
	files := map[string]bool{fmt.Sprintf("/dev/nvidia%d", minor): true}
	list, err := os.Open(filepath.Join(h.Root, "/proc/driver/nvidia-caps/mig-minors"))
	if err != nil {
		return files // a driver without them
	}
	defer list.Close()
	for lines := bufio.NewScanner(list); lines.Scan(); {
		name, number, _ := strings.Cut(lines.Text(), " ")
		if strings.HasPrefix(name, fmt.Sprintf("gpu%d/", minor)) {
			files["/dev/nvidia-caps/nvidia-cap"+number] = true
		}
	}
	return files
}

// open returns the programs that have one of the files open (proc_pid_fd(5)).
// What ends meanwhile is passed over.
func (h Host) open(files map[string]bool) []int {
	folders, err := filepath.Glob(filepath.Join(h.Root, "/proc/[0-9]*"))
	if err != nil {
		return nil
	}
	var pids []int
	for _, folder := range folders {
		pid, err := strconv.Atoi(filepath.Base(folder))
		if err != nil || pid == os.Getpid() {
			continue
		}
		names, err := os.ReadDir(filepath.Join(folder, "fd"))
		if err != nil {
			continue
		}
		for _, name := range names {
			to, err := os.Readlink(filepath.Join(folder, "fd", name.Name()))
			if err == nil && files[to] {
				pids = append(pids, pid)
				break
			}
		}
	}
	return pids
}
