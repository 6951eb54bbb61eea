package numavm

import (
	"fmt"
	"strings"
)

const (
	// rootPartition is the UUID that the image's recipe gives the partition with the root file system.
	rootPartition = "PARTUUID=5eed0000-0000-4000-8000-000000000001"
	// agentPort is the name of the virtio-serial port between runner and agent.
	agentPort = "numavm.agent"
	// shareTag is what the guest mounts with -t virtiofs.
	shareTag = "host"
)

// kernelArgs are the guest kernel's command line. With panic=-1 it restarts at once after a panic, which -no-reboot turns
// into the end of QEMU. On a host that is busy the kernel's check of its timer may fail, which is a panic: no_timer_check. The
// others save emulated CPU time at boot; tsc=reliable keeps kernel 6.12 from falling back to hpet. All CPUs are emulated by one
// thread, with a cache of translated code for each: what systemd starts, Slurm's daemons too, stays on one of them and so
// finds its code there. The agent and what it runs are free, and so are Slurm's tasks, which Slurm binds.
var kernelArgs = []string{
	"root=" + rootPartition, "rootwait", "rw", "console=ttyS0", "panic=-1", "oops=panic", "quiet", "systemd.show_status=no",
	"mitigations=off", "pcie_ports=compat", "nokaslr", "cryptomgr.notests", "tsc=reliable", "no_timer_check",
	"systemd.cpu_affinity=0",
}

// noUdev are the arguments that leave systemd-udevd out: 5 to 8 s of a boot.
var noUdev = []string{
	"systemd.mask=systemd-udevd.service", "systemd.mask=systemd-udev-trigger.service",
	"systemd.mask=systemd-udevd-control.socket", "systemd.mask=systemd-udevd-kernel.socket",
}

// launch is what a QEMU command line depends on.
type launch struct {
	topology   Topology
	cpu        string // QEMU's -cpu
	kernel     string // file
	disk       string // file, qcow2
	console    string // file that takes what the guest writes to its serial line
	shareSock  string // virtiofsd's socket
	agentFD    int    // inherited stream socket of the agent's port
	udev       bool
	kernelArgs []string // added to the usual ones
}

// args are QEMU's arguments.
func (l launch) args() []string {
	cmdline := append([]string(nil), kernelArgs...)
	if !l.udev {
		cmdline = append(cmdline, noUdev...)
	}
	cmdline = append(cmdline, l.kernelArgs...)
	a := []string{
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-machine", "q35,sata=off,smbus=off,vmport=off",
		// thread=multi hangs or crashes about one boot in six, on QEMU 7.2 and 10 alike, and boots no faster.
		"-accel", "tcg,thread=single",
		"-cpu", l.cpu,
		"-kernel", l.kernel, "-append", strings.Join(cmdline, " "),
		"-serial", "file:" + l.console,
		"-drive", "file=" + l.disk + ",format=qcow2,if=none,id=root",
		"-device", "nvme,drive=root,serial=root,bus=pcie.0",
		"-device", "virtio-serial-pci,bus=pcie.0",
		"-chardev", fmt.Sprintf("socket,id=agent,fd=%d", l.agentFD),
		"-device", "virtserialport,chardev=agent,name=" + agentPort,
		"-chardev", "socket,id=share,path=" + l.shareSock,
		"-device", "vhost-user-fs-pci,chardev=share,tag=" + shareTag + ",bus=pcie.0",
	}
	a = append(a, l.topology.memoryArgs()...)
	return append(a, l.topology.deviceArgs()...)
}

// memoryArgs are the CPUs and nodes. Memory is a memfd, which virtiofsd shares and which takes space only where touched.
func (t Topology) memoryArgs() []string {
	a := []string{"-smp", t.smp, "-m", fmt.Sprintf("%dM", t.MemoryMiB())}
	for id, n := range t.Nodes {
		a = append(a,
			"-object", fmt.Sprintf("memory-backend-memfd,id=m%d,size=%dM,share=on", id, n.MemoryMiB),
			"-numa", fmt.Sprintf("node,nodeid=%d,memdev=m%d", id, id))
		if n.place != "" {
			a = append(a, "-numa", fmt.Sprintf("cpu,node-id=%d,%s", id, n.place))
		}
	}
	for i, row := range t.Distances {
		for j := i + 1; j < len(row); j++ {
			a = append(a, "-numa", fmt.Sprintf("dist,src=%d,dst=%d,val=%d", i, j, row[j]))
		}
	}
	return a
}

// deviceArgs are the PCI devices: for each node with devices a host bridge of its own, whose bus the firmware puts on that
// node (_PXM), and a root port for each device. Devices of no node go straight to pcie.0.
func (t Topology) deviceArgs() []string {
	var a []string
	slots := map[int]int{} // devices so far on a node's bridge
	for i, d := range t.Devices {
		bus := "pcie.0"
		if d.Node >= 0 {
			if slots[d.Node] == 0 {
				// Bus numbers 0x20, 0x40, …: room for the root ports' own.
				a = append(a, "-device", fmt.Sprintf("pxb-pcie,id=bridge%d,bus=pcie.0,bus_nr=%d,numa_node=%d", d.Node, 0x20*(d.Node+1), d.Node))
			}
			slots[d.Node]++
			bus = fmt.Sprintf("port%d", i)
			a = append(a, "-device", fmt.Sprintf("pcie-root-port,id=%s,bus=bridge%d,chassis=%d,slot=%d,io-reserve=0", bus, d.Node, d.Node+1, slots[d.Node]))
		}
		id := strings.ToLower(d.Name)
		switch d.Kind {
		case GPU:
			a = append(a,
				"-drive", fmt.Sprintf("driver=null-co,size=16M,read-zeroes=on,if=none,id=%s", id),
				"-device", fmt.Sprintf("nvme,drive=%s,serial=%s,bus=%s,max_ioqpairs=4", id, d.Name, bus))
		case NIC:
			a = append(a,
				"-netdev", fmt.Sprintf("user,id=%s,restrict=on,ipv6=off", id),
				"-device", fmt.Sprintf("virtio-net-pci,netdev=%s,bus=%s,mq=off,vectors=4,mac=52:54:00:00:00:%02x,romfile=", id, bus, d.Node))
		}
	}
	return a
}
