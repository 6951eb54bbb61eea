package nccl_test

import (
	"testing"

	"gputune/internal/topology/nccl"
	"gputune/tests/published"
)

func FuzzParse(f *testing.F) { published.FuzzParse(f, samples, "nccl/*.xml", nccl.Parse) }
