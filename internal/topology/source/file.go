package source

import (
	"bytes"
	"fmt"
	"os"

	"gputune/internal/topology"
)

func openFile(path string) (*topology.Machine, topology.Source, error) {
	source := topology.Source{File: path}
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, source, err
	}
	if bytes.HasPrefix(bytes.TrimSpace(content), []byte("{")) {
		source.Kind = topology.KindSnapshot
		m, err := topology.ParseSnapshot(content)
		if err != nil {
			return nil, source, fmt.Errorf("%s: %w", path, err)
		}
		return m, source, nil
	}
	return nil, source, fmt.Errorf("%s: %w", path, ErrUnknownFormat)
}
