package fakenvml

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// TestSanitized calls every function from C with the library, and the program
// beside it, compiled with the address and undefined-behaviour sanitizers.
func TestSanitized(t *testing.T) {
	needRoot(t)
	folder := t.TempDir()
	sanitize := []string{"-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"}
	l, err := Build(t.Context(), folder, sanitize...)
	if err != nil {
		t.Fatal(err)
	}
	d := H200(2)
	d.Log = "calls.log"
	d.GPUs[0].Lines = []string{"process 17 1", "process 18 1", "utilization_samples 40 60", "field 197 4096"}
	d.GPUs[1].MIG = []string{"", "MIG-a"}
	// Faults that change nothing but take every way through the code.
	d.Faults = []Fault{
		{Call: "*", Nth: "1000000-", Error: "UNKNOWN"},
		{Call: "Get*", GPU: "0", Slow: time.Millisecond},
		{Call: "SetComputeMode", GPU: d.GPUs[1].UUID, Program: "nobody", Ignored: true},
	}
	if err := l.Describe(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	before := stateText(t, l)

	program := compile(t, l, "every_call.c", sanitize...)
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Env = append(os.Environ(), l.Environ()...)
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Fatalf("%v\n%s", err, out)
	}
	if after := stateText(t, l); after != before {
		t.Errorf("the state is\n%s", after)
	}
	if lines, err := l.Log(d.Log); err != nil || len(lines) < 100 {
		t.Errorf("%d lines in the log, %v", len(lines), err)
	}

	// And the readers of files, with what is malformed.
	for _, name := range []string{"fakenvml.conf", "fakenvml.faults", "fakenvml.state"} {
		text, err := os.ReadFile(l.file(name))
		if err != nil && name != "fakenvml.faults" {
			t.Fatal(err)
		}
		for _, garbage := range []string{
			"", "\n", "=", "fault", "fault *", "fault " + strings.Repeat("x", 500), strings.Repeat("gpu ", 5000), "\x00", "gpu//x 1\n",
			"cpus " + strings.Repeat("1,", 3000), "gpu/a/b", "process 99999999999999999999 1", string(text) + "x", " \t \r",
			strings.Repeat("fault GetName nth=1 error=UNKNOWN\n", 300), strings.Repeat("mig 0 x\nprocess 1 1\n", 100),
			"gpu x\nmig_instances 19@0:1/0@0:1/" + strings.Repeat("0@0:1/", 99), "gpu x\nmig_instances 9@4:4;9@4:4\n", "gpu x\nmig_instances @:;/", "gpu x\nmig_mode 1 2 3",
		} {
			if err := l.replace(name, garbage); err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), program)
			cmd.Env = append(os.Environ(), l.Environ()...)
			out, err := cmd.CombinedOutput()
			if strings.Contains(string(out), "Sanitizer") || strings.Contains(string(out), "runtime error") {
				t.Errorf("%s with %.40q: %v\n%s", name, garbage, err, out)
			}
		}
		if err := l.replace(name, string(text)); err != nil {
			t.Fatal(err)
		}
	}
}
