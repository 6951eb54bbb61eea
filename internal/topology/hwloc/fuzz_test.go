package hwloc_test

import (
	"testing"

	"gputune/internal/topology/hwloc"
	"gputune/tests/published"
)

func FuzzParse(f *testing.F) { published.FuzzParse(f, samples, "hwloc/*/*.xml", hwloc.Parse) }
