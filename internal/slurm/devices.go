package slurm

import (
	"cmp"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// nvidiaMajor is the major number of the NVIDIA driver's character devices, one
// for each GPU. Source: the kernel's Documentation/admin-guide/devices.txt.
const nvidiaMajor = 195

// DeviceNumbers returns the major and minor number of the device file at path.
type DeviceNumbers func(path string) (major, minor int, err error)

// Devices returns a DeviceNumbers that asks stat(2) below root, "/" outside
// tests.
func Devices(root string) DeviceNumbers {
	return func(path string) (major, minor int, err error) {
		info, err := os.Stat(filepath.Join(root, path))
		if err != nil {
			return 0, 0, err
		}
		stat, isStat := info.Sys().(*syscall.Stat_t)
		if !isStat || info.Mode()&os.ModeCharDevice == 0 {
			return 0, 0, &os.PathError{Op: "stat", Path: path, Err: errors.New("not a character device")}
		}
		major, minor = splitDevice(stat.Rdev)
		return major, minor, nil
	}
}

// splitDevice undoes makedev(3) of glibc and the kernel's new_encode_dev.
func splitDevice(device uint64) (major, minor int) {
	major = int(uint32(device>>8)&0xfff | uint32(device>>32)&^0xfff)
	minor = int(uint32(device)&0xff | uint32(device>>12)&^0xff)
	return major, minor
}

// minorNumber returns the number of the GPU that the device file belongs to, -1
// if it is none's. The number in the name is the minor number by the driver's
// convention; the node itself is asked first since it can have any name.
func minorNumber(path string, devices DeviceNumbers) int {
	if devices != nil {
		if major, minor, err := devices(path); err == nil && major == nvidiaMajor {
			return minor
		}
	}
	digits, found := strings.CutPrefix(filepath.Base(path), "nvidia")
	if number, err := strconv.ParseUint(digits, 10, 16); found && err == nil {
		return int(number)
	}
	return -1
}

// compareNatural orders text with numbers in it as Slurm does (strnatcmp):
// nvidia2 before nvidia10.
func compareNatural(a, b string) int {
	for a != "" && b != "" {
		if isDigit(a[0]) && isDigit(b[0]) {
			first, second := leadingDigits(a), leadingDigits(b)
			a, b = a[len(first):], b[len(second):]
			first, second = strings.TrimLeft(first, "0"), strings.TrimLeft(second, "0")
			if order := cmp.Or(cmp.Compare(len(first), len(second)), strings.Compare(first, second)); order != 0 {
				return order
			}
			continue
		}
		if a[0] != b[0] {
			return cmp.Compare(a[0], b[0])
		}
		a, b = a[1:], b[1:]
	}
	return cmp.Compare(len(a), len(b))
}

func leadingDigits(text string) string {
	return text[:len(text)-len(strings.TrimLeft(text, "0123456789"))]
}
