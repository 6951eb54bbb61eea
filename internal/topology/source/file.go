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
	file, err := os.Open(path)
	if err != nil {
		return nil, source, err
	}
	defer func() { _ = file.Close() }()
	m, unknown, err := parse(file, &source.Kind)
	if err != nil {
		return nil, source, fmt.Errorf("%s: %w", path, err)
	}
	source.Unknown = unknown
	return m, source, nil
}

// parse reads a file and tells its kind, which is also known of many that are
// refused.
func parse(file io.Reader, kind *string) (*topology.Machine, []string, error) {
	content, err := decompress(file)
	if err != nil {
		return nil, nil, err
	}
	if isArchive(content) {
		*kind = topology.KindSysfs
		return readArchive(content)
	}
	text, err := io.ReadAll(io.LimitReader(content, maxText+1))
	if err != nil {
		return nil, nil, err
	}
	if len(text) > maxText {
		return nil, nil, fmt.Errorf("%w; a text has no more than %d MiB", ErrUnknownFormat, maxText>>20)
	}
	text = bytes.TrimPrefix(text, byteOrderMark)
	format := detect(text)
	if format == nil {
		return nil, nil, ErrUnknownFormat
	}
	m, unknown, err := format.parse(text)
	if errors.Is(err, smi.ErrNoMatrix) {
		return nil, nil, ErrUnknownFormat
	}
	*kind = format.kind
	return m, unknown, err
}

// format is one that a text can have.
type format struct {
	kind  string
	parse func(text []byte) (*topology.Machine, []string, error)
}

var byteOrderMark = []byte("\xef\xbb\xbf")

// detect finds the format of a text by how it begins, nil for none.
func detect(text []byte) *format {
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
