package main

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"gputune/internal/job"
)

// On a machine without Slurm, doctor says so in each form, and fails without a
// further word.
func TestDoctor(t *testing.T) {
	root := render(t, "demo-dual")
	t.Setenv("SLURM_CONF", "")
	text, stderr, err := execute(t, "doctor", "--root", root)
	var said job.SaidError
	if !errors.As(err, &said) || stderr != "" {
		t.Errorf("%v, %q", err, stderr)
	}
	for _, part := range []string{"slurm.conf     bad    /etc/slurm/slurm.conf is not there\n", "-> set SLURM_CONF", "topology       ok     the NUMA nodes of 4 GPUs are known\n", ", 1 bad\n"} {
		if !strings.Contains(text, part) {
			t.Errorf("want %q in\n%s", part, text)
		}
	}
	content, _, err := execute(t, "doctor", "--root", root, "--format", "json")
	if !errors.As(err, &said) {
		t.Errorf("%v", err)
	}
	var got struct {
		Findings []struct{ Check, Level, Text, Do string }
	}
	decoder := json.NewDecoder(strings.NewReader(content))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&got); err != nil {
		t.Fatal(err)
	}
	if len(got.Findings) < 5 || got.Findings[0].Check != "configuration" || got.Findings[1].Level != "bad" || got.Findings[1].Do == "" {
		t.Errorf("%+v", got)
	}
}
