//go:build slurm

package slurm

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gputune/tests/slurm/bed"
	"gputune/tests/slurm/site"
)

// locked prints how much memory the process may lock in KiB, soft and hard, of
// itself and of a grandchild.
const locked = `sh -c 'echo "$1 $(ulimit -Sl) $(ulimit -Hl) $(sh -c "sh -c \"ulimit -Sl\"")"' - `

// withLimit runs a command of Slurm's in a shell whose own limit of locked memory
// is so many KiB.
func withLimit(t *testing.T, s *site.Site, kib int, command string) bed.Result {
	t.Helper()
	return must(t, s, "sh", "-c", fmt.Sprintf("ulimit -Sl %d && %s", kib, command))
}

// --gpu-memlock lasts: Slurm, which sets limits after the plugin, would bring back
// those of where the job was submitted.
func TestMemlock(t *testing.T) {
	s := startSettings(t, "")
	hard := strings.TrimSpace(must(t, s.Site, "sh", "-c", "ulimit -Hl").Stdout)
	if without := withLimit(t, s.Site, 128, "srun -Q -n1 "+locked+"srun"); without.Stdout != "srun 128 "+hard+" 128\n" {
		t.Fatalf("this Slurm does not propagate the limit: %v", without)
	}
	want := func(name string) string { return name + " 2048 " + hard + " 2048\n" }

	if got := withLimit(t, s.Site, 128, "srun -Q -n1 --gpu-memlock=2M "+locked+"srun"); got.Stdout != want("srun") || got.Stderr != "" {
		t.Errorf("srun: %v", got)
	}
	// Whoever asks for it to be propagated as well.
	if got := withLimit(t, s.Site, 128, "srun -Q -n2 --propagate=ALL --gpu-memlock=2M "+locked+"srun"); got.Stdout != want("srun")+want("srun") {
		t.Errorf("srun --propagate: %v", got)
	}
	if got := withLimit(t, s.Site, 128, "srun -Q -n1 --gpus=1 --gpu-memlock=2M --gpu-numa-bind "+locked+"bound"); got.Stdout != want("bound") {
		t.Errorf("a step that is bound: %v", got)
	}
	script, output := filepath.Join(s.Folder, "script"), filepath.Join(s.Folder, "output")
	text := "#!/bin/sh\n" + locked + "batch\nulimit -Sl 64\nsrun -n1 " + locked + "step\nsrun -n2 --propagate=NONE " + locked + "two\n"
	if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	withLimit(t, s.Site, 128, "sbatch -W -Q -n2 --gpu-memlock=2M -o "+output+" "+script)
	if got, err := os.ReadFile(output); err != nil || string(got) != want("batch")+want("step")+want("two")+want("two") {
		t.Errorf("sbatch: %q, %v", got, err)
	}
	if got := withLimit(t, s.Site, 128, "salloc -Q -n1 --gpu-memlock=2M srun "+locked+"salloc"); got.Stdout != want("salloc") {
		t.Errorf("salloc: %v", got)
	}
	if got := withLimit(t, s.Site, 128, "srun -Q -n1 --gpu-memlock=inherit "+locked+"srun"); got.Stdout != "srun 128 "+hard+" 128\n" {
		t.Errorf("inherit: %v", got)
	}
	s.wantClean(t)
}
