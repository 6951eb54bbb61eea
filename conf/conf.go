// Package conf is the site's configuration file, gputune.toml. Every key has a
// default, so that no file means the defaults; the file that is shipped beside
// this package documents each key at its default.
package conf

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/BurntSushi/toml"
	"golang.org/x/sys/unix"

	"gputune/internal/option"
)

// File is the place of the configuration file.
const File = "/etc/gputune/gputune.toml"

// Config is the whole file.
type Config struct {
	Paths    Paths    `toml:"paths"`
	NUMABind NUMABind `toml:"numa_bind"`
}

// Paths are the places that a site may move.
type Paths struct {
	// Machine is the folder whose sys and proc describe the machine.
	Machine string `toml:"machine"`
	// Snapshot is the file with what NVML said about the machine.
	Snapshot string `toml:"snapshot"`
	// GresConf is Slurm's gres.conf; empty: beside slurm.conf.
	GresConf string `toml:"gres_conf"`
}

// NUMABind is about --gpu-numa-bind.
type NUMABind struct {
	// Items are laid under those that the user gives.
	Items Items `toml:"items"`
}

// Items is a value of --gpu-numa-bind in the configuration file.
type Items struct{ option.Bind }

// UnmarshalText reads the option's grammar.
func (i *Items) UnmarshalText(text []byte) (err error) {
	if i.Bind, err = option.ParseBind(string(text), option.DefaultBind()); err == nil && !i.On {
		err = fmt.Errorf("items %q: off has no effect here: steps that do not give the option follow default= in plugstack.conf", text)
	}
	return err
}

// Default is the configuration of a site without a file.
func Default() Config {
	return Config{
		Paths:    Paths{Machine: "/", Snapshot: "/run/gputune/topology.json"},
		NUMABind: NUMABind{Items{option.DefaultBind()}},
	}
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
	return io.ReadAll(io.LimitReader(file, maxSize))
}

// Load reads path; the empty path means File, which may be missing. An error
// names the file, and the line and key where there is one. What is returned
// beside an error is the default configuration.
func Load(path string) (Config, error) {
	config := Default()
	optional := path == ""
	if optional {
		path = File
	}
	text, err := read(path)
	if optional && errors.Is(err, fs.ErrNotExist) {
		return config, nil
	}
	if err != nil {
		return config, fmt.Errorf("read configuration: %w", err)
	}
	meta, err := toml.Decode(string(text), &config)
	var parse toml.ParseError
	switch {
	case errors.As(err, &parse) && parse.LastKey != "":
		return Default(), fmt.Errorf("%s: line %d: key %s: %s", path, parse.Position.Line, parse.LastKey, parse.Message)
	case errors.As(err, &parse):
		return Default(), fmt.Errorf("%s: line %d: %s", path, parse.Position.Line, parse.Message)
	case err != nil:
		return Default(), fmt.Errorf("%s: %w", path, err)
	}
	if unknown := meta.Undecoded(); len(unknown) > 0 {
		names := make([]string, len(unknown))
		for i, key := range unknown {
			names[i] = key.String()
		}
		return Default(), fmt.Errorf("%s: unknown key %s: known are paths.machine, paths.snapshot, paths.gres_conf, numa_bind.items",
			path, strings.Join(names, ", "))
	}
	return config, nil
}
