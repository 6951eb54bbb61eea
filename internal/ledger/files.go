package ledger

import "gputune/internal/folder"

// files is the ledger's folder, a folder.Folder outside tests. Each method is
// one change on disk, so that tests can stop between any two.
type files interface {
	MakeBase() error                      // makes the folder itself, durably; it may exist
	List(folder string) ([]string, error) // names in a folder
	Read(name string) ([]byte, error)     // folder.ErrForeign unless it is a file of the ledger's making
	MakeFolder(name string) error
	Create(name string) (folder.File, error) // for writing; it must not exist
	Rename(from, to string) error
	Remove(name string) error
	RemoveFolder(name string) error // an empty one
	SyncFolder(name string) error   // makes the names in it durable
}

// Folders in the ledger's.
const (
	jobsFolder  = "jobs"
	locksFolder = "locks"
	asideFolder = "aside"
)
