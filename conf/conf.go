// Package conf is the site's configuration file, gputune.toml. Every key has a
// default, so that no file means the defaults; the file that is shipped beside
// this package documents each key at its default.
package conf

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"time"

	"github.com/BurntSushi/toml"
	"golang.org/x/sys/unix"

	"gputune/internal/option"
)

// File is the place of the configuration file.
const File = "/etc/gputune/gputune.toml"

// Config is the whole file.
type Config struct {
	Paths       Paths       `toml:"paths"`
	NUMABind    NUMABind    `toml:"numa_bind"`
	Job         Job         `toml:"job"`
	MIG         MIG         `toml:"gpu_mig"`
	Clocks      Clocks      `toml:"gpu_clocks"`
	Power       Power       `toml:"gpu_power"`
	ComputeMode ComputeMode `toml:"gpu_compute_mode"`
	MPS         MPS         `toml:"gpu_mps"`
	Baseline    Baseline    `toml:"baseline"`

	Node        Node                `toml:"node"`
	NodeProfile NodeProfile         `toml:"node_profile"`
	THP         THP                 `toml:"thp"`
	Hugepages   Hugepages           `toml:"hugepages"`
	DropCaches  DropCaches          `toml:"drop_caches"`
	Memlock     Memlock             `toml:"gpu_memlock"`
	Environment map[string]Template `toml:"environment"` // by the names of variables
	Profiles    Profiles            `toml:"profile"`
	Agent       Agent               `toml:"agent"`
	Report      Report              `toml:"report"`
}

// Paths are the places that a site may move.
type Paths struct {
	// Machine is the folder whose sys and proc describe the machine.
	Machine Path `toml:"machine"`
	// Snapshot is the file with what NVML said about the machine.
	Snapshot Path `toml:"snapshot"`
	// GresConf is Slurm's gres.conf; empty: beside slurm.conf.
	GresConf Path `toml:"gres_conf"`
	// State is the ledger's folder. It has to survive a reboot.
	State Path `toml:"state"`
	// Run is the folder of what the Prolog reports about the jobs of this boot.
	Run Path `toml:"run"`
	// Journal is the socket of systemd's journal, for the lines of Prolog and Epilog
	// and, where its standard error is the journal, of the agent; empty: none.
	Journal Path `toml:"journal"`
	// Reports is the folder of the reports on jobs that have ended; empty: reports
	// in State. See ReportsFolder.
	Reports Path `toml:"reports"`
}

// ReportsFolder is where the reports on jobs that have ended are.
func (p Paths) ReportsFolder() string {
	if p.Reports == "" {
		return filepath.Join(string(p.State), "reports")
	}
	return string(p.Reports)
}

// NUMABind is about --gpu-numa-bind.
type NUMABind struct {
	// Items are laid under those that the user gives.
	Items Items `toml:"items"`
}

// Job is about the options of jobs, which Prolog and Epilog carry out.
type Job struct {
	// OnRefusal is what becomes of a job whose option is refused on a node.
	OnRefusal Refusal `toml:"on_refusal"`
	// PrologDeadline and EpilogDeadline bound the programs.
	PrologDeadline Duration `toml:"prolog_deadline"`
	EpilogDeadline Duration `toml:"epilog_deadline"`
	// LockWait is the longest wait for a GPU that another job's Prolog or Epilog
	// is working on.
	LockWait Duration `toml:"lock_wait"`
}

// MIG is about --gpu-mig.
type MIG struct {
	Access
	// AllowReset lets a GPU be reset where its MIG mode cannot be switched
	// otherwise.
	AllowReset Switch `toml:"allow_reset"`
}

// Clocks is about --gpu-clocks. Bounds are in MHz; 0 is the GPU's own.
type Clocks struct {
	Access
	Min       Number `toml:"min_mhz"`
	Max       Number `toml:"max_mhz"`
	MemoryMin Number `toml:"memory_min_mhz"`
	MemoryMax Number `toml:"memory_max_mhz"`
}

// Power is about --gpu-power. Bounds are in watts; 0 is the GPU's own.
type Power struct {
	Access
	Min Number `toml:"min_watts"`
	Max Number `toml:"max_watts"`
}

// ComputeMode is about --gpu-compute-mode.
type ComputeMode struct {
	Access
	Modes Modes `toml:"modes"`
}

// MPS is about --gpu-mps.
type MPS struct {
	Access
	// Program is the path of nvidia-cuda-mps-control; empty: where packages put it.
	Program Path `toml:"program"`
	// Exclusive is that nothing but the daemon may use the GPUs meanwhile.
	Exclusive Switch `toml:"exclusive"`
	// MaxMemory is how much of each GPU's memory a client can have at most.
	MaxMemory MiB `toml:"max_memory_mib"`
	// ReadyDeadline is how long a daemon may take to answer when it starts.
	ReadyDeadline Duration `toml:"ready_deadline"`
}

// Items is a value of --gpu-numa-bind in the configuration file.
type Items struct{ option.Bind }

// UnmarshalTOML implements toml.Unmarshaler.
func (i *Items) UnmarshalTOML(value any) (err error) {
	text, isText := value.(string)
	if !isText {
		return wrong(value, "items: "+option.BindForms)
	}
	if i.Bind, err = option.ParseBind(text, option.DefaultBind()); err == nil && !i.On {
		err = fmt.Errorf("%q: off has no effect here: steps that do not give the option follow default= in plugstack.conf", text)
	}
	return err
}

// Default is the configuration of a site without a file.
func Default() Config {
	config := Config{
		Paths: Paths{
			Machine: "/", Snapshot: "/run/gputune/topology.json",
			State: "/var/lib/gputune", Run: "/run/gputune", Journal: "/run/systemd/journal/socket",
		},
		NUMABind: NUMABind{Items{option.DefaultBind()}},
		Job: Job{
			OnRefusal:      RefusalFails,
			PrologDeadline: Duration(30 * time.Second),
			EpilogDeadline: Duration(60 * time.Second),
			LockWait:       Duration(10 * time.Second),
		},
		MIG:    MIG{Access: everybody()},
		Clocks: Clocks{Access: everybody()},
		Power:  Power{Access: everybody()},
		ComputeMode: ComputeMode{
			Access: everybody(),
			Modes:  Modes{option.ComputeShared, option.ComputeExclusive, option.ComputeProhibited},
		},
		MPS:   MPS{Access: everybody(), Exclusive: true, ReadyDeadline: Duration(10 * time.Second)},
		Agent: defaultAgent(), Report: defaultReport(),
	}
	defaultNode(&config)
	return config
}

// check finds what is wrong with several keys together.
func (c Config) check() error {
	for _, bounds := range []struct {
		table, low, high string
		min, max         Number
	}{
		{"gpu_clocks", "min_mhz", "max_mhz", c.Clocks.Min, c.Clocks.Max},
		{"gpu_clocks", "memory_min_mhz", "memory_max_mhz", c.Clocks.MemoryMin, c.Clocks.MemoryMax},
		{"gpu_power", "min_watts", "max_watts", c.Power.Min, c.Power.Max},
	} {
		if bounds.max != 0 && bounds.min > bounds.max {
			return fmt.Errorf("key %s.%s: %d: want %s.%s (%d) or less, or a larger %[4]s",
				bounds.table, bounds.low, bounds.min, bounds.table, bounds.high, bounds.max)
		}
	}
	for _, p := range []struct {
		key  string
		path Path
	}{{"machine", c.Paths.Machine}, {"snapshot", c.Paths.Snapshot}, {"state", c.Paths.State}, {"run", c.Paths.Run}} {
		if p.path == "" {
			return fmt.Errorf("key paths.%s: \"\": want an absolute path", p.key)
		}
	}
	state, run := filepath.Clean(string(c.Paths.State))+"/", filepath.Clean(string(c.Paths.Run))+"/"
	if strings.HasPrefix(state, run) || strings.HasPrefix(run, state) {
		return fmt.Errorf("key paths.run: %q: want a folder apart from paths.state (%q)", c.Paths.Run, c.Paths.State)
	}
	reports := filepath.Clean(c.Paths.ReportsFolder()) + "/"
	if strings.HasPrefix(reports, run) || strings.HasPrefix(run, reports) || strings.HasPrefix(state, reports) ||
		c.Paths.Reports != "" && strings.HasPrefix(reports, state) && reports != state+"reports/" {
		return fmt.Errorf("key paths.reports: %q: want a folder apart from paths.run (%q) and paths.state (%q)", c.Paths.Reports, c.Paths.Run, c.Paths.State)
	}
	return c.checkNode()
}

// maxSize bounds the file, in bytes.
const maxSize = 1 << 20

// read reads a regular file of a reasonable size: slurmstepd waits for it, and
// must not for a pipe that nobody writes to.
func read(path string) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxSize {
		return nil, fmt.Errorf("%s: want a regular file of %d bytes at most", path, maxSize)
	}
	if err := trust(file); err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(file, maxSize))
}

// Load reads path; the empty path means File, which may be missing. An error
// names the file, the line and the key where there is one, and what would be
// accepted. What is returned beside an error is the default configuration, but
// for the paths that the file has all the same: whatever else is wrong in it,
// what jobs have changed is to be found and put back. A file that others than
// root may write is not read at all.
func Load(path string) (Config, error) {
	optional := path == ""
	if optional {
		path = File
	}
	text, err := read(path)
	if optional && errors.Is(err, fs.ErrNotExist) {
		return Default(), nil
	}
	if err != nil {
		return Default(), fmt.Errorf("read configuration: %w", err)
	}
	config, err := decode(string(text))
	if err != nil {
		return salvage(string(text)), fmt.Errorf("%s: %w", path, err)
	}
	return config, nil
}

// salvage returns the defaults with the paths of a file that is not accepted as
// a whole, each line by itself.
func salvage(text string) Config {
	config := Default()
	for key, line := range lines(text) {
		if table, _, _ := strings.Cut(key, "."); table != "paths" {
			continue
		}
		try := config
		if _, err := toml.Decode("[paths]\n"+line, &try); err == nil && try.check() == nil {
			config = try
		}
	}
	return config
}

// Absent tells whether Load(path) returns the defaults because File is not there.
// That is no error, but where gputune is installed it deserves a line in a log:
// a site's rules may have gone with the file.
func Absent(path string) bool {
	if path != "" {
		return false
	}
	_, err := os.Lstat(File)
	return errors.Is(err, fs.ErrNotExist)
}

func decode(text string) (Config, error) {
	config := Default()
	meta, err := toml.Decode(text, &config)
	var parse toml.ParseError
	switch {
	case errors.As(err, &parse) && parse.LastKey != "":
		return config, fmt.Errorf("line %d: key %s: %s", parse.Position.Line, parse.LastKey, parse.Message)
	case errors.As(err, &parse):
		return config, fmt.Errorf("line %d: %s", parse.Position.Line, parse.Message)
	case err != nil:
		return config, err
	}
	for _, key := range meta.Undecoded() {
		return config, fmt.Errorf("%sunknown key %s: known are %s", at(text, key), key, strings.Join(Keys(), ", "))
	}
	err = config.check()
	if wrong := (*keyError)(nil); errors.As(err, &wrong) {
		key := toml.Key(wrong.key)
		return config, fmt.Errorf("%skey %s: %w", at(text, key), key, err)
	}
	return config, err
}

// Keys returns every key of the file, with its table: "paths.machine". NAME
// stands for a name that the file makes up.
func Keys() []string {
	var keys []string
	for table := range reflect.TypeFor[Config]().Fields() {
		switch table.Type {
		case reflect.TypeFor[Profiles]():
			for field := range reflect.TypeFor[Profile]().Fields() {
				key := table.Tag.Get("toml") + ".NAME." + field.Tag.Get("toml")
				if field.Type.Kind() == reflect.Map {
					key += ".NAME"
				}
				keys = append(keys, key)
			}
			continue
		case reflect.TypeFor[map[string]Template]():
			keys = append(keys, table.Tag.Get("toml")+".NAME")
			continue
		}
		for _, field := range reflect.VisibleFields(table.Type) {
			if name := field.Tag.Get("toml"); name != "" {
				keys = append(keys, table.Tag.Get("toml")+"."+name)
			}
		}
	}
	return keys
}

// lines yields the key that each line of a file sets, with its table, and the
// line; a table's own line has the table as its key.
func lines(text string) iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		table := ""
		for line := range strings.SplitSeq(text, "\n") {
			line = strings.TrimSpace(line)
			if name, isTable := strings.CutPrefix(line, "["); isTable {
				name, _, _ = strings.Cut(name, "]")
				table = strings.TrimSpace(name)
				if !yield(table, line) {
					return
				}
				continue
			}
			key, _, _ := strings.Cut(line, "=")
			if key = strings.TrimSpace(key); table != "" {
				key = table + "." + key
			}
			if !yield(key, line) {
				return
			}
		}
	}
}

// at returns "line N: " for a key, which the decoder does not tell of unknown
// ones; "" where the key is written in a way that is not found.
func at(text string, key toml.Key) string {
	number := 0
	for name := range lines(text) {
		if number++; name == key.String() {
			return fmt.Sprintf("line %d: ", number)
		}
	}
	return ""
}
