package job

import "testing"

// Programs that share a daemon count by PCI address, in whatever order Slurm has
// the GPUs, and nobody knows how where the models differ.
func TestNumberUnderMPS(t *testing.T) {
	first := target{pci: "0000:07:00.0", model: "H200"}
	second := target{pci: "0000:41:00.0", model: "H200"}
	third := target{pci: "0001:07:00.0", model: "H200"}
	other := target{pci: "0000:02:00.0", model: "T400"}
	for _, c := range []struct {
		gpus []target
		want []int
	}{
		{[]target{first}, []int{0}},
		{[]target{first, second, third}, []int{0, 1, 2}},
		{[]target{third, first, second}, []int{2, 0, 1}},
		{[]target{first, other}, []int{-1, -1}},
	} {
		for i, want := range c.want {
			if got := numberUnderMPS(c.gpus, i); got != want {
				t.Errorf("%v: %s is %d, want %d", c.gpus, c.gpus[i].pci, got, want)
			}
		}
	}
}
