package topology

// Files is a tree of files in which paths such as "sys/devices/system/cpu/online"
// lead to what the kernel has below "/". Errors for what is not there are
// fs.ErrNotExist or ENOTDIR.
type Files interface {
	// Read returns the content of a file. The bytes are valid until the next call.
	Read(path string) ([]byte, error)
	// Names lists a folder, in no particular order.
	Names(path string) ([]string, error)
	// Link returns where a symbolic link points.
	Link(path string) (string, error)
}
