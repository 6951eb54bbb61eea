package slurm

import (
	"fmt"
	"path/filepath"
	"testing"

	"gputune/internal/topology"
)

func TestDivided(t *testing.T) {
	machine := &topology.Machine{GPUs: []topology.GPU{{Minor: 1}, {Minor: 0}}}
	for text, want := range map[string]string{
		"":                               "[false false]",
		"Name=gpu File=/dev/nvidia[0-1]": "[false false]",
		"Name=gpu MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap21,/dev/nvidia-caps/nvidia-cap22\nName=gpu File=/dev/nvidia1": "[false true]",
		"Name=gpu MultipleFiles=/dev/nvidia-caps/nvidia-cap21,/dev/nvidia1":                                                           "[true false]",
		"Name=gpu MultipleFiles=/dev/nvidia1,/dev/nvme0\nName=gpu MultipleFiles=/dev/nvidia1,/dev/nvme1":                              "[true false]",
		"Name=gpu MultipleFiles=/dev/nvidia1,/dev/infiniband/uverbs0":                                                                 "[false false]",
		"NodeName=n2 Name=gpu MultipleFiles=/dev/nvidia1,/dev/nvidia-caps/nvidia-cap21\nName=mps Count=100 File=/dev/nvidia0":         "[false false]",
		"Name=gpu File=/dev/nvidia0\nName=mps Count=100 File=/dev/nvidia0\nName=shard File=/dev/nvidia0":                              "[false false]",
		"Name=gpu MultipleFiles=/dev/nvidia9,/dev/nvidia-caps/nvidia-cap21\nName=gpu Count=4":                                         "[false false]",
	} {
		gres, err := ReadGres(filepath.Join(write(t, map[string]string{"gres.conf": text}), "gres.conf"))
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(Divided(gres, "n1", machine, nil)); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}
