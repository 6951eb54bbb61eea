package job

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gputune/conf"
	"gputune/internal/option"
	"gputune/internal/placement"
)

// aloneNode is a node whose machine and Slurm's files are below the host's root.
func (h *Host) aloneNode(t *testing.T) {
	t.Helper()
	machine, slurm := filepath.Join(h.Root, "machine"), filepath.Join(h.Root, "etc")
	for file, text := range map[string]string{
		machine + "/sys/devices/system/cpu/online":              "0-3\n",
		machine + "/sys/devices/system/node/has_memory":         "0\n",
		machine + "/sys/devices/system/node/online":             "0\n",
		machine + "/sys/devices/system/node/node0/cpulist":      "0-3\n",
		machine + "/sys/devices/system/node/node0/meminfo":      "Node 0 MemFree: 2048 kB\n",
		machine + "/proc/sys/vm/drop_caches":                    "0\n",
		slurm + "/slurm.conf":                                   "NodeName=n1 CPUs=4\nPartitionName=main Nodes=ALL\n",
		filepath.Join(h.Root, "proc/sys/kernel/random/boot_id"): "b\n",
	} {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	h.Site.Paths.Machine = conf.Path(machine)
	h.Site.Paths.Snapshot = conf.Path(machine + "/none.json")
	h.Environ = append(h.Environ, "SLURM_CONF="+slurm+"/slurm.conf", "SLURM_JOB_PARTITION=main")
}

// dropped is what was written to drop_caches, "0" nothing.
func (h *Host) dropped(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(string(h.Site.Paths.Machine), "proc/sys/vm/drop_caches"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// The page cache is dropped for those jobs that the site means, and no others.
func TestBeforeBind(t *testing.T) {
	const asked = bindVariable + "=mem=bind"
	items := option.DefaultBind()
	items.Policy.Mem = placement.MemBind
	for name, c := range map[string]struct {
		environ []string
		site    conf.BeforeBind
		items   *option.Bind
		want    string
		says    string // the Prolog, "" nothing of it
	}{
		"alone":                  {[]string{asked, "SLURM_JOB_CPUS_PER_NODE=4"}, "page", nil, "1", "dropped 0 MiB (node 0: 0)"},
		"with others":            {[]string{asked, "SLURM_JOB_CPUS_PER_NODE=2"}, "page", nil, "0", "not dropped: "},
		"the site does not want": {[]string{asked, "SLURM_JOB_CPUS_PER_NODE=4"}, "off", nil, "0", ""},
		"not bound":              {[]string{"SLURM_JOB_CPUS_PER_NODE=4"}, "page", nil, "0", ""},
		"prefer":                 {[]string{bindVariable + "=cpus=node", "SLURM_JOB_CPUS_PER_NODE=4"}, "page", nil, "0", ""},
		"off":                    {[]string{bindVariable + "=off,mem=bind", "SLURM_JOB_CPUS_PER_NODE=4"}, "page", nil, "0", ""},
		"not accepted":           {[]string{bindVariable + "=mem=bind,x\n", "SLURM_JOB_CPUS_PER_NODE=4"}, "page", nil, "0", ""},
		"bare, by the site":      {[]string{bindVariable + "=(null)", "SLURM_JOB_CPUS_PER_NODE=4"}, "page", &items, "1", "dropped 0 MiB"},
		"beside --drop-caches":   {[]string{asked, "SLURM_JOB_CPUS_PER_NODE=4", "SPANK_GPUTUNE_DROP_CACHES=all"}, "page", nil, "3", ""},
		"beside another option":  {[]string{asked, "SLURM_JOB_CPUS_PER_NODE=4", "SPANK_GPUTUNE_GPU_MEMLOCK=inherit"}, "page", nil, "1", "dropped 0 MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			h, output := host(t, c.environ...)
			h.aloneNode(t)
			h.Site.DropCaches.BeforeBind = c.site
			if c.items != nil {
				h.Site.NUMABind.Items = conf.Items{Bind: *c.items}
			}
			inChild := *h
			inChild.Environ = h.Relevant()
			if asks := c.want != "0" || c.says != ""; h.Asks() != asks || inChild.Asks() != asks {
				t.Errorf("asks: %v, in a child %v", h.Asks(), inChild.Asks())
			}
			inChild.Prolog(t.Context())
			const by = "job 42: drop_caches.before_bind: "
			if got := h.dropped(t); got != c.want || strings.Contains(output.String(), by+c.says) != (c.says != "") || c.says == "" && strings.Contains(output.String(), by) {
				t.Errorf("wrote %q, want %q; said\n%s", got, c.want, output)
			}
		})
	}
}
