package conf

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"gputune/internal/option"
)

// Profiles are bundles of settings of a node by their names, for --node-profile.
type Profiles map[string]Profile

// Profile is one of them. A key that it does not have is "" and leaves the node
// as it is; so does "keep", which a profile needs to undo what it includes.
type Profile struct {
	// Include are profiles that this one is laid over.
	Include Names `toml:"include"`
	// Missing is what becomes of keys that the machine does not have, unless the
	// key says it itself.
	Missing Missing `toml:"missing"`

	THP              Want `toml:"thp"`
	THPDefrag        Want `toml:"thp_defrag"`
	KhugepagedDefrag Want `toml:"khugepaged_defrag"`
	Hugepages        Want `toml:"hugepages"`
	CompactMemory    Want `toml:"compact_memory"`
	DropCaches       Want `toml:"drop_caches"`
	Governor         Want `toml:"governor"`
	Energy           Want `toml:"energy"`
	MinFrequency     Want `toml:"min_frequency"` // MHz, or max
	IdleLatency      Want `toml:"idle_latency"`  // µs, any or none
	IRQs             Want `toml:"irqs"`
	Swap             Want `toml:"swap"`
	GPUClocks        Want `toml:"gpu_clocks"`

	Sysctl map[string]Want `toml:"sysctl"` // by the kernel's names
}

// Keep is the value of a key that changes nothing.
const Keep = "keep"

// Missing is what becomes of a setting that a machine does not have.
type Missing string

// The values of missing.
const (
	MissingSkips   Missing = "skip"   // the rest of the profile is set
	MissingRefuses Missing = "refuse" // the job's option is refused on that node
)

// UnmarshalTOML implements toml.Unmarshaler.
func (m *Missing) UnmarshalTOML(value any) error {
	switch text, _ := value.(string); Missing(text) {
	case MissingSkips, MissingRefuses:
		*m = Missing(text)
		return nil
	}
	return wrong(value, `"skip" or "refuse"`)
}

// Sharing says whether a setting of the whole node may be changed for a job that
// does not have the node for itself.
type Sharing string

// The values of shared.
const (
	SharingRefused Sharing = "refuse"
	SharingAllowed Sharing = "allow"
)

// UnmarshalTOML implements toml.Unmarshaler.
func (s *Sharing) UnmarshalTOML(value any) error {
	switch text, _ := value.(string); Sharing(text) {
	case SharingRefused, SharingAllowed:
		*s = Sharing(text)
		return nil
	}
	return wrong(value, `"refuse" or "allow"`)
}

// Want is the value that a profile wants something to have: the value alone, or
// a table with it and with what holds for this key.
type Want struct {
	Value   string
	Missing Missing // "": the profile's
	Shared  Sharing // "": refuse
}

const wantForms = `a text, a whole number, or { value = …, missing = "skip" or "refuse", shared = "refuse" or "allow" }`

// UnmarshalTOML implements toml.Unmarshaler.
func (w *Want) UnmarshalTOML(value any) error {
	*w = Want{}
	table, isTable := value.(map[string]any)
	if !isTable {
		return w.value(value)
	}
	if _, has := table["value"]; !has {
		return wrong(value, wantForms)
	}
	for _, key := range slices.Sorted(maps.Keys(table)) {
		var err error
		switch key {
		case "value":
			err = w.value(table[key])
		case "missing":
			err = w.Missing.UnmarshalTOML(table[key])
		case "shared":
			err = w.Shared.UnmarshalTOML(table[key])
		default:
			err = fmt.Errorf("unknown key %s: want %s", key, wantForms)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *Want) value(value any) error {
	switch value := value.(type) {
	case string:
		if value == "" || len(value) > option.MaxLength {
			return wrong(value, wantForms)
		}
		w.Value = value
	case int64:
		w.Value = strconv.FormatInt(value, 10)
	default:
		return wrong(value, wantForms)
	}
	return nil
}

// set tells whether anything is wanted.
func (w Want) set() bool { return w.Value != "" }

// Names is a list of names; one alone needs no brackets.
type Names []string

// UnmarshalTOML implements toml.Unmarshaler.
func (n *Names) UnmarshalTOML(value any) error {
	if text, isText := value.(string); isText {
		value = []any{text}
	}
	texts, ok := list(value)
	if !ok {
		return wrong(value, "a name, or a list of names")
	}
	*n = append(Names{}, texts...)
	return nil
}

// word is a check for a key that has one of a few words.
func word(words ...string) (func(string) error, string) {
	return func(text string) error {
		if !slices.Contains(words, text) {
			return fmt.Errorf("not one of them")
		}
		return nil
	}, strings.Join(words, ", ")
}

func number(low, high int64, words ...string) (func(string) error, string) {
	return func(text string) error {
		n, err := strconv.ParseInt(text, 10, 64)
		if slices.Contains(words, text) || err == nil && n >= low && n <= high {
			return nil
		}
		return fmt.Errorf("not between them")
	}, strings.Join(append(slices.Clone(words), fmt.Sprintf("a whole number from %d to %d", low, high)), ", ")
}

func parsed[T any](parse func(string) (T, error), forms string) (func(string) error, string) {
	return func(text string) error {
		_, err := parse(text)
		return err
	}, forms
}

// governorName is the kernel's: which there are it tells.
func governorName(text string) (string, error) {
	if len(text) > 32 || strings.Trim(text, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" {
		return "", fmt.Errorf("not a word")
	}
	return text, nil
}

// judge returns what a key's values are checked with, and which there are.
func judge(key string) (check func(string) error, forms string) {
	switch key {
	case "thp":
		return word("always", "madvise", "never")
	case "thp_defrag":
		return word("always", "defer", "defer+madvise", "madvise", "never")
	case "khugepaged_defrag", "compact_memory":
		return word("on", "off")
	case "hugepages":
		return parsed(option.ParseHugepages, option.HugepagesForms)
	case "drop_caches":
		return word("page", "slab", "all")
	case "governor":
		return parsed(governorName, "a word that the kernel's cpufreq has, such as performance")
	case "energy":
		return parsed(governorName, "a word of the processor's driver, such as performance, or 0 to 255")
	case "min_frequency":
		return number(1, maxNumber, "max")
	case "idle_latency":
		return number(1, 1_000_000, "any", "none")
	case "irqs":
		return word("local")
	case "swap":
		return word("off")
	case "gpu_clocks":
		return parsed(option.ParseClocks, option.ClocksForms)
	default: // of sysctl; the kernel judges it
		return parsed(sysctlValue, "numbers or one word")
	}
}

func sysctlValue(text string) (string, error) {
	if len(text) > 255 || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' }) {
		return "", fmt.Errorf("not of that form")
	}
	return text, nil
}

// fields yields the keys of a profile that want something, with their place.
func (p *Profile) fields() map[string]*Want {
	wants := map[string]*Want{}
	value := reflect.ValueOf(p).Elem()
	for field, v := range value.Fields() {
		if want, ok := v.Addr().Interface().(*Want); ok {
			wants[field.Tag.Get("toml")] = want
		}
	}
	return wants
}

// Wants returns what a profile wants, by key; a sysctl's key is "sysctl." and
// its name. Keys that are to be kept are not in it.
func (p Profile) Wants() map[string]Want {
	wants := map[string]Want{}
	for key, want := range p.fields() {
		wants[key] = *want
	}
	for name, want := range p.Sysctl {
		wants["sysctl."+name] = want
	}
	maps.DeleteFunc(wants, func(_ string, w Want) bool { return !w.set() || w.Value == Keep })
	return wants
}

// keyError is what is wrong with one key.
type keyError struct {
	key  []string
	text string
}

func (e *keyError) Error() string { return e.text }

func wrongKey(text string, key ...string) error { return &keyError{key, text} }

// Profile returns a profile with what it includes laid under it, and the keys'
// own defaults filled in. A name that there is not is an error with those that
// there are.
func (c Config) Profile(name string) (Profile, error) {
	if _, known := c.Profiles[name]; !known {
		return Profile{}, fmt.Errorf("no profile %s: this site has %s", option.Shown(name), strings.Join(slices.Sorted(maps.Keys(c.Profiles)), ", "))
	}
	flat, err := c.flatten(name, nil)
	if err != nil {
		return Profile{}, err
	}
	result := Profile{Missing: MissingSkips, Sysctl: map[string]Want{}}
	fields := result.fields()
	for key, from := range flat {
		want := from.want
		if sysctl, is := strings.CutPrefix(key, "sysctl."); is {
			result.Sysctl[sysctl] = want
			continue
		}
		*fields[key] = want
	}
	return result, nil
}

// origin is what a profile wants of a key, and which profile says so.
type origin struct {
	want Want
	name string
}

// flatten returns what a profile and those that it includes want, by key. above
// are the profiles that include it.
func (c Config) flatten(name string, above []string) (map[string]origin, error) {
	p, known := c.Profiles[name]
	by := ""
	if len(above) > 0 {
		by = above[len(above)-1]
	}
	switch {
	case !known:
		return nil, wrongKey(fmt.Sprintf("%q: want one of %s", name, strings.Join(slices.Sorted(maps.Keys(c.Profiles)), ", ")), "profile", by, "include")
	case slices.Contains(above, name):
		return nil, wrongKey(fmt.Sprintf("it includes itself: %s", strings.Join(append(above, name), " → ")), "profile", by, "include")
	}
	own := map[string]origin{}
	put := func(key string, want Want) {
		if !want.set() {
			return
		}
		if want.Missing == "" {
			want.Missing = p.Missing
		}
		if want.Missing == "" {
			want.Missing = MissingSkips
		}
		if want.Shared == "" {
			want.Shared = SharingRefused
		}
		own[key] = origin{want, name}
	}
	for key, want := range p.fields() {
		put(key, *want)
	}
	for key, want := range p.Sysctl {
		put("sysctl."+key, want)
	}
	included := map[string]origin{}
	for _, other := range p.Include {
		wants, err := c.flatten(other, append(slices.Clone(above), name))
		if err != nil {
			return nil, err
		}
		for _, key := range slices.Sorted(maps.Keys(wants)) {
			from := wants[key]
			before, twice := included[key]
			if _, decided := own[key]; twice && !decided && before.want != from.want {
				return nil, wrongKey(fmt.Sprintf("%s and %s contradict each other: %s is %s and %s: say in %s which",
					before.name, from.name, key, before.want, from.want, name), "profile", name, "include")
			}
			included[key] = from
		}
	}
	// One of a pair that the site's profile says replaces the twin that it includes.
	for key := range own {
		delete(included, twin(key))
	}
	maps.Copy(included, own)
	for _, key := range slices.Sorted(maps.Keys(included)) {
		other, both := included[twin(key)]
		if both && included[key].want.Value != Keep && other.want.Value != Keep {
			return nil, wrongKey(fmt.Sprintf("%s and %s contradict each other: the kernel has only one of them", key, twin(key)),
				append([]string{"profile", name}, strings.SplitN(key, ".", 2)...)...)
		}
	}
	return included, nil
}

// String writes a value as an error shows it.
func (w Want) String() string {
	if w.Missing == MissingRefuses || w.Shared == SharingAllowed {
		return fmt.Sprintf("%s (missing %s, shared %s)", w.Value, w.Missing, w.Shared)
	}
	return w.Value
}

// twin returns the sysctl that the kernel resets when it is set: vm.dirty_bytes
// for vm.dirty_ratio; "" if there is none.
func twin(key string) string {
	for pair, amount := range map[string]string{"sysctl.vm.dirty_": "bytes", "sysctl.vm.dirty_background_": "bytes", "sysctl.vm.overcommit_": "kbytes"} {
		switch key {
		case pair + "ratio":
			return pair + amount
		case pair + amount:
			return pair + "ratio"
		}
	}
	return ""
}

// checkProfiles finds what is wrong with any profile.
func (c Config) checkProfiles() error {
	for _, name := range slices.Sorted(maps.Keys(c.Profiles)) {
		if _, err := option.ParseNodeProfile(name); err != nil {
			return wrongKey("want "+option.NodeProfileForms, "profile", name)
		}
		p := c.Profiles[name]
		fields := p.fields()
		for _, key := range slices.Sorted(maps.Keys(fields)) {
			if err := checkWant(key, *fields[key], "profile", name, key); err != nil {
				return err
			}
		}
		for _, key := range slices.Sorted(maps.Keys(p.Sysctl)) {
			if !slices.Contains(c.Node.Sysctls, key) {
				return wrongKey("want one of node.sysctls: "+strings.Join(c.Node.Sysctls, ", "), "profile", name, "sysctl", key)
			}
			if err := checkWant("sysctl", p.Sysctl[key], "profile", name, "sysctl", key); err != nil {
				return err
			}
		}
		if _, err := c.flatten(name, nil); err != nil {
			return err
		}
	}
	return nil
}

func checkWant(kind string, want Want, key ...string) error {
	if !want.set() || want.Value == Keep {
		return nil
	}
	check, forms := judge(kind)
	if check(want.Value) != nil {
		return wrongKey(fmt.Sprintf("%q: want %s, or %s", want.Value, forms, Keep), key...)
	}
	return nil
}
