package job

import (
	"encoding/json"
	"errors"
	"io/fs"
	"path/filepath"

	"gputune/conf"
	"gputune/internal/folder"
)

// moved are the folders that a site has moved, as they were when a job's Prolog
// changed something last: <run>/moved of the run folder that is built in. A file
// that cannot be read afterwards, or is refused for who may write to it, does not
// say where the ledger is.
type moved struct {
	State conf.Path `json:"state"`
	Run   conf.Path `json:"run"`
}

const movedName = "moved"

func (h *Host) movedFolder() folder.Folder {
	return folder.Folder{Dir: filepath.Join(h.Root, string(conf.Default().Paths.Run)), Mode: 0o755}
}

// Load reads the configuration, as conf.Load. Where that fails, folders that it
// leaves at their defaults are where the last Prolog had them.
func (h *Host) Load(config string) {
	h.Site, h.SiteError = conf.Load(config)
	h.usual = config == ""
	if h.SiteError != nil {
		h.findMoved()
	}
}

func (h *Host) findMoved() {
	text, err := h.movedFolder().Read(movedName)
	var m moved
	if !h.usual || err != nil || json.Unmarshal(text, &m) != nil {
		return
	}
	usual, paths := conf.Default().Paths, &h.Site.Paths
	if paths.State == usual.State && paths.Run == usual.Run && filepath.IsAbs(string(m.State)) && filepath.IsAbs(string(m.Run)) {
		paths.State, paths.Run = m.State, m.Run
	}
}

// noteMoved is called before a job's first change. job is its id.
func (h *Host) noteMoved(job string) error {
	if !h.usual {
		return nil // whoever names another file has to name it each time
	}
	d := h.movedFolder()
	was, err := d.Read(movedName)
	there := err == nil
	usual, m := conf.Default().Paths, moved{h.Site.Paths.State, h.Site.Paths.Run}
	if m == (moved{usual.State, usual.Run}) {
		if !there {
			return nil
		}
		return ignoreGone(d.Remove(movedName))
	}
	text, err := json.Marshal(m)
	if err != nil || there && string(was) == string(text) {
		return err
	}
	if err := d.MakeBase(); err != nil {
		return err
	}
	temporary := movedName + "." + job
	if err := ignoreGone(d.Remove(temporary)); err != nil { // of a Prolog that was killed
		return err
	}
	f, err := d.Create(temporary)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return d.Rename(temporary, movedName)
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
