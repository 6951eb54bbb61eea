//go:build gpu

package hw

import (
	"strconv"
	"strings"
	"testing"

	"gputune/internal/nvml"
)

// BenchmarkCopy is how fast 1 GiB goes between host and GPU in a step, bound and
// not.
func BenchmarkCopy(b *testing.B) {
	needSlurm(b)
	program := cuda(b)
	for _, option := range []string{"off", "quiet"} {
		b.Run("gpu-numa-bind="+option, func(b *testing.B) {
			for b.Loop() {
				output := run(b, "timeout", "120", "srun", "-n1", "-c4", "--gpus=1", "--gpu-numa-bind="+option, "sh", "-c", "echo go | "+program+" --copy 1024")
				for line := range strings.Lines(output) {
					words := strings.Fields(line)
					if len(words) != 4 || words[0] != "copy" {
						continue
					}
					rate, err := strconv.ParseFloat(words[3], 64)
					if err != nil {
						b.Fatal(err)
					}
					b.ReportMetric(rate, words[1]+"-"+words[2]+"-GB/s")
				}
			}
		})
	}
}

// BenchmarkNVML is what reading the topology asks of NVML.
func BenchmarkNVML(b *testing.B) {
	for b.Loop() {
		nvml.New().Facts(256, 8)
	}
}
