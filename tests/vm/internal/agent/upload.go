package agent

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"gputune/tests/vm/internal/wire"
)

// upload is a file that arrives in pieces. It lies beside its place under another name until it is complete.
type upload struct {
	path string
	mode fs.FileMode
	f    *os.File
}

func newUpload(h wire.FileHeader) (*upload, error) {
	if !filepath.IsAbs(h.Path) {
		return nil, fmt.Errorf("%q is not an absolute path", h.Path)
	}
	dir := filepath.Dir(h.Path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(dir, ".upload-*")
	if err != nil {
		return nil, err
	}
	return &upload{path: h.Path, mode: fs.FileMode(h.Mode).Perm(), f: f}, nil
}

// write appends a piece; an empty one ends the file and gives it its name. After an error the upload is gone.
func (u *upload) write(piece []byte) (done bool, err error) {
	if len(piece) > 0 {
		if _, err := u.f.Write(piece); err != nil {
			u.abandon()
			return false, err
		}
		return false, nil
	}
	err = u.f.Chmod(u.mode)
	if cerr := u.f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(u.f.Name(), u.path)
	}
	if err != nil {
		u.abandon()
		return false, err
	}
	return true, nil
}

func (u *upload) abandon() {
	_ = u.f.Close()
	_ = os.Remove(u.f.Name())
}
