package topology_test

import (
	"testing"

	"gputune/tests/machines"
)

// scratch returns an empty folder, in memory where that is possible.
func scratch(tb testing.TB) string {
	tb.Helper()
	dir, remove, err := machines.Scratch()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := remove(); err != nil {
			tb.Error(err)
		}
	})
	return dir
}

func described(tb testing.TB, name string) machines.Description {
	tb.Helper()
	d, err := machines.Get(name)
	if err != nil {
		tb.Fatal(err)
	}
	return d
}

// rendered returns the root of the machine of that name.
func rendered(tb testing.TB, name string) string {
	tb.Helper()
	root := scratch(tb)
	if err := described(tb, name).Render(root); err != nil {
		tb.Fatal(err)
	}
	return root
}
