// Command listing prints what is in folders, a line for each file, so that two
// listings tell whether anything was changed in between:
//
//	listing [-unchanged FOLDER]… [-without PATH]… FOLDER…
//
// A line has the path, the type and mode, the owner, and what is in the file: a
// hash, or where a link leads. Below -unchanged, whose files are too many to be
// read on an emulated CPU, it has the inode, the size and the time of the last
// change in place of the hash: the kernel sets that time at each change, and
// nobody else can. Of folders there is no time: they are as before when what is
// in them is. Paths of -without, and what is below them, are left out.
package main

import (
	"bufio"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// paths is a flag that can be given several times.
type paths []string

func (p *paths) String() string { return strings.Join(*p, " ") }

func (p *paths) Set(path string) error {
	*p = append(*p, filepath.Clean(path))
	return nil
}

// above tells whether a path is one of these or below one.
func (p *paths) above(path string) bool {
	return slices.ContainsFunc(*p, func(top string) bool { return path == top || strings.HasPrefix(path, top+"/") })
}

func main() {
	var l lister
	flag.Var(&l.unchanged, "unchanged", "`folder` whose files are known by the time of their last change")
	flag.Var(&l.without, "without", "`path` that is left out")
	flag.Parse()
	out := bufio.NewWriter(os.Stdout)
	for _, folder := range flag.Args() {
		err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
			switch {
			case !l.without.above(path):
				return l.list(out, path, err)
			case entry != nil && entry.IsDir():
				return fs.SkipDir
			}
			return nil
		})
		if err != nil {
			fmt.Fprintln(os.Stderr, "listing:", err)
			os.Exit(1)
		}
	}
	if err := out.Flush(); err != nil {
		fmt.Fprintln(os.Stderr, "listing:", err)
		os.Exit(1)
	}
}

type lister struct{ unchanged, without paths }

func (l *lister) list(out io.Writer, path string, err error) error {
	var status unix.Stat_t
	if err == nil {
		err = unix.Lstat(path, &status)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil // gone meanwhile
	}
	if err != nil {
		return err
	}
	detail := ""
	switch status.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		detail, err = l.content(path, &status)
	case unix.S_IFLNK:
		detail, err = os.Readlink(path)
	case unix.S_IFCHR, unix.S_IFBLK:
		detail = fmt.Sprintf("%d,%d", unix.Major(status.Rdev), unix.Minor(status.Rdev))
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s %o %d:%d %s\n", path, status.Mode, status.Uid, status.Gid, detail)
	return err
}

func (l *lister) content(path string, status *unix.Stat_t) (string, error) {
	if l.unchanged.above(path) {
		return fmt.Sprintf("%d %d %d.%09d", status.Ino, status.Size, status.Ctim.Sec, status.Ctim.Nsec), nil
	}
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", hash.Sum(nil)), nil
}
