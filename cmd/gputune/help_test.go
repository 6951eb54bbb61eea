package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/pflag"
)

// Every help text fits a screen.
func TestHelpFitsAScreen(t *testing.T) {
	for _, c := range pages() {
		stdout, stderr, err := execute(t, "help", c.Name())
		if c.Name() == "gputune" {
			stdout, stderr, err = execute(t, "--help")
		}
		if err != nil || stderr != "" || stdout != helpText(c) {
			t.Fatalf("%s: %q, %q, %v", c.Name(), stdout, stderr, err)
		}
		lines := strings.Split(strings.TrimSuffix(stdout, "\n"), "\n")
		if len(lines) > helpHeight {
			t.Errorf("%s: %d lines:\n%s", c.Name(), len(lines), stdout)
		}
		for _, line := range lines {
			if utf8.RuneCountInString(line) > helpWidth {
				t.Errorf("%s: %d columns: %s", c.Name(), utf8.RuneCountInString(line), line)
			}
		}
		if !c.Runnable() {
			continue
		}
		again, _, err := execute(t, c.Name(), "--help")
		if c.Name() != "gputune" && (err != nil || again != stdout) {
			t.Errorf("%s --help: %v\n%s", c.Name(), err, again)
		}
		c.LocalFlags().VisitAll(func(flag *pflag.Flag) {
			if !flag.Hidden && !strings.Contains(stdout, "--"+flag.Name) {
				t.Errorf("%s: --%s is missing", c.Name(), flag.Name)
			}
		})
	}
}

// What is wrong is named, with what would be right.
func TestErrorsSuggest(t *testing.T) {
	for arguments, want := range map[string]string{
		"tpo":                              `command "tpo": did you mean topo?`,
		"sta":                              `command "sta": did you mean status?`,
		"frobnicate":                       `command "frobnicate": want check, completion, doctor, exec, help, items, plan, report, restore, snapshot, status, topo or verify`,
		"help itms":                        `command "itms": did you mean items?`,
		"topo --fromat json":               `--fromat is no option of "gputune topo": did you mean --format?`,
		"topo --zzz":                       `--zzz is no option of "gputune topo": want --`,
		"topo --format jsn":                `--format "jsn": did you mean json?`,
		"topo --format yaml":               `--format "yaml": want text, json or svg`,
		"topo extra":                       `argument "extra": gputune topo takes options alone`,
		"plan --tasks many":                `--tasks "many": want a number`,
		"plan --bind cpus=sideways":        "want cpus=node|exclusive",
		"completion powershell":            `shell "powershell": want bash, zsh or fish`,
		"completion":                       "which shell?",
		"restore":                          "at least one of the flags in the group [job all] is required",
		"topo --topology / --root /":       "none of the others can be",
		"topo --topology no-such-file.txt": "no-such-file.txt",
	} {
		_, _, err := execute(t, strings.Fields(arguments)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", arguments, err, want)
		}
	}
}

func TestNearest(t *testing.T) {
	for given, want := range map[string]string{
		"status": "status", "statsu": "status", "st": "", "stat": "status", "restor": "restore", "snapshoot": "snapshot", "": "", "x": "", "topp": "topo",
	} {
		if got := nearest(given, []string{"status", "restore", "snapshot", "topo"}); got != want {
			t.Errorf("%q: %q, want %q", given, got, want)
		}
	}
	if got := nearest("aa", []string{"aab", "aac"}); got != "" {
		t.Errorf("two are as near: %q", got)
	}
}

func TestReport(t *testing.T) {
	for _, c := range []struct {
		err    error
		status int
	}{
		{nil, 0},
		{errors.New("broken"), exitFailed},
		{refusal{errors.New("refused")}, exitRefused},
		{ownFault(refusal{errors.New("own")}), 125},
	} {
		var stderr bytes.Buffer
		if got := exitStatus(&stderr, c.err); got != c.status || (c.err == nil) != (stderr.Len() == 0) {
			t.Errorf("%v: %d, %q", c.err, got, stderr.String())
		}
	}
}

func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		stdout, _, err := execute(t, "completion", shell)
		if err != nil || !strings.Contains(stdout, "gputune") || len(stdout) < 1000 {
			t.Errorf("%s: %d bytes, %v", shell, len(stdout), err)
		}
	}
	for typed, want := range map[string]string{
		"topo --format ":             "json\nsvg\n",
		"plan --bind cpus=node,mem=": "cpus=node,mem=bind\n",
		"exec --bind cp":             "cpus=core-complex\n",
		"check --gpu-numa-bind cpus": "cpus=exclusive\n",
		"pl":                         "plan\t",
		"plan --expl":                "--explain\t",
		"completion ":                "zsh\n",
		"help it":                    "items\n",
	} {
		words := strings.Split(typed, " ")
		stdout, _, err := execute(t, append([]string{"__complete"}, words...)...)
		if err != nil || !strings.Contains(stdout, want) {
			t.Errorf("%q: %v, %q, want %q in it", typed, err, stdout, want)
		}
	}
}
