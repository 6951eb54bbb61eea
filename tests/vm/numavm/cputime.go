package numavm

import (
	"fmt"
	"strconv"
	"time"
)

// clockTick is the unit of times in /proc/<pid>/stat: USER_HZ, 100 on every Linux that Go runs on.
const clockTick = time.Second / 100

// CPUTime is the CPU time that the machine's QEMU has used in all its boots, of the user and of the kernel: what a machine
// costs, however busy the host is. The end of a boot that Reboot shuts down is not in it.
func (vm *VM) CPUTime() (time.Duration, error) {
	s, err := vm.session()
	if err != nil {
		return 0, err
	}
	used, err := cpuTime(s.qemu.process.Pid)
	vm.mu.Lock()
	defer vm.mu.Unlock()
	return vm.before + used, err
}

// count adds up what a boot has used that is about to end.
func (vm *VM) count(s *session) {
	used, err := cpuTime(s.qemu.process.Pid)
	if err != nil {
		return // it has ended by itself
	}
	vm.mu.Lock()
	defer vm.mu.Unlock()
	vm.before += used
}

// cpuTime adds fields 14 and 15 of /proc/<pid>/stat (proc_pid_stat(5)): utime and stime.
func cpuTime(pid int) (time.Duration, error) {
	fields, err := statFields(pid)
	if err != nil {
		return 0, err
	}
	var sum time.Duration
	for _, text := range fields[14-3 : 16-3] {
		ticks, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/%d/stat: %w", pid, err)
		}
		sum += time.Duration(ticks) * clockTick
	}
	return sum, nil
}
