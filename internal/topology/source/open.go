// Package source reads a machine's topology from whatever describes it: this
// machine or a folder with a copy of its /sys and /proc, a tar archive of such
// a copy, hwloc's XML, NCCL's topology XML, the text of "nvidia-smi topo -m",
// or a snapshot of gputune's own. What it is, is found by its content, never
// by its name.
package source

import (
	"errors"
	"fmt"
	"os"

	"gputune/internal/topology"
)

// ErrUnknownFormat is returned for a file that is nothing that can be read.
var ErrUnknownFormat = errors.New("no topology that is known here: want a folder with sys and proc or a tar archive of one, " +
	"hwloc XML, NCCL topology XML, the text of nvidia-smi topo -m, or a snapshot of gputune")

// Open reads the machine that path describes: a folder that has sys and proc
// ("/" is this machine), or a file in one of the formats of this package, which
// can be compressed with gzip or bzip2.
//
// What the source does not state is empty in the machine and named in
// Source.Unknown. A file that is malformed is refused whole, with the line and
// the reason; one that is nothing known is ErrUnknownFormat.
func Open(path string) (*topology.Machine, topology.Source, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, topology.Source{File: path}, err
	}
	if info.IsDir() {
		return openFolder(path)
	}
	if !info.Mode().IsRegular() {
		return nil, topology.Source{File: path}, fmt.Errorf("%s: is a %s: want a folder or a regular file", path, info.Mode().Type())
	}
	return openFile(path)
}

func openFolder(path string) (*topology.Machine, topology.Source, error) {
	source := topology.Source{Kind: topology.KindSysfs, File: path}
	m, err := topology.Read(path, topology.Options{NICs: true})
	if err != nil {
		return nil, source, err
	}
	source.Unknown = copyUnknown(m)
	return m, source, nil
}
