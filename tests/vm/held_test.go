//go:build vm

package vm

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// held is a step whose tasks wait, so that they can be looked at from outside.
type held struct {
	m      *machine
	dir    string // in the guest
	before string // the step's command
}

// waitScript is what its tasks run. It lists what they see of the folders that a
// container would have its own of.
const waitScript = `#!/bin/bash
ls -A /dev /run /sys >"$1/sees.$SLURM_PROCID"
echo $$ >"$1/starting.$SLURM_PROCID"
mv "$1/starting.$SLURM_PROCID" "$1/pid.$SLURM_PROCID"
until [ -e "$1/go" ]; do sleep 0.5; done
`

// hold starts a step and returns when all its tasks run.
func (m *machine) hold(t *testing.T, name, srun string, tasks int) *held {
	t.Helper()
	h := &held{m: m, dir: "/tmp/held-" + name, before: srun}
	m.must(t, "rm -rf "+h.dir+" && mkdir -m 777 "+h.dir)
	m.put(t, h.dir+"/wait", waitScript)
	m.put(t, h.dir+"/start", fmt.Sprintf("#!/bin/bash\n%s %s/wait %s >%s/out 2>%s/said\necho $? >%s/status\n", srun, h.dir, h.dir, h.dir, h.dir, h.dir))
	m.must(t, fmt.Sprintf(onOneCPU+`setsid %[1]s/start </dev/null >/dev/null 2>&1 &
shopt -s nullglob
for i in $(seq 150); do
	pids=(%[1]s/pid.*)
	[ ${#pids[@]} = %[2]d ] && exit 0
	[ -e %[1]s/status ] && break
	sleep 0.2
done
cat %[1]s/out %[1]s/said; exit 1`, h.dir, tasks))
	return h
}

// look looks at the step's tasks as they are now.
func (h *held) look(t *testing.T) outcome {
	t.Helper()
	output := h.m.must(t, fmt.Sprintf(`for p in %[1]s/pid.*; do look-at-task --pid $(cat $p) || exit; done; echo @said; cat %[1]s/said`, h.dir))
	tasks, said, _ := strings.Cut(output, "@said\n")
	o := outcome{command: h.before, said: strings.Split(strings.TrimSuffix(said, "\n"), "\n")}
	for line := range strings.Lines(tasks) {
		o.tasks = append(o.tasks, h.m.parseTask(t, strings.TrimSuffix(line, "\n")))
	}
	slices.SortFunc(o.tasks, func(a, b task) int { return a.id - b.id })
	return o
}

// release lets the tasks end; all must end well.
func (h *held) release(t *testing.T) {
	t.Helper()
	output := h.m.must(t, fmt.Sprintf(`touch %[1]s/go; for i in $(seq 300); do [ -s %[1]s/status ] && break; sleep 0.1; done; cat %[1]s/status`, h.dir))
	if status, err := strconv.Atoi(strings.TrimSpace(output)); err != nil || status != 0 {
		t.Errorf("%s: ended with status %q", h.before, output)
	}
}
