package main

import (
	"bytes"
	"errors"
	"testing"
)

// The way that the plugin takes judges as the other one does.
func TestQuickCheck(t *testing.T) {
	for _, arguments := range [][]string{
		{"check"},
		{"check", "--gpu-numa-bind="},
		{"check", "--gpu-numa-bind=(null)"},
		{"check", "--gpu-numa-bind=cpus=exclusive,mem=bind"},
		{"check", "--gpu-numa-bind=cpus=sideways"},
		{"check", "--gpu-numa-bind=--version"},
		{"check", "--gpu-numa-bind=cpus=sideways", "--gpu-numa-bind=on"}, // the last one counts
		{"check", "--gpu-power=300", "--gpu-clocks=low"},
		{"check", "--gpu-power=lots", "--gpu-clocks=fast"}, // the first option in their order is named
		{"check", "--gpu-power=\x1b[31m"},
	} {
		quick, done := quickCheck(arguments)
		if !done {
			t.Errorf("%q: left to the other way", arguments)
		}
		_, _, slow := execute(t, arguments...)
		var quickOut, slowOut bytes.Buffer
		if exitStatus(&quickOut, quick) != exitStatus(&slowOut, slow) || quickOut.String() != slowOut.String() {
			t.Errorf("%q: %v and %v", arguments, quick, slow)
		}
		var refused refusal
		if quick != nil && !errors.As(quick, &refused) {
			t.Errorf("%q: %v is no refusal", arguments, quick)
		}
	}
	for _, arguments := range [][]string{
		nil,
		{"topo"},
		{"--gpu-numa-bind=on"},
		{"check", "--help"},
		{"check", "--gpu-numa-bind", "on"},
		{"check", "--gpu-numa-bindx=on"},
		{"check", "--gpu-numa-bind=on", "extra"},
		{"check", "-gpu-numa-bind=on"},
	} {
		if _, done := quickCheck(arguments); done {
			t.Errorf("%q: taken", arguments)
		}
	}
}
