package nvml

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gputune/internal/mig"
)

// migFunctions are those that splitting a GPU takes. The first drivers that know
// MIG (R450) have all but the ones that tell the names of profiles.
var migFunctions = []string{
	"nvmlDeviceGetMigMode", "nvmlDeviceSetMigMode",
	"nvmlDeviceGetGpuInstanceProfileInfoV", "nvmlDeviceGetGpuInstances", "nvmlDeviceGetGpuInstanceById",
	"nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceGetInfo", "nvmlGpuInstanceDestroy",
	"nvmlGpuInstanceGetComputeInstanceProfileInfoV", "nvmlGpuInstanceGetComputeInstances",
	"nvmlGpuInstanceGetComputeInstanceById", "nvmlGpuInstanceCreateComputeInstance",
	"nvmlGpuInstanceCreateComputeInstanceWithPlacement", "nvmlComputeInstanceGetInfo", "nvmlComputeInstanceDestroy",
	"nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex",
	"nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetComputeInstanceId",
}

// maxProfiles bounds the numbers of profiles that are asked for. NVML ends the
// list with Invalid Argument; releases so far know 18.
const maxProfiles = 64

// MIG implements setting.Device.
func (d *device) MIG() (mig.Card, error) {
	for _, function := range migFunctions {
		if !d.session.has(function) {
			return nil, d.done("MIG: "+function, nvml.ERROR_FUNCTION_NOT_FOUND)
		}
	}
	return &splitter{device: d}, nil
}

// splitter is a GPU as package mig sees it.
type splitter struct {
	*device
	profiles []mig.Profile // once asked for: they do not change
}

var _ mig.Card = (*splitter)(nil)

// Minor implements mig.Card.
func (c *splitter) Minor() (int, error) {
	minor, ret := c.handle.GetMinorNumber()
	return minor, c.done("minor number", ret)
}

// Mode implements mig.Card.
func (c *splitter) Mode() (mig.Mode, error) {
	now, next, ret := c.handle.GetMigMode()
	return mig.Mode{Now: now == nvml.DEVICE_MIG_ENABLE, Next: next == nvml.DEVICE_MIG_ENABLE}, c.done("MIG mode", ret)
}

// SetMode implements mig.Card. NVML may unbind or reset the GPU for it, after
// which its minor number and handle may be others (nvml.h), so it is searched
// again.
func (c *splitter) SetMode(on bool) error {
	doing, mode := "switch MIG mode off", nvml.DEVICE_MIG_DISABLE
	if on {
		doing, mode = "switch MIG mode on", nvml.DEVICE_MIG_ENABLE
	}
	activation, ret := c.handle.SetMigMode(mode)
	if err := c.done(doing, ret); err != nil {
		return err
	}
	var err error
	switch activation {
	case nvml.SUCCESS:
	case nvml.ERROR_RESET_REQUIRED: // not failure's "gone": the GPU is there and works
		err = fmt.Errorf("gpu %s: %s: it waits for a reset of the GPU (NVML: %s)", c.pci, doing, activation.Error())
	default:
		err = c.done(doing, activation)
	}
	handle, ret := c.session.api.DeviceGetHandleByUUID(c.uuid)
	if ret == nvml.SUCCESS {
		c.handle = handle
	}
	return errors.Join(err, c.done("find the GPU again after MIG mode", ret))
}

// NeedsReset implements mig.Card.
func (c *splitter) NeedsReset() (bool, error) {
	if !c.session.has("nvmlDeviceGetArchitecture") {
		return true, nil // a driver from before Hopper
	}
	architecture, ret := c.handle.GetArchitecture()
	return architecture < nvml.DEVICE_ARCH_HOPPER, c.done("architecture", ret)
}

// profileName turns NVML's "MIG 1g.18gb" into "1g.18gb".
func profileName(name [96]int8) string { return strings.TrimPrefix(text(name[:]), "MIG ") }

// count turns a number of NVML's into one that fits anywhere.
func count(n uint32) int { return int(min(n, math.MaxInt32)) }

// Profiles implements mig.Card.
func (c *splitter) Profiles() ([]mig.Profile, error) {
	if c.profiles != nil {
		return c.profiles, nil
	}
	var list []mig.Profile
	for number := range maxProfiles {
		info, ret := c.handle.GetGpuInstanceProfileInfoV(number).V2()
		if ret == nvml.ERROR_INVALID_ARGUMENT {
			break
		}
		if ret == nvml.ERROR_NOT_SUPPORTED {
			continue
		}
		if err := c.done(fmt.Sprintf("MIG profile %d", number), ret); err != nil {
			return nil, err
		}
		p := mig.Profile{ID: info.Id, Name: profileName(info.Name), Count: count(info.InstanceCount), Slices: count(info.SliceCount)}
		places, ret := c.handle.GetGpuInstancePossiblePlacements(&nvml.GpuInstanceProfileInfo{Id: info.Id})
		if err := c.done("places for MIG "+p.Name, ret); err != nil {
			return nil, err
		}
		for _, at := range places {
			p.Places = append(p.Places, mig.Placement{Start: count(at.Start), Size: count(at.Size)})
		}
		list = append(list, p)
	}
	if len(list) == 0 {
		return nil, c.done("MIG profiles", nvml.ERROR_NOT_SUPPORTED)
	}
	c.profiles = list
	return list, nil
}

// Present implements mig.Card.
func (c *splitter) Present() ([]mig.Present, error) {
	profiles, err := c.Profiles()
	if err != nil {
		return nil, err
	}
	var list []mig.Present
	for _, p := range profiles {
		instances, ret := c.handle.GetGpuInstances(&nvml.GpuInstanceProfileInfo{Id: p.ID, InstanceCount: uint32(max(p.Count, 1))})
		if err := c.done("MIG instances "+p.Name, ret); err != nil {
			return nil, err
		}
		for _, instance := range instances {
			present, err := c.present(p, instance)
			if err != nil {
				return nil, err
			}
			list = append(list, present)
		}
	}
	return list, nil
}

// present describes one GPU instance.
func (c *splitter) present(p mig.Profile, instance nvml.GpuInstance) (mig.Present, error) {
	info, ret := instance.GetInfo()
	if err := c.done("MIG instance "+p.Name, ret); err != nil {
		return mig.Present{}, err
	}
	at := mig.Placement{Start: count(info.Placement.Start), Size: count(info.Placement.Size)}
	present := mig.Present{Instance: mig.Instance{Profile: p.Name, Place: at}, ID: count(info.Id)}
	of := "MIG instance " + present.String()
	kinds, err := c.parts(of, instance)
	if err != nil {
		return mig.Present{}, err
	}
	whole := wholePart(kinds, p)
	wholes := 0
	for i, kind := range kinds {
		parts, ret := instance.GetComputeInstances(&nvml.ComputeInstanceProfileInfo{Id: kind.id, InstanceCount: max(kind.count, 1)})
		if err := c.done("compute instances of "+of, ret); err != nil {
			return mig.Present{}, err
		}
		for _, part := range parts {
			info, ret := part.GetInfo()
			if err := c.done("compute instance of "+of, ret); err != nil {
				return mig.Present{}, err
			}
			if i == whole {
				wholes++
			}
			at := mig.Placement{Start: count(info.Placement.Start), Size: count(info.Placement.Size)}
			present.Parts = append(present.Parts, mig.Part{Profile: kind.name, Place: at})
			present.PartIDs = append(present.PartIDs, count(info.Id))
		}
	}
	if wholes == 1 && len(present.Parts) == 1 {
		present.Whole, present.Parts = true, nil
	}
	return present, nil
}

// partKind is a kind of compute instances.
type partKind struct {
	id, count uint32
	slices    int
	name      string
}

// parts returns the kinds of compute instances that a GPU instance can have, in
// NVML's order.
func (c *splitter) parts(of string, instance nvml.GpuInstance) ([]partKind, error) {
	var list []partKind
	for number := range maxProfiles {
		info, ret := instance.GetComputeInstanceProfileInfoV(number, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED).V2()
		if ret == nvml.ERROR_INVALID_ARGUMENT {
			break
		}
		if ret == nvml.ERROR_NOT_SUPPORTED {
			continue
		}
		if err := c.done(fmt.Sprintf("compute profile %d of %s", number, of), ret); err != nil {
			return nil, err
		}
		list = append(list, partKind{info.Id, info.InstanceCount, count(info.SliceCount), profileName(info.Name)})
	}
	return list, nil
}

// wholePart returns which kind is all of a GPU instance: the first with all of
// its slices, which is nvidia-smi's default. −1 if there is none.
func wholePart(kinds []partKind, p mig.Profile) int {
	return slices.IndexFunc(kinds, func(k partKind) bool { return k.slices == p.Slices })
}

// Create implements mig.Card.
func (c *splitter) Create(profile string, at mig.Placement) (int, error) {
	p, err := c.profile(func(p mig.Profile) bool { return p.Name == profile }, profile)
	if err != nil {
		return 0, err
	}
	what := fmt.Sprintf("make MIG instance %s@%s", profile, at)
	if at.Start < 0 || at.Size < 1 || at.Size > math.MaxInt32 {
		return 0, fmt.Errorf("gpu %s: %s: no such place", c.pci, what)
	}
	instance, ret := c.handle.CreateGpuInstanceWithPlacement(&nvml.GpuInstanceProfileInfo{Id: p.ID},
		&nvml.GpuInstancePlacement{Start: uint32(at.Start), Size: uint32(at.Size)})
	if err := c.done(what, ret); err != nil {
		return 0, err
	}
	info, ret := instance.GetInfo()
	return count(info.Id), c.done(what+": its id", ret)
}

// profile finds a profile of the card.
func (c *splitter) profile(is func(mig.Profile) bool, name string) (mig.Profile, error) {
	profiles, err := c.Profiles()
	if err != nil {
		return mig.Profile{}, err
	}
	i := slices.IndexFunc(profiles, is)
	if i < 0 {
		return mig.Profile{}, fmt.Errorf("gpu %s: MIG profile %s: the GPU has %s", c.pci, name, mig.Table(profiles))
	}
	return profiles[i], nil
}

// instance finds a GPU instance by its id.
func (c *splitter) instance(id int) (nvml.GpuInstance, string, error) {
	of := fmt.Sprintf("MIG instance %d", id)
	instance, ret := c.handle.GetGpuInstanceById(id)
	return instance, of, c.done(of, ret)
}

// Destroy implements mig.Card.
func (c *splitter) Destroy(id int) error {
	instance, of, err := c.instance(id)
	if err != nil {
		return err
	}
	return c.done("destroy "+of, instance.Destroy())
}

// CreatePart implements mig.Card.
func (c *splitter) CreatePart(id int, part mig.Part, whole bool) error {
	instance, of, err := c.instance(id)
	if err != nil {
		return err
	}
	info, ret := instance.GetInfo()
	if err := c.done(of, ret); err != nil {
		return err
	}
	p, err := c.profile(func(p mig.Profile) bool { return p.ID == info.ProfileId }, fmt.Sprint(info.ProfileId))
	if err != nil {
		return err
	}
	kinds, err := c.parts(of, instance)
	if err != nil {
		return err
	}
	i, what := wholePart(kinds, p), "make the compute instance of "+of
	if !whole {
		i = slices.IndexFunc(kinds, func(k partKind) bool { return k.name == part.Profile })
		what = fmt.Sprintf("make compute instance %s in %s", part, of)
	}
	if i < 0 {
		return fmt.Errorf("gpu %s: %s: it has no such profile", c.pci, what)
	}
	kind := &nvml.ComputeInstanceProfileInfo{Id: kinds[i].id}
	if whole {
		_, ret = instance.CreateComputeInstance(kind)
	} else {
		_, ret = instance.CreateComputeInstanceWithPlacement(kind,
			&nvml.ComputeInstancePlacement{Start: uint32(max(part.Place.Start, 0)), Size: uint32(max(part.Place.Size, 0))})
	}
	return c.done(what, ret)
}

// DestroyPart implements mig.Card.
func (c *splitter) DestroyPart(id, part int) error {
	instance, of, err := c.instance(id)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("compute instance %d of %s", part, of)
	compute, ret := instance.GetComputeInstanceById(part)
	if err := c.done(what, ret); err != nil {
		return err
	}
	return c.done("destroy "+what, compute.Destroy())
}

// Devices implements mig.Card.
func (c *splitter) Devices() ([]mig.Device, error) {
	most, ret := c.handle.GetMaxMigDeviceCount()
	if err := c.done("number of MIG devices", ret); err != nil {
		return nil, err
	}
	var list []mig.Device
	for index := range most {
		handle, ret := c.handle.GetMigDeviceHandleByIndex(index)
		if ret == nvml.ERROR_NOT_FOUND { // places for MIG devices need not be taken in order
			continue
		}
		of := fmt.Sprintf("MIG device %d", index)
		if err := c.done(of, ret); err != nil {
			return nil, err
		}
		var d mig.Device
		if d.UUID, ret = handle.GetUUID(); ret == nvml.SUCCESS {
			if d.Instance, ret = handle.GetGpuInstanceId(); ret == nvml.SUCCESS {
				d.Part, ret = handle.GetComputeInstanceId()
			}
		}
		if err := c.done("what "+of+" is", ret); err != nil {
			return nil, err
		}
		list = append(list, d)
	}
	return list, nil
}

// Processes implements mig.Card. The handle of a GPU that is split answers for
// all its instances to root (nvml.h).
func (c *splitter) Processes() ([]mig.Process, error) {
	var list []mig.Process
	for _, kind := range []struct {
		name string
		ask  func() ([]nvml.ProcessInfo, nvml.Return)
	}{{"compute", c.handle.GetComputeRunningProcesses}, {"graphics", c.handle.GetGraphicsRunningProcesses}} {
		found, ret := kind.ask()
		if err := c.done(kind.name+" programs", ret); err != nil {
			return nil, err
		}
		for _, p := range found {
			one := mig.Process{PID: count(p.Pid), Instance: -1}
			if p.GpuInstanceId != math.MaxUint32 {
				one.Instance = count(p.GpuInstanceId)
			}
			list = append(list, one)
		}
	}
	return list, nil
}
