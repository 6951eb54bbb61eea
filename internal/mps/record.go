package mps

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"gputune/internal/folder"
)

// record is what is on disk about a daemon before there is anything of it, and
// until there is nothing.
type record struct {
	Spec   string `json:"value"`
	Keeper string `json:"keeper"`
	Token  string `json:"token"` // of the processes' environment

	gpu  string // whose record it is
	torn bool   // its writer was killed: nothing has been started
}

// The keepers.
const (
	bySystemd = "systemd"
	bySession = "session"
)

const recordSuffix = ".json"

func recordName(gpu string) string { return gpu + recordSuffix }

// newRecord decides how a daemon will be kept.
func (h Host) newRecord(s Spec) (*record, error) {
	r := &record{Spec: s.String(), Keeper: bySession, Token: rand.Text(), gpu: s.GPUs[0]}
	if h.systemdRuns() {
		r.Keeper = bySystemd
	}
	// A job has one daemon on a node, in a folder by its number.
	names, err := h.records().List("")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, name := range names {
		gpu, isRecord := strings.CutSuffix(name, recordSuffix)
		if !isRecord || gpu == r.gpu {
			continue
		}
		other, err := h.load(gpu)
		if err != nil || other == nil || other.torn {
			continue // of another GPU's job, which is seen to by its own lock
		}
		if o, err := ParseSpec(other.Spec); err == nil && o.Job == s.Job {
			return nil, fmt.Errorf("it has one on %s already, which has to be stopped first", gpu)
		}
	}
	return r, nil
}

// load reads the record of a GPU; nil if there is none.
func (h Host) load(gpu string) (*record, error) {
	if !isUUID(gpu) {
		return nil, fmt.Errorf("MPS daemon of %.40q: want the UUID of a GPU, GPU-…", gpu)
	}
	text, err := h.records().Read(recordName(gpu))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // no record is no error
	}
	if err != nil {
		return nil, fmt.Errorf("MPS daemon of %s: %w", gpu, err)
	}
	r := &record{gpu: gpu}
	if err := json.Unmarshal(text, r); err != nil {
		r.torn = true // it is one write, and folders come after it
		return r, nil
	}
	s, err := ParseSpec(r.Spec)
	if err != nil || s.GPUs[0] != gpu || r.Token == "" || r.Keeper != bySystemd && r.Keeper != bySession {
		return nil, fmt.Errorf("MPS daemon of %s: %w: %.200q", gpu, folder.ErrForeign, text)
	}
	return r, nil
}

// save writes the record and locks it. There is none of the GPU.
func (h Host) save(r *record) (*os.File, error) {
	if err := (folder.Folder{Dir: h.run(), Mode: 0o755}).MakeBase(); err != nil {
		return nil, err
	}
	if err := h.records().MakeBase(); err != nil {
		return nil, err
	}
	text, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	f, err := h.records().Open(recordName(r.gpu), os.O_RDWR|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return nil, err
	}
	_, err = f.Write(append(text, '\n'))
	if err == nil {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// lock locks the record of a GPU until the file is closed, nil if there is none.
//
// Callers of Start and Stop are one at a time. The lock is for what one leaves
// that is killed: a child between fork and exec holds it, too, and is not known
// by its user and environment yet. Once the lock is free, it is.
func (h Host) lock(ctx context.Context, gpu string) (*os.File, error) {
	f, err := h.records().Open(recordName(gpu), os.O_RDWR)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // no record is no error
	}
	if err != nil {
		return nil, err
	}
	limit := h.limits().Kill
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) || sleep(ctx) != nil {
			f.Close()
			return nil, fmt.Errorf("MPS daemon of %s: somebody else works on it: %w", gpu, err)
		}
	}
}
