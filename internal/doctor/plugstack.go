package doctor

import (
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
)

const pluginFile = "spank_gputune.so"

// plugstack: the plugin is in plugstack.conf, as optional, is there, and is that of
// the release of Slurm.
func plugstack(ctx context.Context, h *Host) []Finding {
	file := h.Slurm.PlugStackConfig
	if file == "" {
		file = filepath.Join(filepath.Dir(h.SlurmConf), "plugstack.conf")
	}
	add := "add to " + file + ": optional /usr/lib/gputune/" + pluginFile
	lines, err := h.plugstackLines(file, 0)
	if err != nil {
		return []Finding{bad(add, "%v", err)}
	}
	for _, words := range lines {
		if filepath.Base(words[1]) != pluginFile {
			continue
		}
		var found []Finding
		if !strings.EqualFold(words[0], "optional") {
			found = append(found, bad("write optional: a required plugin that fails drains nodes", "%s: %s is %s", file, pluginFile, words[0]))
		}
		if !filepath.IsAbs(words[1]) {
			return append(found, warn("give its whole path, so that it can be looked at", "%s: %s is searched for in PluginDir", file, words[1]))
		}
		return append(found, h.plugin(ctx, words[1]))
	}
	return []Finding{bad(add, "%s does not name %s", file, pluginFile)}
}

const maxIncludes = 16

// plugstackLines returns the words of each line, those of included files in place.
func (h *Host) plugstackLines(file string, depth int) ([][]string, error) {
	content, err := h.text(file)
	if err != nil {
		return nil, err
	}
	var lines [][]string
	for line := range strings.Lines(content) {
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		switch {
		case len(words) < 2:
		case strings.EqualFold(words[0], "include"):
			pattern := words[1]
			if !filepath.IsAbs(pattern) {
				pattern = filepath.Join(filepath.Dir(file), pattern)
			}
			names, err := filepath.Glob(h.path(pattern))
			if err != nil || depth == maxIncludes {
				return nil, fmt.Errorf("%s: include %s: too deep, or no pattern", file, words[1])
			}
			for _, name := range names {
				included, err := h.plugstackLines(strings.TrimPrefix(name, strings.TrimRight(h.Root, "/")), depth+1)
				if err != nil {
					return nil, err
				}
				lines = append(lines, included...)
			}
		default:
			lines = append(lines, words)
		}
	}
	return lines, nil
}

// plugin compares the release that the plugin was built for with Slurm's.
func (h *Host) plugin(ctx context.Context, path string) Finding {
	number, err := pluginVersion(h.path(path))
	if err != nil {
		return bad("install it: make install SLURM=<release>", "%v", err)
	}
	release := fmt.Sprintf("%d.%02d", number>>16, number>>8&0xff)
	slurm, err := h.Release(ctx)
	switch {
	case err != nil:
		return warn("", "%s is for Slurm %s; which one is installed cannot be told: %v", path, release, err)
	case slurm != release:
		return bad("install the plugin for this release: make install SLURM="+slurm, "%s is for Slurm %s, Slurm is %s: it is not loaded", path, release, slurm)
	}
	return ok("%s is for Slurm %s, as is installed", path, release)
}

// pluginVersion reads the variable plugin_version, by which Slurm knows what a
// plugin was built for: 0x180b00 is 24.11.0.
func pluginVersion(path string) (uint32, error) {
	file, err := elf.Open(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return 0, err
	}
	if err != nil {
		return 0, fmt.Errorf("%s: is no library: %w", path, err)
	}
	defer file.Close()
	symbols, err := file.DynamicSymbols()
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	for _, symbol := range symbols {
		if symbol.Name != "plugin_version" || int(symbol.Section) >= len(file.Sections) {
			continue
		}
		section := file.Sections[symbol.Section]
		var value [4]byte
		if _, err := section.ReadAt(value[:], int64(symbol.Value-section.Addr)); err != nil {
			return 0, fmt.Errorf("%s: %w", path, err)
		}
		return binary.LittleEndian.Uint32(value[:]), nil
	}
	return 0, fmt.Errorf("%s: %w", path, errors.New("is no plugin of Slurm's: it has no plugin_version"))
}
