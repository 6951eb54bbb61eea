package smi_test

import (
	"testing"

	"gputune/internal/topology/smi"
	"gputune/tests/published"
)

func FuzzParse(f *testing.F) { published.FuzzParse(f, samples, "topo-m/*.txt", smi.Parse) }
