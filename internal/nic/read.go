package nic

import (
	"os"
	"path/filepath"
	"strings"

	"gputune/internal/topology"
)

// Usable returns those of a machine's network devices whose link is up, by the
// names that programs use. A function with an RDMA device goes by that one's name.
// Bonds, and interfaces that are part of one, are left out: they are no one
// device's. root is prepended to /sys, "/" outside tests.
//
// Documentation/ABI/testing/sysfs-class-net (operstate, master) and
// Documentation/ABI/stable/sysfs-class-infiniband (ports/*/state, "4: ACTIVE").
func Usable(root string, machine *topology.Machine) []Device {
	var devices []Device
	for _, nic := range machine.NICs {
		if d, ok := usable(root, nic); ok {
			devices = append(devices, d)
		}
	}
	return devices
}

func usable(root string, nic topology.NIC) (Device, bool) {
	var rdma, interfaces []string
	for _, name := range nic.Names {
		switch {
		case exists(root, "sys/class/infiniband", name):
			rdma = append(rdma, name)
		case exists(root, "sys/class/net", name):
			interfaces = append(interfaces, name)
		}
	}
	for _, name := range interfaces {
		if exists(root, "sys/class/net", name, "master/bonding") || exists(root, "sys/class/net", name, "bonding") {
			return Device{}, false
		}
	}
	for _, name := range rdma {
		if !isBond(name) && portActive(root, name) {
			return Device{NIC: nic, Name: name}, true
		}
	}
	if len(rdma) > 0 {
		return Device{}, false
	}
	for _, name := range interfaces {
		if line(root, "sys/class/net", name, "operstate") == "up" {
			return Device{NIC: nic, Name: name}, true
		}
	}
	return Device{}, false
}

// portActive tells whether any port of an RDMA device is active.
func portActive(root, name string) bool {
	ports, _ := filepath.Glob(filepath.Join(root, "sys/class/infiniband", name, "ports/*/state"))
	for _, port := range ports {
		if text, err := os.ReadFile(port); err == nil && strings.HasPrefix(string(text), "4:") {
			return true
		}
	}
	return false
}

func exists(root string, parts ...string) bool {
	_, err := os.Stat(filepath.Join(append([]string{root}, parts...)...))
	return err == nil
}

func line(root string, parts ...string) string {
	text, _ := os.ReadFile(filepath.Join(append([]string{root}, parts...)...))
	return strings.TrimSpace(string(text))
}
