package source

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"gputune/internal/topology"
	"gputune/internal/topology/hwloc"
	"gputune/internal/topology/nccl"
	"gputune/internal/topology/smi"
)

const (
	// maxText bounds a text: hwloc's XML of the largest machines has a few MiB.
	maxText = 8 << 20
	// maxPasted bounds what people paste, with the logs around it.
	maxPasted = 2 << 20
)

func openFile(path string) (*topology.Machine, topology.Source, error) {
	source := topology.Source{File: path}
	fail := func(err error) (*topology.Machine, topology.Source, error) {
		return nil, source, fmt.Errorf("%s: %w", path, err)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, source, err
	}
	defer func() { _ = file.Close() }()
	content, err := decompress(file)
	if err != nil {
		return fail(err)
	}
	if isArchive(content) {
		source.Kind = topology.KindSysfs
		m, unknown, err := readArchive(content)
		if err != nil {
			return fail(err)
		}
		source.Unknown = unknown
		return m, source, nil
	}
	text, err := io.ReadAll(io.LimitReader(content, maxText+1))
	if err != nil {
		return fail(err)
	}
	if len(text) > maxText {
		return fail(fmt.Errorf("%w; a text has no more than %d MiB", ErrUnknownFormat, maxText>>20))
	}
	format := detect(text)
	if format == nil {
		return fail(ErrUnknownFormat)
	}
	source.Kind = format.kind
	m, unknown, err := format.parse(bytes.TrimPrefix(text, byteOrderMark))
	if errors.Is(err, smi.ErrNoMatrix) {
		err = ErrUnknownFormat
	}
	if err != nil {
		return fail(err)
	}
	source.Unknown = unknown
	return m, source, nil
}

// format is one that a text can have.
type format struct {
	kind  string
	parse func(text []byte) (*topology.Machine, []string, error)
}

var byteOrderMark = []byte("\xef\xbb\xbf")

// detect finds the format of a text by how it begins, nil for none.
func detect(text []byte) *format {
	text = bytes.TrimPrefix(text, byteOrderMark)
	switch begin := bytes.TrimLeft(text, " \t\r\n"); {
	case len(begin) == 0:
		return nil
	case begin[0] == '{':
		return &format{topology.KindSnapshot, parseSnapshot}
	case hwloc.Detect(begin):
		return &format{topology.KindHwloc, hwloc.Parse}
	case nccl.Detect(begin):
		return &format{topology.KindNCCL, nccl.Parse}
	case len(begin) <= maxPasted && smi.Detect(begin):
		return &format{topology.KindNVIDIASMI, smi.Parse}
	}
	return nil
}

func parseSnapshot(text []byte) (*topology.Machine, []string, error) {
	m, err := topology.ParseSnapshot(text)
	if err != nil {
		return nil, nil, err
	}
	m.Source = topology.KindSnapshot
	return m, copyUnknown(m), nil
}
