package setting

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

func init() {
	register(kind{
		Kind: Kind{
			Pattern: "sysctl/*", Example: "sysctl/vm.swappiness",
			Doc: "a value below /proc/sys by its name, vm.swappiness: numbers or one word, separated by blanks; vm.dirty and vm.dirty_background are ratio=PERCENT or bytes=BYTES, vm.overcommit is ratio=PERCENT or kbytes=KIB",
		},
		open: func(env *Environment, key string, wild []string) (Setting, error) {
			return newSysctl(env, key, wild[0])
		},
	})
}

// sysctl is a value of the kernel's below /proc/sys.
//
// Documentation/admin-guide/sysctl/{vm,kernel}.rst and
// Documentation/networking/ip-sysctl.rst. The kernel shows what was written, but
// for the blanks between several numbers, so the canonical value has single ones.
type sysctl struct {
	kernelFile
	name string
}

// sysctlRange are the values that the kernel's documentation names.
type sysctlRange struct {
	low, high int64
	count     int // how many numbers
}

// Ranges that are known. Others the kernel judges when they are written.
var sysctlRanges = map[string]sysctlRange{
	"vm.swappiness":                {0, 200, 1},
	"vm.zone_reclaim_mode":         {0, 7, 1},
	"kernel.numa_balancing":        {0, 3, 1},
	"net.ipv4.ip_local_port_range": {1, 65535, 2},
}

// newSysctl returns the setting with a name such as vm.swappiness.
func newSysctl(env *Environment, key, name string) (Setting, error) {
	if strings.Contains(name, "..") || strings.HasSuffix(name, ".") || strings.ContainsRune(name, ':') || !strings.Contains(name, ".") {
		return nil, fmt.Errorf("%w: %s: want the name of a sysctl, as vm.swappiness", ErrUnknownKey, key)
	}
	if of, _ := pairOf(name); of != "" {
		return nil, fmt.Errorf("%w: %s: the kernel resets it with its twin, sysctl/%s has both", ErrUnknownKey, key, of)
	}
	if strings.HasPrefix(name, "vm.nr_hugepages") {
		// The kernel spreads what is written over the nodes, and takes from all of them.
		return nil, fmt.Errorf("%w: %s: which node had how many would be lost, hugepages/nodeN/SIZEkB has them", ErrUnknownKey, key)
	}
	f := kernelFile{env: env, key: key, of: "sysctl " + name, path: "/proc/sys/" + strings.ReplaceAll(name, ".", "/")}
	if p, is := pairs[name]; is {
		return sysctlPair{f, p}, nil
	}
	return sysctl{f, name}, nil
}

// Sysctl returns the key and value for a sysctl by the kernel's name.
// vm.dirty_ratio and vm.dirty_bytes, of which only one counts, are one setting,
// and so are the other pairs of which the kernel resets one.
func Sysctl(name, value string) Wish {
	if of, form := pairOf(name); of != "" {
		return Wish{"sysctl/" + of, form + "=" + value}
	}
	return Wish{"sysctl/" + name, value}
}

// Traits implements Setting.
func (sysctl) Traits() Traits { return Traits{Needs: WholeNode, Lifetime: UntilReboot} }

// Check implements Setting.
func (s sysctl) Check(_ context.Context, value string) (string, error) {
	if _, err := s.read(); err != nil {
		return "", err // vm.drop_caches and its like cannot be read, so not put back
	}
	fields := strings.Fields(value)
	fail := &ValueError{Of: s.of, Value: shown(value), Accepts: "want numbers or one word"}
	if len(fields) == 0 || len(value) > maxKey || strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r > '~' }) {
		return "", fail
	}
	bounds, known := sysctlRanges[s.name]
	if !known {
		return strings.Join(fields, " "), nil
	}
	fail.Accepts = fmt.Sprintf("want %d to %d", bounds.low, bounds.high)
	if bounds.count == 2 {
		fail.Accepts = fmt.Sprintf("want two numbers from %d to %d, the lower one first", bounds.low, bounds.high)
	}
	if len(fields) != bounds.count {
		return "", fail
	}
	last := bounds.low
	for i, field := range fields {
		number, err := strconv.ParseInt(field, 10, 64)
		if err != nil || number < last || number > bounds.high {
			return "", fail
		}
		fields[i], last = strconv.FormatInt(number, 10), number
	}
	return strings.Join(fields, " "), nil
}

// Read implements Setting.
func (s sysctl) Read(context.Context) (string, error) {
	text, err := s.read()
	return strings.Join(strings.Fields(text), " "), err
}

// Write implements Setting.
func (s sysctl) Write(ctx context.Context, value string) error {
	if err := s.write(value); err != nil {
		return err
	}
	return readBack(ctx, s, s.of, value)
}
