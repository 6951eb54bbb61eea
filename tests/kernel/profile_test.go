package kernel

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gputune/conf"
	"gputune/internal/idset"
	"gputune/internal/ledger"
	"gputune/internal/nodeplan"
	"gputune/internal/setting"
	"gputune/internal/topology"
)

// TestProfiles sets the shipped profiles, and one with hugepages, as a job would
// get them whose GPU is the last PCI device with interrupts, and puts them back.
func TestProfiles(t *testing.T) {
	needRoot(t)
	if len(parts(t)) < 8 {
		t.Skip("this machine lets hardly a setting be changed")
	}
	m, err := topology.Read("/", topology.Options{NICs: true})
	must(t, err)
	gpu := topology.GPU{Nodes: idset.Of(m.Nodes[len(m.Nodes)-1].ID)}
	if list := devices(t); len(list) > 0 {
		gpu.PCI = list[len(list)-1]
	}
	file := filepath.Join(t.TempDir(), "gputune.toml")
	must(t, os.WriteFile(file, []byte("[profile.all]\ninclude = \"benchmark\"\nhugepages = \"2M:7\"\nthp_defrag = \"defer\"\nkhugepaged_defrag = \"off\"\ndrop_caches = \"keep\"\n"), 0o600))
	config, err := conf.Load(file)
	must(t, err)
	for _, name := range []string{"training", "inference", "benchmark", "all"} {
		t.Run(name, func(t *testing.T) {
			ctx := context.Background()
			profile, err := config.Profile(name)
			must(t, err)
			l, env, err := open(t.TempDir())
			must(t, err)
			plan, err := nodeplan.New(ctx, env, profile, nodeplan.Job{Machine: m, GPUs: []topology.GPU{gpu}, Alone: true, HugepagesPercent: 90})
			must(t, err)
			t.Logf("%d settings; skipped %v; unmovable %v", len(plan.Wishes), plan.Skipped, plan.Unmovable)
			was := watch(t, append(parts(t), files(plan)))
			c, err := changes(env, plan.Wishes)
			must(t, err)
			report, err := l.Apply(ctx, job, c)
			must(t, err)
			set := 0
			for i, o := range report.Outcomes {
				s, err := setting.Parse(env, o.Key)
				must(t, err)
				if is, err := s.Read(ctx); err != nil || is != plan.Wishes[i].Value || is != o.Set {
					t.Errorf("%s is %s (%v), want %s", o.Key, is, err, plan.Wishes[i].Value)
				}
				if o.Action == ledger.Set {
					set++
				}
			}
			if len(was.other(t)) < 2 || set < 2 {
				t.Errorf("%d settings and %d files are changed", set, len(was.other(t)))
			}
			_, err = l.Release(ctx, job)
			must(t, err)
			was.back(t, "after "+name)
		})
	}
}

// files are those that a plan may change beside those of parts.
func files(plan nodeplan.Plan) part {
	p := part{reads: map[string]string{}}
	for _, wish := range plan.Wishes {
		words := strings.Split(wish.Key, "/")
		switch words[0] {
		case "cpuidle":
			p.reads["/sys/devices/system/cpu/"+words[1]+"/power/pm_qos_resume_latency_us"] = ""
		case "irq":
			p.reads["/proc/irq/"+words[2]+"/smp_affinity_list"] = ""
		case "hugepages":
			p.reads["/sys/devices/system/node/"+words[1]+"/hugepages/hugepages-"+words[2]+"/nr_hugepages"] = ""
		case "cpufreq":
			for _, file := range []string{"scaling_governor", "energy_performance_preference", "scaling_min_freq"} {
				p.reads["/sys/devices/system/cpu/cpufreq/"+words[1]+"/"+file] = ""
			}
		}
	}
	return p
}
