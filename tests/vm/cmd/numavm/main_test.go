package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gputune/tests/vm/numavm"
)

func TestGuestPath(t *testing.T) {
	tree, extra := t.TempDir(), t.TempDir()
	for _, f := range []string{filepath.Join(tree, "tests", "x.sh"), filepath.Join(extra, "tool"), filepath.Join(t.TempDir(), "elsewhere")} {
		if err := os.MkdirAll(filepath.Dir(f), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(f, nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(filepath.Join(tree, "tests"))
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	relOutside, err := filepath.Rel(filepath.Join(tree, "tests"), outside)
	if err != nil {
		t.Fatal(err)
	}
	shares := []numavm.Share{{Dir: tree, Name: "tree"}, {Dir: extra, Name: "more"}}
	for _, c := range []struct{ name, want, wantErr string }{
		{name: "slurm-up", want: "slurm-up"},
		{name: "./x.sh", want: "/host/tree/tests/x.sh"},
		{name: filepath.Join(tree, "tests", "x.sh"), want: "/host/tree/tests/x.sh"},
		{name: filepath.Join(extra, "tool"), want: "/host/more/tool"},
		{name: "/only/in/the/guest", want: "/only/in/the/guest"},
		{name: "/bin/sh", want: "/bin/sh"},
		{name: "./none.sh", wantErr: "no such file"},
		{name: relOutside, wantErr: "the guest does not see it"},
	} {
		got, err := guestPath(c.name, shares)
		if c.wantErr != "" {
			if err == nil || !strings.Contains(err.Error(), c.wantErr) {
				t.Errorf("%s: %q, %v; want error %q", c.name, got, err, c.wantErr)
			}
			continue
		}
		if err != nil || got != c.want {
			t.Errorf("%s: %q, %v; want %q", c.name, got, err, c.want)
		}
	}
}

func TestUsage(t *testing.T) {
	for _, c := range []struct {
		args    []string
		code    int
		wantErr string
	}{
		{[]string{}, exitUsage, "usage: numavm run"},
		{[]string{"frobnicate"}, exitUsage, `verb "frobnicate"`},
		{[]string{"help"}, 0, ""},
		{[]string{"list"}, 0, ""},
		{[]string{"run"}, exitUsage, "no script or command"},
		{[]string{"run", "--topo", "n9", "--", "true"}, exitUsage, `topology "n9": want one of n2`},
		{[]string{"run", "--suite", "buster", "--", "true"}, exitUsage, ""}, // package flag has said why
		{[]string{"run", "--env", "novalue", "--", "true"}, exitUsage, ""},
	} {
		code, err := run(t.Context(), c.args)
		if code != c.code || (err == nil) != (c.wantErr == "") || (err != nil && !strings.Contains(err.Error(), c.wantErr)) {
			t.Errorf("%q: %d, %v; want %d, %q", c.args, code, err, c.code, c.wantErr)
		}
	}
}
