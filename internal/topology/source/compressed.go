package source

import (
	"bufio"
	"bytes"
	"compress/bzip2"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
)

// maxUnpacked bounds what a compressed file unpacks to, so that none can keep
// gputune busy: a copy of the /sys and /proc of a large machine has some 50 MiB.
const maxUnpacked = 256 << 20

// ErrTooLarge is returned for a file that unpacks to more than a topology has.
var ErrTooLarge = errors.New("unpacks to more than a topology has")

// sniffed is how much of a file tells what it is: a tar header.
const sniffed = 512

// decompress returns the content of a file, unpacked if it is compressed.
func decompress(file io.Reader) (*bufio.Reader, error) {
	content := bufio.NewReaderSize(file, 1<<16)
	begin, err := content.Peek(3)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(begin, []byte("\x1f\x8b\x08")):
		unpacked, err := gzip.NewReader(content)
		if err != nil {
			return nil, fmt.Errorf("gzip: %w", err)
		}
		return bufio.NewReaderSize(&bounded{unpacked, maxUnpacked}, 1<<16), nil
	case bytes.HasPrefix(begin, []byte("BZh")):
		return bufio.NewReaderSize(&bounded{bzip2.NewReader(content), maxUnpacked}, 1<<16), nil
	}
	return content, nil
}

// bounded fails, rather than ends, where a limit is reached.
type bounded struct {
	from io.Reader
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, fmt.Errorf("%w: more than %d MiB", ErrTooLarge, maxUnpacked>>20)
	}
	n, err := b.from.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}
