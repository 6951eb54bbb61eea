package slurm

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestShared(t *testing.T) {
	const (
		ask      = "the job does not have the node for itself: ask for --exclusive"
		cannot   = "this release of Slurm does not tell whether the job has the node for itself, and "
		eight    = "NodeName=n[1-4] CPUs=8\n"
		main     = "PartitionName=main Nodes=n[1-4]\n"
		topology = "NodeName=DEFAULT Sockets=2 ThreadsPerCore=2\nNodeName=n1 CoresPerSocket=2\n"
	)
	for name, c := range map[string]struct {
		conf string
		job  Job
		want string // "" alone
	}{
		"nothing is known":               {"", Job{}, ask},
		"--exclusive, 23.02":             {eight + main, Job{CPUs: 1, Oversubscribe: "NO"}, ""},
		"not asked for, 23.02":           {eight + main, Job{CPUs: 4, Oversubscribe: "OK"}, ask},
		"--exclusive=user":               {eight + main, Job{CPUs: 4, Oversubscribe: "USER"}, ask},
		"all CPUs, 23.02":                {eight + main, Job{CPUs: 8, Oversubscribe: "OK"}, ""},
		"all CPUs, and to be shared":     {eight + main, Job{CPUs: 8, Oversubscribe: "YES"}, ask},
		"--exclusive, 26.05":             {eight + main, Job{CPUs: 1, Oversubscribe: "NO", Exclusive: "NODE"}, ""},
		"not asked for, 26.05":           {eight + main, Job{CPUs: 1, Oversubscribe: "NO", Exclusive: "NO"}, ask},
		"all CPUs, 26.05":                {eight + main, Job{CPUs: 8, Oversubscribe: "NO", Exclusive: "NO"}, ""},
		"a topology's segment, 26.05":    {eight + main, Job{CPUs: 1, Oversubscribe: "NO", Exclusive: "TOPO"}, ask},
		"all CPUs, 22.05":                {eight + main, Job{CPUs: 8}, ""},
		"some CPUs, 22.05":               {eight + main, Job{CPUs: 7}, ask},
		"the whole nodes of a partition": {eight + "PartitionName=main Nodes=n1 OverSubscribe=exclusive\n", Job{CPUs: 1, Partition: "main"}, ""},
		"since 26.05 so":                 {eight + "PartitionName=main Nodes=n1 Exclusive=NODE\n", Job{CPUs: 1, Partition: "main"}, ""},
		"of another partition":           {eight + "PartitionName=main Nodes=n1 OverSubscribe=EXCLUSIVE\n", Job{CPUs: 1, Partition: "other"}, ask},
		"which slurmd knows better":      {eight + "PartitionName=main Nodes=n1 OverSubscribe=EXCLUSIVE\n", Job{CPUs: 1, Partition: "main", Oversubscribe: "OK"}, ask},
		"by default":                     {eight + "PartitionName=DEFAULT OverSubscribe=EXCLUSIVE\nPartitionName=main Nodes=n1\n", Job{CPUs: 1, Partition: "main"}, ""},
		"a partition that shares":        {eight + "PartitionName=both Nodes=n[1-2] OverSubscribe=FORCE:2\n", Job{CPUs: 8}, cannot + "partition both has OverSubscribe=FORCE:2: use a node"},
		"on request, 4 by default":       {eight + "PartitionName=both Nodes=ALL Shared=YES\n", Job{CPUs: 8}, cannot + "partition both has OverSubscribe=YES"},
		"and it is told that it does":    {eight + "PartitionName=both Nodes=ALL OverSubscribe=YES\n", Job{CPUs: 8, Oversubscribe: "OK"}, ask},
		"by a set of nodes":              {eight + "NodeSet=set1 Nodes=n1\nPartitionName=both Nodes=set1 OverSubscribe=YES:4\n", Job{CPUs: 8}, cannot},
		"which no two jobs share":        {eight + "PartitionName=both Nodes=n1 OverSubscribe=FORCE:1\n", Job{CPUs: 8}, ""},
		"on other nodes":                 {eight + "PartitionName=both Nodes=n[2-4] OverSubscribe=FORCE\n", Job{CPUs: 8}, ""},
		"jobs are suspended":             {"PreemptMode=suspend,gang\n" + eight, Job{CPUs: 8}, cannot + "PreemptMode=SUSPEND"},
		"in a partition":                 {eight + "PartitionName=low Nodes=n1 PreemptMode=SUSPEND\n", Job{CPUs: 8}, cannot + "PreemptMode=SUSPEND"},
		"a node by its parts":            {topology, Job{CPUs: 8}, ""},
		"not all of them":                {topology, Job{CPUs: 4}, ask},
		"cores for the system":           {"NodeName=n1 CPUs=16 Sockets=2 CoresPerSocket=4 ThreadsPerCore=2 CoreSpecCount=2\n", Job{CPUs: 12}, ""},
		"CPUs for the system":            {"NodeName=n1 CPUs=16 CpuSpecList=0-2,8\n", Job{CPUs: 12}, ""},
		"and not so many":                {"NodeName=n1 CPUs=16 CpuSpecList=0-2\n", Job{CPUs: 12}, ask},
		"a dynamic node":                 {"", Job{CPUs: 32}, ""},
		"a part of it":                   {"", Job{CPUs: 31}, ask},
	} {
		path := filepath.Join(t.TempDir(), "slurm.conf")
		if err := os.WriteFile(path, []byte(c.conf), 0o600); err != nil {
			t.Fatal(err)
		}
		conf, err := ReadSlurm(path)
		if err != nil {
			t.Fatal(err)
		}
		err = conf.Shared(c.job, "n1", 32)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), c.want) || !errors.As(err, new(*SharedError))) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestSharedUnknown(t *testing.T) {
	if err := (Conf{}).Shared(Job{CPUs: 8}, "n1", 0); err == nil {
		t.Error("alone on a node of no known CPUs")
	}
}

func TestCPUsHere(t *testing.T) {
	for _, c := range []struct {
		perNode, nodes string
		want           int
	}{
		{"4", "n1", 4},
		{"4(x3)", "n[0-2]", 4},
		{"4(x2),8", "n[0-2]", 4},
		{"2,8(x2),4", "n[0-3]", 8},
		{"2,8(x2),4", "", 2},
		{"2,8", "a[1-", 2},
		{"", "n1", 0},
		{"0", "n1", 0},
		{"4(x", "n1", 0},
		{"-4", "n1", 0},
		{"four", "n1", 0},
		{"4(x99999999)", "n1", 0},
	} {
		if got := cpusHere(c.perNode, c.nodes, "n1"); got != c.want {
			t.Errorf("%q of %q: %d, want %d", c.perNode, c.nodes, got, c.want)
		}
	}
}
