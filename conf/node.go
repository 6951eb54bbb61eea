package conf

import (
	"maps"
	"slices"
	"strings"
	"time"

	"gputune/internal/option"
	"gputune/internal/template"
)

// Node is about the settings of a node.
type Node struct {
	// Sysctls are those that profiles may set, by the kernel's names.
	Sysctls Names `toml:"sysctls"`
}

// NodeProfile is about --node-profile.
type NodeProfile struct{ Access }

// THP is about --thp.
type THP struct {
	Access
	Shared Sharing `toml:"shared"`
}

// Hugepages is about --hugepages.
type Hugepages struct {
	Access
	Shared Sharing `toml:"shared"`
	// MaxPercent is how much of a node's memory its pools may have.
	MaxPercent Percent `toml:"max_percent"`
}

// DropCaches is about --drop-caches.
type DropCaches struct {
	Access
	Shared Sharing `toml:"shared"`
	// SyncDeadline is how long the disks may take to write what waits for them.
	SyncDeadline Duration `toml:"sync_deadline"`
	// BeforeBind is what is dropped before a job with mem=bind that has the node
	// for itself.
	BeforeBind BeforeBind `toml:"before_bind"`
}

// BeforeBind is what becomes of caches before a job with mem=bind.
type BeforeBind string

// The values of before_bind.
const (
	BeforeBindOff  BeforeBind = "off"
	BeforeBindPage BeforeBind = "page"
)

// UnmarshalTOML implements toml.Unmarshaler.
func (b *BeforeBind) UnmarshalTOML(value any) error {
	switch text, _ := value.(string); BeforeBind(text) {
	case BeforeBindOff, BeforeBindPage:
		*b = BeforeBind(text)
		return nil
	}
	return wrong(value, `"off" or "page"`)
}

// Memlock is about --gpu-memlock.
type Memlock struct {
	Access
	// Max is how much may be asked for, unlimited included; 0 is no bound.
	Max MiB `toml:"max_mib"`
}

// Percent is a whole number from 1 to 100.
type Percent uint8

// UnmarshalTOML implements toml.Unmarshaler.
func (p *Percent) UnmarshalTOML(value any) error {
	number, isNumber := value.(int64)
	if !isNumber || number < 1 || number > 100 {
		return wrong(value, "a whole number from 1 to 100")
	}
	*p = Percent(number)
	return nil
}

// Template is the value of a variable in the environment of tasks.
type Template struct{ template.Template }

// UnmarshalTOML implements toml.Unmarshaler.
func (t *Template) UnmarshalTOML(value any) (err error) {
	text, isText := value.(string)
	if !isText {
		return wrong(value, template.Forms)
	}
	t.Template, err = template.Parse(text)
	return err
}

// Templates returns the variables of [environment].
func (c Config) Templates() map[string]template.Template {
	templates := make(map[string]template.Template, len(c.Environment))
	for name, t := range c.Environment {
		templates[name] = t.Template
	}
	return templates
}

// NodeOptions are the options of a job that ask for a single setting of its
// nodes. Zero values are those that were not given.
type NodeOptions struct {
	THP        option.THP
	Hugepages  []option.Hugepages
	DropCaches option.Caches
}

// With lays options that a job was given over a profile. What a user asks for by
// name is refused where the machine does not have it.
func (c Config) With(p Profile, o NodeOptions) Profile {
	asked := func(value string, shared Sharing) Want {
		return Want{Value: value, Missing: MissingRefuses, Shared: shared}
	}
	if o.THP != "" {
		p.THP = asked(string(o.THP), c.THP.Shared)
	}
	if len(o.Hugepages) > 0 {
		p.Hugepages = asked(option.HugepagesString(o.Hugepages), c.Hugepages.Shared)
	}
	if o.DropCaches != "" {
		p.DropCaches = asked(string(o.DropCaches), c.DropCaches.Shared)
	}
	return p
}

// defaultNode fills in what is about nodes.
func defaultNode(c *Config) {
	c.Node = Node{shippedSysctls()}
	c.NodeProfile = NodeProfile{everybody()}
	c.THP = THP{everybody(), SharingRefused}
	c.Hugepages = Hugepages{everybody(), SharingRefused, 90}
	c.DropCaches = DropCaches{everybody(), SharingRefused, Duration(10 * time.Second), BeforeBindOff}
	c.Memlock = Memlock{Access: everybody()}
	c.Environment = map[string]Template{}
	c.Profiles = shippedProfiles()
}

// checkNode finds what is wrong with names that the file makes up itself.
func (c Config) checkNode() error {
	for i, name := range c.Node.Sysctls {
		ok := len(name) <= 128 && strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") == ""
		if !ok || !strings.Contains(name, ".") || slices.Contains(strings.Split(name, "."), "") {
			return wrongKey("\""+name+"\": want names of sysctls, such as vm.swappiness", "node", "sysctls")
		}
		if slices.Contains(c.Node.Sysctls[:i], name) {
			return wrongKey("\""+name+"\" is there twice", "node", "sysctls")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Environment)) {
		if err := template.CheckName(name); err != nil {
			return wrongKey(err.Error(), "environment", name)
		}
	}
	return c.checkProfiles()
}
