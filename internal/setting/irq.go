package setting

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"gputune/internal/idset"
)

// ErrUnmovable is an interrupt whose CPUs the kernel itself manages: that of an
// NVMe queue, or one for each CPU.
var ErrUnmovable = errors.New("the kernel manages its CPUs")

func init() {
	register(kind{
		Kind: Kind{
			Pattern: "irq/*/*/affinity", Example: "irq/0000:21:00.0/42/affinity",
			Doc: "CPUs that an interrupt of a PCI device may go to, as a list: irq/0000:21:00.0/42/affinity",
		},
		open: func(env *Environment, key string, wild []string) (Setting, error) {
			irq, err := strconv.ParseUint(wild[1], 10, 31)
			if err != nil {
				return nil, fmt.Errorf("%w: %s: want irq/PCI-ADDRESS/NUMBER/affinity", ErrUnknownKey, key)
			}
			return newIRQ(env, key, wild[0], int(irq)), nil
		},
	})
}

// irqAffinity is the set of CPUs that an interrupt may go to.
//
// Documentation/core-api/irq/irq-affinity.rst: /proc/irq/N/smp_affinity_list. The
// key has the device, too, since a number that a driver gave back may be another
// device's later; an interrupt that the device no longer has is ErrGone, and there
// is nothing to put back. Where it really goes, effective_affinity_list, may
// change only with the next interrupt.
type irqAffinity struct {
	kernelFile
	pci string
	irq int
}

func newIRQ(env *Environment, key, pci string, irq int) irqAffinity {
	return irqAffinity{kernelFile{
		env: env, key: key, of: fmt.Sprintf("interrupt %d of %s", irq, pci), path: fmt.Sprintf("/proc/irq/%d/smp_affinity_list", irq),
	}, pci, irq}
}

// IRQKey returns the key of the affinity of an interrupt of a PCI device.
func IRQKey(pci string, irq int) string { return fmt.Sprintf("irq/%s/%d/affinity", pci, irq) }

// Traits implements Setting.
func (irqAffinity) Traits() Traits { return Traits{Needs: WholeNode, Lifetime: WhileThere} }

// Check implements Setting. An interrupt that cannot be moved is ErrUnmovable.
func (s irqAffinity) Check(ctx context.Context, value string) (string, error) {
	if _, err := s.Read(ctx); err != nil {
		return "", err
	}
	fail := &ValueError{Of: s.of, Value: "CPUs " + shown(value), Accepts: "want a list of CPUs that are online, as 0-3,8"}
	cpus, err := idset.Parse(value)
	if err != nil || cpus.Empty() {
		return "", fail
	}
	online, err := s.readFile(cpusOnline)
	if err != nil {
		return "", err
	}
	if set, err := idset.Parse(online); err != nil || set.And(cpus).Empty() {
		fail.Accepts = "online are " + online
		return "", fail
	}
	if err := s.probe(); err != nil {
		return "", err
	}
	return cpus.String(), nil
}

// probe asks the kernel whether the interrupt can be moved, by a text that is no
// list: it judges the interrupt before it reads the text (kernel/irq/proc.c), with
// EIO up to 6.1 and EPERM later.
func (s irqAffinity) probe() error {
	file, err := os.OpenFile(s.env.Path(s.path), os.O_WRONLY, 0)
	if err != nil {
		return s.unmovable(err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || info.Mode().IsRegular() && info.Size() > 0 {
		return err // a copy of the tree: a file with a size keeps what is written
	}
	if _, err = file.WriteString("x"); errors.Is(err, unix.EINVAL) {
		return nil
	}
	return s.unmovable(err)
}

// unmovable turns the kernel's words for it into ErrUnmovable.
func (s irqAffinity) unmovable(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.EIO):
		return fmt.Errorf("%s: %w: %w", s.of, ErrUnmovable, err)
	default:
		return fmt.Errorf("%s: %w", s.of, err)
	}
}

// Read implements Setting.
func (s irqAffinity) Read(context.Context) (string, error) {
	has, err := hasIRQ(s.env, s.pci, s.irq)
	if err != nil {
		return "", err
	}
	text := ""
	if has {
		text, err = s.read()
	}
	if missing := (*MissingError)(nil); !has || errors.As(err, &missing) {
		return "", fmt.Errorf("%s: %w", s.of, ErrGone)
	}
	if err != nil {
		return "", err
	}
	cpus, err := idset.Parse(text)
	if err != nil {
		return "", fmt.Errorf("%s: %w", s.of, err)
	}
	return cpus.String(), nil
}

// Write implements Setting.
func (s irqAffinity) Write(ctx context.Context, value string) error {
	if _, err := s.Read(ctx); err != nil {
		return err // the number may be another device's by now
	}
	err := s.write(value)
	if errors.Is(err, ErrDenied) || errors.Is(err, unix.EIO) {
		return fmt.Errorf("%w: %w", ErrUnmovable, err)
	}
	if refused := (*ValueError)(nil); errors.As(err, &refused) && s.offline(value) {
		return fmt.Errorf("%s: CPUs %s: %w: none is online", s.of, value, ErrGone)
	}
	if err != nil {
		return err
	}
	return readBack(ctx, s, s.of, value)
}

// offline tells whether no CPU of a list is online. An interrupt that was there
// the kernel has moved when the last of them went.
func (s irqAffinity) offline(list string) bool {
	cpus, err := idset.Parse(list)
	if err != nil {
		return false
	}
	text, err := s.readFile(cpusOnline)
	if err != nil {
		return false
	}
	online, err := idset.Parse(text)
	return err == nil && online.And(cpus).Empty()
}

const (
	cpusOnline = "/sys/devices/system/cpu/online"
	pciDevices = "/sys/bus/pci/devices/"
)

// Interrupts returns the numbers of the interrupts of a PCI device, in order:
// those of its MSI and MSI-X vectors (Documentation/ABI/testing/sysfs-bus-pci,
// msi_irqs), or the one that it has without. A device whose driver has asked for
// none has none; one that is not there is ErrGone.
func Interrupts(env *Environment, pci string) ([]int, error) {
	if err := CheckKey(IRQKey(pci, 0)); err != nil {
		return nil, err
	}
	of := "PCI device " + pci
	entries, err := os.ReadDir(env.Path(pciDevices + pci + "/msi_irqs"))
	if err == nil {
		var list []int
		for _, entry := range entries {
			irq, err := strconv.ParseUint(entry.Name(), 10, 31)
			if err != nil {
				return nil, fmt.Errorf("%s: msi_irqs: %w", of, err)
			}
			list = append(list, int(irq))
		}
		slices.Sort(list)
		return list, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", of, err)
	}
	line, err := kernelFile{env: env, of: of}.readFile(pciDevices + pci + "/irq")
	if missing := (*MissingError)(nil); errors.As(err, &missing) {
		return nil, fmt.Errorf("%s: %w", of, ErrGone)
	}
	if err != nil {
		return nil, err
	}
	irq, err := strconv.ParseUint(line, 10, 31)
	if err != nil {
		return nil, fmt.Errorf("%s: irq: %w", of, err)
	}
	if irq == 0 {
		return nil, nil
	}
	return []int{int(irq)}, nil
}

func hasIRQ(env *Environment, pci string, irq int) (bool, error) {
	list, err := Interrupts(env, pci)
	if errors.Is(err, ErrGone) {
		return false, nil
	}
	return slices.Contains(list, irq), err
}

// MovableInterrupts returns those of a PCI device's interrupts that can be moved,
// and those that the kernel manages, by number. Moving none is no error.
func MovableInterrupts(env *Environment, pci string) (movable, managed []int, err error) {
	list, err := Interrupts(env, pci)
	if err != nil {
		return nil, nil, err
	}
	for _, irq := range list {
		switch err := newIRQ(env, IRQKey(pci, irq), pci, irq).probe(); {
		case err == nil:
			movable = append(movable, irq)
		case errors.Is(err, ErrUnmovable):
			managed = append(managed, irq)
		case errors.Is(err, fs.ErrNotExist): // given back meanwhile, or a vector that no handler has
		default:
			return nil, nil, err
		}
	}
	return movable, managed, nil
}
