package source

import (
	"archive/tar"
	"bufio"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"gputune/internal/topology"
)

const (
	maxEntries = 1 << 20 // of an archive
	maxKept    = 64 << 20
	maxFile    = 64 << 10 // more than is read of any file
	maxPath    = 4096
)

// isArchive tells whether a tar archive comes next: its first header says so,
// or at least has the sum that even the oldest form has.
func isArchive(content *bufio.Reader) bool {
	header, err := content.Peek(sniffed)
	if err != nil {
		return false
	}
	if string(header[257:262]) == "ustar" {
		return true
	}
	var stated, sum int64
	for i, c := range header {
		if i >= 148 && i < 156 {
			if c >= '0' && c <= '7' {
				stated = stated*8 + int64(c-'0')
			}
			c = ' '
		}
		sum += int64(c)
	}
	return header[0] != 0 && stated == sum
}

// readArchive reads the machine whose sys and proc are in a tar archive, at the
// top or in a folder of it, as hwloc-gather-topology writes them. Nothing is
// written to disk; of everything but small files, folders and symbolic links
// that is below sys and proc nothing is kept.
func readArchive(content io.Reader) (*topology.Machine, []string, error) {
	files, left, err := unpack(content)
	if err != nil {
		return nil, nil, err
	}
	root, err := files.root()
	if err != nil {
		return nil, nil, err
	}
	m, err := topology.ReadFiles(root, topology.Options{NICs: true})
	if err != nil {
		return nil, nil, err
	}
	var unknown []string
	if left > 0 {
		unknown = append(unknown, fmt.Sprintf("%d entries of the archive are no files of a machine's sys or proc, or lead out of it: they are not read.", left))
	}
	return m, append(unknown, copyUnknown(m)...), nil
}

// unpack keeps the entries that can matter and counts the others.
func unpack(content io.Reader) (files *memory, left int, err error) {
	files = newMemory()
	end := &ending{from: content}
	archive := tar.NewReader(end)
	kept := int64(0)
	for count := 1; ; count++ {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) && !end.marked() {
			return nil, 0, fmt.Errorf("tar, after entry %d: no mark of the end: the archive is cut", count-1)
		}
		if errors.Is(err, io.EOF) {
			return files, left, nil
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) {
			return nil, 0, fmt.Errorf("tar, entry %d: %w", count, err)
		}
		if count > maxEntries {
			return nil, 0, fmt.Errorf("tar, entry %d: %w: more than %d entries", count, ErrTooLarge, maxEntries)
		}
		name, ok := entryPath(header.Name)
		switch {
		case !ok:
			left++
		case header.Typeflag == tar.TypeDir:
			files.addFolder(name)
		case header.Typeflag == tar.TypeSymlink && len(header.Linkname) <= maxPath:
			files.addLink(name, header.Linkname)
		case header.Typeflag == tar.TypeReg && header.Size <= maxFile:
			content, err := io.ReadAll(archive)
			if err != nil {
				return nil, 0, fmt.Errorf("tar, entry %d, %s: %w", count, name, err)
			}
			if kept += int64(len(content) + len(name)); kept > maxKept {
				return nil, 0, fmt.Errorf("tar, entry %d, %s: %w: more than %d MiB", count, name, ErrTooLarge, maxKept>>20)
			}
			files.addFile(name, content)
		default:
			left++
		}
	}
}

// entryPath returns the path of an entry below sys or proc, with the folders
// that are above these in the archive. Absolute paths count from the archive's
// top; one that has ".." is not trusted.
func entryPath(name string) (string, bool) {
	if len(name) > maxPath || strings.ContainsRune(name, 0) {
		return "", false
	}
	var parts []string
	below := false
	for part := range strings.SplitSeq(name, "/") {
		switch part {
		case "", ".":
			continue
		case "..":
			return "", false
		case "sys", "proc":
			below = true
		}
		parts = append(parts, part)
	}
	return path.Join(parts...), below
}

// ending remembers the last bytes that were read: package tar takes the end of
// a file for the end of the archive, also without the zeros that mark it.
type ending struct {
	from io.Reader
	last [sniffed]byte
}

func (e *ending) Read(p []byte) (int, error) {
	n, err := e.from.Read(p)
	read := p[:n]
	if len(read) >= len(e.last) {
		copy(e.last[:], read[len(read)-len(e.last):])
	} else {
		copy(e.last[:], e.last[len(read):])
		copy(e.last[len(e.last)-len(read):], read)
	}
	return n, err
}

func (e *ending) marked() bool { return e.last == [sniffed]byte{} }
