package mig

import (
	"fmt"
	"strings"
)

// Handout tells a job's steps which MIG devices its GPUs have. The Prolog writes
// it beside the job's report when it has split them, so that no step has to ask
// NVML.
type Handout []Devices

// Devices are the MIG devices of one GPU.
type Devices struct {
	GPU   string   // its UUID
	UUIDs []string // of the MIG devices, in the order in which they are dealt
}

// maxHandout bounds the text of one, in bytes: 64 GPUs with 16 devices each.
const maxHandout = 64 << 10

// uuidForm is that of UUIDs in messages and files: nothing in it has a meaning to
// a shell, a path or a list.
var uuidForm = pattern(`^(GPU|MIG)-[0-9A-Za-z-]{1,60}$`)

// String returns a line "gpu GPU-… MIG-…,MIG-…" for each GPU.
func (h Handout) String() string {
	var text strings.Builder
	for _, d := range h {
		fmt.Fprintf(&text, "gpu %s %s\n", d.GPU, strings.Join(d.UUIDs, ","))
	}
	return text.String()
}

// ParseHandout reads what String has written. The file is root's; what is not of
// that form was written by another version, and is an error.
func ParseHandout(text string) (Handout, error) {
	if len(text) > maxHandout {
		return nil, fmt.Errorf("%d bytes of MIG devices: at most %d", len(text), maxHandout)
	}
	var h Handout
	seen := map[string]bool{}
	for line := range strings.Lines(text) {
		words := strings.Split(strings.TrimSuffix(line, "\n"), " ")
		if len(words) != 3 || words[0] != "gpu" || !strings.HasSuffix(line, "\n") {
			return nil, fmt.Errorf("MIG devices: %.80q: want gpu GPU-… MIG-…,…", line)
		}
		d := Devices{GPU: words[1], UUIDs: strings.Split(words[2], ",")}
		for i, uuid := range append([]string{d.GPU}, d.UUIDs...) {
			if kind := strings.HasPrefix(uuid, "GPU-"); !uuidForm().MatchString(uuid) || kind != (i == 0) || seen[uuid] {
				return nil, fmt.Errorf("MIG devices: %.80q: want UUIDs, of a GPU and then of MIG devices, once each", uuid)
			}
			seen[uuid] = true
		}
		h = append(h, d)
	}
	return h, nil
}
