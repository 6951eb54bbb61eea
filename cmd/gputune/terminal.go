package main

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// colours tells whether what is written to w is seen on a terminal that shows
// them: not with NO_COLOR (no-color.org), nor on one that can do nothing.
func colours(w io.Writer) bool {
	file, isFile := w.(*os.File)
	if !isFile || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "" || os.Getenv("TERM") == "dumb" {
		return false
	}
	_, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	return err == nil
}
