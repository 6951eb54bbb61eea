package topology_test

import (
	"os"
	"path/filepath"
	"testing"

	"gputune/internal/topology"
)

// BenchmarkReadLaunch is what every step with a binding pays when there is no
// snapshot: 512 CPUs, 16 GPUs, 300 PCI functions.
func BenchmarkReadLaunch(b *testing.B) { benchmarkRead(b, topology.Options{}) }

// BenchmarkReadAll is what the agent and the command pay.
func BenchmarkReadAll(b *testing.B) { benchmarkRead(b, topology.Options{NICs: true}) }

func benchmarkRead(b *testing.B, options topology.Options) {
	root := rendered(b, "bench-512")
	b.ReportAllocs()
	for b.Loop() {
		m, err := topology.Read(root, options)
		if err != nil {
			b.Fatal(err)
		}
		if m.CPUs.Len() != 512 || len(m.GPUs) != 16 || len(m.Warnings) != 0 {
			b.Fatalf("%d CPUs, %d GPUs, warnings %q", m.CPUs.Len(), len(m.GPUs), m.Warnings)
		}
	}
}

// BenchmarkReadHere reads the sysfs of the machine that it runs on, which the
// kernel makes up anew for each read.
func BenchmarkReadHere(b *testing.B) {
	for b.Loop() {
		if _, err := topology.Read("/", topology.Options{}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkReadSnapshot is what a step pays where the agent wrote a snapshot.
func BenchmarkReadSnapshot(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("ReadSnapshot trusts files of root only")
	}
	root := rendered(b, "bench-512")
	m, err := topology.Read(root, topology.Options{NICs: true})
	if err != nil {
		b.Fatal(err)
	}
	path := filepath.Join(root, "run/gputune/topology.json")
	if err := topology.WriteSnapshot(root, path, m); err != nil {
		b.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := topology.ReadSnapshot(root, path); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(info.Size()), "bytes/file")
}
