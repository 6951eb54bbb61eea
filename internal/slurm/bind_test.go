package slurm

import (
	"bufio"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// testdata/steps-*.tsv is what a plugin saw in slurmstepd's parent process
// (init_post_opt, user_init and task_post_fork agree) and in a task (task_init)
// of real steps: release, TaskPlugin, how the step was started, process, and the
// variables. Columns "cpu", "mem" and "gpu" are what the user asked for.
func TestBindOfRealSteps(t *testing.T) {
	files, err := filepath.Glob("testdata/steps-*.tsv")
	if err != nil || len(files) == 0 {
		t.Fatalf("no recorded steps: %v", err)
	}
	steps := 0
	for _, name := range files {
		for _, step := range readSteps(t, name) {
			steps++
			if step.process != "parent" {
				continue
			}
			cpu, explicitCPU := ExplicitCPUBind(from(step.environment))
			if cpu != step.cpu || explicitCPU != (step.cpu != "") {
				t.Errorf("%s: %s: ExplicitCPUBind = %q, %v, want %q", name, step.command, cpu, explicitCPU, step.cpu)
			}
			mem, explicitMem := ExplicitMemBind(from(step.environment))
			if mem != step.mem || explicitMem != (step.mem != "") {
				t.Errorf("%s: %s: ExplicitMemBind = %q, %v, want %q", name, step.command, mem, explicitMem, step.mem)
			}
		}
	}
	if steps < 200 {
		t.Errorf("%d steps read", steps)
	}
}

// In a task's environment memory binding reads the same.
func TestBindOfRealTasks(t *testing.T) {
	files, err := filepath.Glob("testdata/steps-*.tsv")
	if err != nil {
		t.Fatal(err)
	}
	tasks := 0
	for _, name := range files {
		for _, step := range readSteps(t, name) {
			if step.process == "parent" {
				continue
			}
			tasks++
			if mem, _ := ExplicitMemBind(from(step.environment)); mem != step.mem {
				t.Errorf("%s: %s: ExplicitMemBind = %q, want %q", name, step.command, mem, step.mem)
			}
		}
	}
	if tasks < 100 {
		t.Errorf("%d tasks read", tasks)
	}
}

type recordedStep struct {
	command, process, cpu, mem string
	environment                map[string]string
}

func readSteps(t *testing.T, name string) []recordedStep {
	t.Helper()
	file, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var steps []recordedStep
	scanner := bufio.NewScanner(file)
	for scanner.Scan() {
		if strings.HasPrefix(scanner.Text(), "#") {
			continue
		}
		fields := strings.Split(scanner.Text(), "\t")
		step := recordedStep{command: fields[0], process: fields[1], environment: map[string]string{}}
		step.cpu, step.mem = fields[2], fields[3] // fields[4]: how GPUs were dealt out
		for _, variable := range fields[5:] {
			key, value, _ := strings.Cut(variable, "=")
			step.environment[key] = value
		}
		steps = append(steps, step)
	}
	if err := scanner.Err(); err != nil {
		t.Fatal(err)
	}
	return steps
}

func TestExplicitCPUBind(t *testing.T) {
	for _, test := range []struct {
		environment string
		want        string
	}{
		{"", ""},
		{"SLURM_CPU_BIND=cores", ""},          // a batch step's: nobody acts on it
		{"SLURM_CPU_BIND_TYPE=mask_cpu:", ""}, // left over from somewhere
		{"SLURM_CPU_BIND=verbose SLURM_CPU_BIND_TYPE=", ""},
		{"SLURM_CPU_BIND=quiet,none SLURM_CPU_BIND_TYPE=none", ""},
		{"SLURM_CPU_BIND=quiet,cores SLURM_CPU_BIND_TYPE=cores", "--cpu-bind=cores"},
		{"SLURM_CPU_BIND=verbose,map_ldom:0,1 SLURM_CPU_BIND_TYPE=map_ldom: SLURM_CPU_BIND_LIST=0,1", "--cpu-bind=map_ldom:0,1"},
		{"SLURM_CPU_BIND=quiet,threads SLURM_CPU_BIND_TYPE=threads SLURM_HINT=nomultithread", ""},
		{"SLURM_CPU_BIND=quiet,threadsthreads SLURM_CPU_BIND_TYPE=threads SLURM_CPU_BIND_LIST=threads SLURM_HINT=nomultithread", "--cpu-bind=threads"},
		{"SLURM_CPU_BIND=quiet,cores SLURM_CPU_BIND_TYPE=cores SLURM_HINT=compute_bound", ""},
		{"SLURM_CPU_BIND=quiet,cores SLURM_CPU_BIND_TYPE=cores SLURM_THREADS_PER_CORE=1", ""},
		// sbatch --hint=nomultithread implies threads, so these are srun's own.
		{"SLURM_CPU_BIND=quiet,cores SLURM_CPU_BIND_TYPE=cores SLURM_HINT=nomultithread SLURM_THREADS_PER_CORE=1", "--cpu-bind=cores"},
		{"SLURM_CPU_BIND=quiet,sockets SLURM_CPU_BIND_TYPE=sockets SLURM_HINT=nomultithread SLURM_THREADS_PER_CORE=1", "--cpu-bind=sockets"},
	} {
		environment := map[string]string{}
		for variable := range strings.FieldsSeq(test.environment) {
			key, value, _ := strings.Cut(variable, "=")
			environment[key] = value
		}
		got, explicit := ExplicitCPUBind(from(environment))
		if got != test.want || explicit != (test.want != "") {
			t.Errorf("%s: %q, %v, want %q", test.environment, got, explicit, test.want)
		}
	}
}
