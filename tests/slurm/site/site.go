// Package site is a bed with gputune installed in its Slurm, on a described
// machine: what the end-to-end tests, the demonstration and the benchmarks start
// from.
package site

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"gputune/internal/topology"
	"gputune/tests/fakemps"
	"gputune/tests/fakenvml"
	"gputune/tests/machines"
	"gputune/tests/node"
	"gputune/tests/slurm/bed"
)

// Options say what kind of site to start.
type Options struct {
	Bed bed.Options
	// Machine is the name of the description that the plugin takes for this
	// machine, by default "demo-dual": CPU 0 and two GPUs on node 0, CPU 1 and
	// two GPUs on node 1.
	Machine string
	// Config is appended to gputune.toml.
	Config string
	// Arguments are more arguments of the plugin's line in plugstack.conf.
	Arguments []string
	// Without leaves the plugin out.
	Without bool
	// Jobs makes gputune-prolog and gputune-epilog Slurm's Prolog and Epilog, and
	// gives them a driver for the described GPUs.
	Jobs bool
	// MPS puts a fake nvidia-cuda-mps-control beside that driver and has these
	// lines, at least "\n", follow its place in [gpu_mps] of gputune.toml.
	MPS string
}

// Site is a running Slurm with gputune.
type Site struct {
	*bed.Bed
	Machine *topology.Machine
	Shim    string // spank_gputune.so of the installed release
	Core    string // libgputune.so
	Folder  string // gputune.toml and the machine's sys and proc

	// Of a site with Jobs: the driver, and paths.run and paths.state.
	NVML                   fakenvml.Library
	RunFolder, StateFolder string
	MPS                    fakemps.Programs // of a site with MPS
}

// Tree returns the top folder of the source tree, where build/ is.
func Tree() (string, error) {
	output, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", err
	}
	return filepath.Dir(strings.TrimSpace(string(output))), nil
}

// Release returns the major.minor of the Slurm that is installed.
func Release() (string, error) {
	output, err := exec.Command("slurmd", "-V").Output() // the only program that asks no configuration first
	if err != nil {
		return "", fmt.Errorf("slurmd -V: %w", err)
	}
	_, version, _ := strings.Cut(strings.TrimSpace(string(output)), " ") // "slurm-wlm 22.05.8"
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 2 {
		return "", fmt.Errorf("slurmd -V: %q: want slurm MAJOR.MINOR.MICRO", output)
	}
	return parts[0] + "." + parts[1], nil
}

// Start brings the site up. Stop it with Close.
func Start(ctx context.Context, options Options) (_ *Site, err error) {
	tree, err := Tree()
	if err != nil {
		return nil, err
	}
	release, err := Release()
	if err != nil {
		return nil, err
	}
	s := &Site{
		Shim: filepath.Join(tree, "build/lib/slurm-"+release, "spank_gputune.so"),
		Core: filepath.Join(tree, "build/lib/libgputune.so"),
	}
	if s.Folder, err = os.MkdirTemp("", "gputune-site-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			os.RemoveAll(s.Folder)
		}
	}()
	if options.Machine == "" {
		options.Machine = "demo-dual"
	}
	description, err := machines.Get(options.Machine)
	if err != nil {
		return nil, err
	}
	if s.Machine, err = description.Machine(filepath.Join(s.Folder, "machine")); err != nil {
		return nil, err
	}
	config := filepath.Join(s.Folder, "gputune.toml")
	if options.Jobs {
		if err := s.jobs(ctx, tree, config, &options); err != nil {
			return nil, err
		}
	}
	text := fmt.Sprintf("[paths]\nmachine = %q\nsnapshot = %q\n%s", filepath.Join(s.Folder, "machine"),
		filepath.Join(s.Folder, "topology.json"), options.Config)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		return nil, err
	}
	if err := os.Chmod(s.Folder, 0o755); err != nil {
		return nil, err
	}
	if !options.Without {
		line := append([]string{
			"optional", s.Shim, "config=" + config, "core=" + s.Core,
			"program=" + filepath.Join(tree, "build/bin/gputune"),
		}, options.Arguments...)
		options.Bed.PlugstackLines = append(options.Bed.PlugstackLines, strings.Join(line, " "))
	}
	if options.Bed.NCPU == 0 {
		options.Bed.NCPU = s.Machine.CPUs.Len()
	}
	if options.Bed.GPUs == 0 {
		options.Bed.GPUs = len(s.Machine.GPUs)
	}
	if options.Bed.TaskPlugin == "" {
		options.Bed.TaskPlugin = "task/affinity"
		if options.Bed.ConstrainDevices || options.Bed.ConstrainCores {
			options.Bed.TaskPlugin = "task/affinity,task/cgroup"
		}
	}
	if s.Bed, err = bed.Start(ctx, options.Bed); err != nil {
		return nil, err
	}
	return s, nil
}

// jobs makes a driver, and Prolog and Epilog that load it.
func (s *Site) jobs(ctx context.Context, tree, config string, options *Options) (err error) {
	if s.NVML, err = fakenvml.Build(ctx, filepath.Join(s.Folder, "nvml")); err != nil {
		return err
	}
	if err := s.NVML.Describe(ctx, node.Driver(s.Machine)); err != nil {
		return err
	}
	s.RunFolder, s.StateFolder = filepath.Join(s.Folder, "run", "gputune"), filepath.Join(s.Folder, "lib", "gputune")
	for _, folder := range []string{s.RunFolder, s.StateFolder} {
		if err := os.Mkdir(filepath.Dir(folder), 0o755); err != nil {
			return err
		}
	}
	for name, target := range map[string]*string{"gputune-prolog": &options.Bed.Prolog, "gputune-epilog": &options.Bed.Epilog} {
		*target = filepath.Join(s.Folder, name)
		script := fmt.Sprintf("#!/bin/sh\nexport %s\nexec %s --config=%s\n", s.NVML.Environ()[0], filepath.Join(tree, "build", "bin", name), config)
		if err := os.WriteFile(*target, []byte(script), 0o755); err != nil {
			return err
		}
	}
	if options.MPS != "" {
		if s.MPS, err = fakemps.Build(ctx, filepath.Join(s.Folder, "mps")); err != nil {
			return err
		}
		options.Config += fmt.Sprintf("[gpu_mps]\nprogram = %q\n%s", s.MPS.Control(), options.MPS)
	}
	// A table of its own may be the first thing in Config.
	options.Config = fmt.Sprintf("state = %q\nrun = %q\njournal = \"\"\n", s.StateFolder, s.RunFolder) + options.Config
	options.Arguments = append(options.Arguments, "run="+s.RunFolder)
	return nil
}

// Gputune runs gputune with the site's configuration.
func (s *Site) Gputune(ctx context.Context, arguments ...string) (bed.Result, error) {
	tree, err := Tree()
	if err != nil {
		return bed.Result{}, err
	}
	command := s.Command(filepath.Join(tree, "build", "bin", "gputune"), append(arguments, "--config="+filepath.Join(s.Folder, "gputune.toml"))...)
	command.Env = s.NVML.Environ()
	return command.Run(ctx)
}

// Close stops Slurm and removes what the site has made.
func (s *Site) Close() error {
	err := s.Stop()
	if remove := os.RemoveAll(s.Folder); err == nil {
		err = remove
	}
	return err
}
