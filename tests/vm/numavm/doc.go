// Package numavm runs a virtual NUMA machine with a real Slurm in it: a Debian of the host's own mirror under QEMU's software
// emulation, with systemd, pure cgroup v2, several NUMA nodes and PCI devices that sit on them. Folders of the host are
// seen in the guest under /host, read-only, so a freshly built program is run without touching the image.
//
// A test starts one machine for a suite and topology and runs any number of commands in it:
//
//	vm, err := numavm.Start(ctx, numavm.Options{Suite: numavm.Trixie, Topology: topo})
//	defer vm.Close()
//	res, err := vm.Run(ctx, "slurm-up && srun -n4 --gpus-per-task=1 true")
//
// An error of Run says that the machine failed or the command ran past its timeout; a command that ends with another
// status than 0 is a result, not an error. Needs root, for chroot while the image is built and for virtiofsd.
package numavm
