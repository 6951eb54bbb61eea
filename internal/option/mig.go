package option

import (
	"fmt"
	"strings"
)

// MIGName is the name of the option that MIG is the value of.
const MIGName = "gpu-mig"

// MIGForms lists the accepted values, for messages.
const MIGForms = "PROFILE[:N] with + between them, such as 3g.71gb+1g.18gb+me+1g.18gb:2"

// maxMIGInstances is beyond what any GPU can be split into.
const maxMIGInstances = 16

// maxMIGMemory is beyond every GPU's memory, in the gigabytes that profiles are
// named by; maxMIGSlices beyond its slices.
const (
	maxMIGMemory = 9999
	maxMIGSlices = 99
)

// migAttributes are what NVIDIA's names of profiles have behind them: with media
// engines, with all of them, with graphics, without media engines. Two never
// come together.
var migAttributes = []string{"+me.all", "+me", "+gfx", "-me"}

// MIG is the value of --gpu-mig: what each GPU of the job is split into, in the
// order in which the instances are dealt to its tasks.
type MIG struct {
	Instances []MIGInstances
}

// MIGInstances is a number of GPU instances of one profile.
type MIGInstances struct {
	Profile string // as nvidia-smi names it: 1g.18gb, 1g.18gb+me
	Count   int    // 1 or more
}

// ParseMIG reads the value of --gpu-mig. A profile can appear several times. An
// error names the item and the accepted values.
//
// A plus sign begins the next profile if a digit follows, and else belongs to the
// profile before it: 1g.18gb+me+1g.18gb are two.
func ParseMIG(value string) (MIG, error) {
	if len(value) > MaxLength {
		return MIG{}, fmt.Errorf("--%s: %d bytes long: at most %d are accepted", MIGName, len(value), MaxLength)
	}
	var m MIG
	total := 0
	for _, item := range splitMIG(value) {
		one, err := parseMIGItem(item)
		if total += one.Count; err == nil && total > maxMIGInstances {
			err = fmt.Errorf("%d instances: no GPU has more than %d", total, maxMIGInstances)
		}
		if err != nil {
			return MIG{}, fmt.Errorf("--%s: %s: %w", MIGName, Shown(item), err)
		}
		m.Instances = append(m.Instances, one)
	}
	return m, nil
}

// splitMIG cuts a value at each plus sign that a digit follows.
func splitMIG(value string) []string {
	var items []string
	begin := 0
	for i := 1; i+1 < len(value); i++ {
		if next := value[i+1]; value[i] == '+' && next >= '0' && next <= '9' {
			items = append(items, value[begin:i])
			begin = i + 1
		}
	}
	return append(items, value[begin:])
}

func parseMIGItem(item string) (MIGInstances, error) {
	profile, number, counted := strings.Cut(item, ":")
	one := MIGInstances{Profile: profile, Count: 1}
	if !isMIGProfile(profile) {
		return MIGInstances{}, fmt.Errorf("want %s", MIGForms)
	}
	if !counted {
		return one, nil
	}
	count, err := parseUnsigned(number, maxMIGInstances)
	if err != nil || !plainNumber(number) {
		for _, attribute := range migAttributes {
			if strings.HasSuffix(number, attribute) {
				return MIGInstances{}, fmt.Errorf("the number comes last: %s%s:N", profile, attribute)
			}
		}
		return MIGInstances{}, fmt.Errorf("want a number from 1 to %d behind the colon", maxMIGInstances)
	}
	one.Count = int(count)
	return one, nil
}

// isMIGProfile tells whether a text has the form of a profile's name: slices,
// memory in gigabytes, and one attribute at most.
func isMIGProfile(text string) bool {
	for _, attribute := range migAttributes {
		if name, has := strings.CutSuffix(text, attribute); has {
			text = name
			break
		}
	}
	text, isMemory := strings.CutSuffix(text, "gb")
	slices, memory, isProfile := strings.Cut(text, "g.")
	_, slicesErr := parseUnsigned(slices, maxMIGSlices)
	_, memoryErr := parseUnsigned(memory, maxMIGMemory)
	return isMemory && isProfile && slicesErr == nil && memoryErr == nil && plainNumber(slices) && plainNumber(memory)
}

// plainNumber tells whether a number is written without zeros before it, so that
// there is one way to write a value.
func plainNumber(text string) bool { return text != "" && text[0] != '0' }

// String writes the value as the user could have given it.
func (m MIG) String() string {
	items := make([]string, len(m.Instances))
	for i, one := range m.Instances {
		items[i] = one.Profile
		if one.Count > 1 {
			items[i] = fmt.Sprintf("%s:%d", one.Profile, one.Count)
		}
	}
	return strings.Join(items, "+")
}
