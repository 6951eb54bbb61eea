package source

import (
	"bytes"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"syscall"

	"gputune/internal/topology"
)

// memory is a tree of files in memory. Links are followed inside it only: one
// that leads above its top ends at the top, as in a chroot.
type memory struct {
	top *inode
}

// inode is a folder, a link or a file.
type inode struct {
	children map[string]*inode // of a folder
	target   string            // of a link
	content  []byte            // of a file
}

func newMemory() *memory { return &memory{top: newFolder()} }

func newFolder() *inode { return &inode{children: make(map[string]*inode)} }

// parent returns the folder in which an entry is to be put, which is made if
// there is none, and the entry's name there. It is nil where a file or a link
// is in the way: archives are not trusted to write through links.
func (m *memory) parent(name string) (*inode, string) {
	folder := m.top
	parts := strings.Split(name, "/")
	for _, part := range parts[:len(parts)-1] {
		next := folder.children[part]
		if next == nil {
			next = newFolder()
			folder.children[part] = next
		}
		if next.children == nil {
			return nil, ""
		}
		folder = next
	}
	return folder, parts[len(parts)-1]
}

func (m *memory) addFolder(name string) {
	if folder, last := m.parent(name); folder != nil && folder.children[last] == nil {
		folder.children[last] = newFolder()
	}
}

func (m *memory) addLink(name, target string) {
	if folder, last := m.parent(name); folder != nil && folder.children[last] == nil {
		folder.children[last] = &inode{target: target}
	}
}

// addFile adds a file. Files of sysfs say that they have a page, so that tar
// fills them up with null bytes.
func (m *memory) addFile(name string, content []byte) {
	if folder, last := m.parent(name); folder != nil && folder.children[last] == nil {
		folder.children[last] = &inode{content: bytes.TrimRight(content, "\x00")}
	}
}

// maxLinks is how many links are followed on one path, as many as the kernel
// follows.
const maxLinks = 40

// find walks a path. The last link is followed if follow is set.
func (m *memory) find(name string, follow bool) (*inode, error) {
	stack := []*inode{m.top}
	parts := strings.Split(name, "/")
	links, steps := 0, 0
	for len(parts) > 0 {
		if steps++; steps > maxPath {
			return nil, syscall.ELOOP
		}
		part := parts[0]
		parts = parts[1:]
		at := stack[len(stack)-1]
		if at.children == nil {
			return nil, syscall.ENOTDIR
		}
		switch part {
		case "", ".":
			continue
		case "..":
			stack = stack[:max(1, len(stack)-1)]
			continue
		}
		next := at.children[part]
		if next == nil {
			return nil, syscall.ENOENT
		}
		if next.target == "" || (len(parts) == 0 && !follow) {
			stack = append(stack, next)
			continue
		}
		if links++; links > maxLinks {
			return nil, syscall.ELOOP
		}
		if strings.HasPrefix(next.target, "/") {
			stack = stack[:1]
		}
		parts = append(strings.Split(next.target, "/"), parts...)
	}
	return stack[len(stack)-1], nil
}

// Read implements topology.Files.
func (m *memory) Read(name string) ([]byte, error) {
	found, err := m.find(name, true)
	if err != nil {
		return nil, err
	}
	if found.children != nil {
		return nil, syscall.EISDIR
	}
	return found.content, nil
}

// Names implements topology.Files.
func (m *memory) Names(name string) ([]string, error) {
	found, err := m.find(name, true)
	if err != nil {
		return nil, err
	}
	if found.children == nil {
		return nil, syscall.ENOTDIR
	}
	names := make([]string, 0, len(found.children))
	for child := range found.children {
		names = append(names, child)
	}
	return names, nil
}

// Link implements topology.Files.
func (m *memory) Link(name string) (string, error) {
	found, err := m.find(name, false)
	if err != nil {
		return "", err
	}
	if found.target == "" {
		return "", syscall.EINVAL
	}
	return found.target, nil
}

// maxRootDepth is how deep in an archive the root of the machine is looked for.
const maxRootDepth = 8

// root returns the tree below the one folder that has the machine's CPUs.
func (m *memory) root() (topology.Files, error) {
	var found []string
	var roots []*inode
	var look func(folder *inode, name string, depth int)
	look = func(folder *inode, name string, depth int) {
		if sys := folder.children["sys"]; sys != nil && sys.children["devices"] != nil {
			found, roots = append(found, name), append(roots, folder)
			return
		}
		for child, below := range folder.children {
			if below.children != nil && depth < maxRootDepth {
				look(below, path.Join(name, child), depth+1)
			}
		}
	}
	look(m.top, "/", 0)
	switch len(roots) {
	case 0:
		return nil, errors.New("tar: has no sys/devices, so it is no copy of a machine's sys and proc")
	case 1:
		return &memory{top: roots[0]}, nil
	}
	slices.Sort(found)
	return nil, fmt.Errorf("tar: has the sys of %d machines, in %s and %s: want one", len(found), found[0], found[1])
}
