package mig_test

import (
	"reflect"
	"strings"
	"testing"

	"gputune/internal/mig"
)

func TestHandout(t *testing.T) {
	h := mig.Handout{{GPU: "GPU-4b0480b4-aaaa", UUIDs: []string{"MIG-a", "MIG-b"}}, {GPU: "GPU-585ef628-bbbb", UUIDs: []string{"MIG-c"}}}
	const text = "gpu GPU-4b0480b4-aaaa MIG-a,MIG-b\ngpu GPU-585ef628-bbbb MIG-c\n"
	if h.String() != text {
		t.Errorf("%q", h.String())
	}
	if got, err := mig.ParseHandout(text); err != nil || !reflect.DeepEqual(got, h) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := mig.ParseHandout(""); err != nil || got != nil {
		t.Errorf("%v, %v", got, err)
	}
	for _, text := range []string{
		"\n", "gpu", "gpu GPU-a", "gpu GPU-a MIG-a", "gpu GPU-a \n", "gpu GPU-a MIG-a,\n", "gpu GPU-a MIG-a MIG-b\n", "gpu MIG-a MIG-b\n",
		"gpu GPU-a GPU-b\n", "gpu GPU-a MIG-a,MIG-a\n", "gpu GPU-a MIG-a\ngpu GPU-a MIG-b\n", "gpu GPU-a MIG-$(x)\n", "gpu GPU-a MIG-a\r\n",
		"gpu GPU-a MIG-../x\n", "set A=B\n", strings.Repeat("x", 1<<17),
	} {
		if got, err := mig.ParseHandout(text); err == nil || got != nil || len(err.Error()) > 300 {
			t.Errorf("%.80q: %v, %v", text, got, err)
		}
	}
}

func FuzzParseHandout(f *testing.F) {
	f.Add("gpu GPU-a MIG-a,MIG-b\ngpu GPU-b MIG-c\n")
	f.Add("gpu GPU-a MIG-a")
	f.Fuzz(func(t *testing.T, text string) {
		if h, err := mig.ParseHandout(text); err == nil && h.String() != text {
			t.Errorf("%q is read as %q", text, h)
		}
	})
}
