package kernel

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gputune/internal/setting"
)

// part is one setting, and what the kernel's files read when it is set.
type part struct {
	name   string
	wishes []setting.Wish
	reads  map[string]string // file → its text
}

// text reads a file of the kernel's, "" where it is not there.
func text(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return string(b)
}

// first returns the text of a file without its end of line, and whether it can be written.
func first(t *testing.T, file string) (string, bool) {
	t.Helper()
	file = filepath.Clean(file)
	is := text(t, file)
	if is == "" {
		return "", false
	}
	// What a container mounts read-only, or a machine lets nobody change.
	probe, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		t.Logf("left out: %v", err)
		return "", false
	}
	probe.Close()
	return strings.TrimSpace(is), true
}

const thp = "/sys/kernel/mm/transparent_hugepage/"

// chosen returns the word in brackets.
func chosen(line string) string {
	_, rest, _ := strings.Cut(line, "[")
	word, _, _ := strings.Cut(rest, "]")
	return word
}

// sysctlPart sets a sysctl to the first of the values that it does not have.
func sysctlPart(t *testing.T, name, shown string, values ...string) []part {
	file := "/proc/sys/" + strings.ReplaceAll(name, ".", "/")
	is, ok := first(t, file)
	if !ok {
		return nil
	}
	value := values[0]
	if is == value {
		value = values[1]
	}
	if shown == "" {
		shown = value
	}
	return []part{{"sysctl " + name, []setting.Wish{setting.Sysctl(name, value)}, map[string]string{file: shown + "\n"}}}
}

// choicePart chooses another word of a list.
func choicePart(t *testing.T, key, file string) []part {
	is, ok := first(t, file)
	if !ok {
		return nil
	}
	value := "madvise"
	if chosen(is) == value {
		value = "always"
	}
	plain := strings.NewReplacer("[", "", "]", "").Replace(is)
	words := strings.Fields(plain)
	i := slices.Index(words, value)
	words[i] = "[" + value + "]"
	return []part{{key, []setting.Wish{{Key: key, Value: value}}, map[string]string{file: strings.Join(words, " ") + "\n"}}}
}

// parts are the settings that this machine has.
func parts(t *testing.T) []part {
	t.Helper()
	var list []part
	list = append(list, sysctlPart(t, "vm.swappiness", "", "7", "8")...)
	list = append(list, sysctlPart(t, "vm.zone_reclaim_mode", "", "1", "0")...)
	list = append(list, sysctlPart(t, "kernel.numa_balancing", "", "0", "1")...)
	list = append(list, sysctlPart(t, "net.ipv4.ip_local_port_range", "10240\t64999", "10240 64999")...)
	if _, ok := first(t, "/proc/sys/vm/dirty_ratio"); ok {
		const vm = "/proc/sys/vm/"
		list = append(
			list,
			part{"dirty bytes", []setting.Wish{setting.Sysctl("vm.dirty_bytes", "123456789")}, map[string]string{vm + "dirty_ratio": "0\n", vm + "dirty_bytes": "123456789\n"}},
			part{"dirty background ratio", []setting.Wish{setting.Sysctl("vm.dirty_background_ratio", "3")}, map[string]string{vm + "dirty_background_ratio": "3\n", vm + "dirty_background_bytes": "0\n"}},
		)
	}
	list = append(list, choicePart(t, "thp/enabled", thp+"enabled")...)
	list = append(list, choicePart(t, "thp/defrag", thp+"defrag")...)
	if is, ok := first(t, thp+"khugepaged/defrag"); ok {
		value := "0"
		if is == "0" {
			value = "1"
		}
		list = append(list, part{"khugepaged", []setting.Wish{{Key: "thp/khugepaged.defrag", Value: value}}, map[string]string{thp + "khugepaged/defrag": value + "\n"}})
	}
	const pool = "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages"
	if is, ok := first(t, pool); ok {
		n, err := strconv.Atoi(is)
		must(t, err)
		value := strconv.Itoa(n + 5)
		list = append(list, part{"hugepages", []setting.Wish{{Key: setting.HugepagesKey(0, 2048), Value: value}}, map[string]string{pool: value + "\n"}})
	}
	const latency = "/sys/devices/system/cpu/cpu1/power/pm_qos_resume_latency_us"
	if is, ok := first(t, latency); ok {
		value := "3"
		if is == value {
			value = "n/a"
		}
		list = append(list, part{"idle latency", []setting.Wish{{Key: setting.IdleLatencyKey(1), Value: value}}, map[string]string{latency: value + "\n"}})
	}
	if pci, irq := movable(t); irq != 0 {
		file := "/proc/irq/" + strconv.Itoa(irq) + "/smp_affinity_list"
		if strings.TrimSpace(text(t, file)) == "1" {
			t.Logf("left out: interrupt %d is on CPU 1 already", irq)
		} else {
			list = append(list, part{"interrupt", []setting.Wish{{Key: setting.IRQKey(pci, irq), Value: "1"}}, map[string]string{file: "1\n"}})
		}
	}
	return list
}

// devices lists the PCI devices that have interrupts of their own.
func devices(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob("/sys/bus/pci/devices/*/msi_irqs")
	must(t, err)
	for i := range found {
		found[i] = filepath.Base(filepath.Dir(found[i]))
	}
	return found
}

// movable returns an interrupt that the kernel lets be moved.
func movable(t *testing.T) (pci string, irq int) {
	t.Helper()
	env := setting.NewEnvironment("/", nil)
	for _, pci := range devices(t) {
		free, _, err := setting.MovableInterrupts(env, pci)
		must(t, err)
		if len(free) > 0 {
			return pci, free[len(free)-1]
		}
	}
	return "", 0
}

// before is what the kernel's files read before a test.
type before map[string]string

// watch reads the files that parts change, and puts back at the test's end what
// is not as it was.
func watch(t *testing.T, list []part) before {
	t.Helper()
	was := before{}
	files := []string{"/proc/sys/vm/min_free_kbytes"}
	for _, p := range list {
		for file := range p.reads {
			files = append(files, file)
		}
	}
	for _, file := range files {
		was[file] = text(t, file)
	}
	t.Cleanup(func() {
		for _, file := range was.other(t) {
			value := strings.TrimSpace(was[file])
			if strings.Contains(value, "[") {
				value = chosen(value)
			}
			// A pair's twin reads 0 and is not written.
			if value == "0" && strings.HasPrefix(file, "/proc/sys/vm/dirty_") {
				continue
			}
			t.Logf("put back by the test: %s: %s", file, value)
			if err := os.WriteFile(file, []byte(value), 0); err != nil {
				t.Errorf("%s is not what it was: %v", file, err)
			}
		}
	})
	return was
}

// other lists the files that are not as they were.
func (b before) other(t *testing.T) []string {
	t.Helper()
	var list []string
	for file, was := range b {
		if is := text(t, file); is != was {
			list = append(list, file)
		}
	}
	slices.Sort(list)
	return list
}

// back compares all files with what they were.
func (b before) back(t *testing.T, when string) {
	t.Helper()
	for _, file := range b.other(t) {
		t.Errorf("%s: %s reads %q, was %q", when, file, text(t, file), b[file])
	}
}
