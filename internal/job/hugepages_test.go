package job

import (
	"errors"
	"testing"

	"gputune/internal/option"
	"gputune/internal/setting"
)

// TestRefusedByKernel: what a kernel says of a pool when it is set is told as the
// option takes it, and of a profile without a value, since none is the profile's.
func TestRefusedByKernel(t *testing.T) {
	said := &setting.ValueError{Of: "node 1: hugepages of 2048 kB", Value: "67", Accepts: "the kernel finds memory for 53: the rest is used or fragmented", Nearest: "53"}
	pages := &asked{wish: &hugepages{want: []option.Hugepages{{KiB: 2048, Count: 64}}}}
	pages.fail(said)
	if pages.State != Refused || pages.Nearest != "2M:50" {
		t.Errorf("%+v", pages.Option)
	}
	byProfile := &asked{wish: &profile{}}
	byProfile.fail(said)
	if byProfile.State != Refused || byProfile.Nearest != "" || byProfile.Reason != said.Error() {
		t.Errorf("%+v", byProfile.Option)
	}
	plain := &asked{wish: dropCaches{}}
	plain.fail(errors.New("no"))
	if plain.State != Refused || plain.Reason != "no" {
		t.Errorf("%+v", plain.Option)
	}
}
