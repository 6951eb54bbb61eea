package launch

import (
	"strings"
	"testing"

	"gputune/internal/step"
)

func TestSiteVariables(t *testing.T) {
	site := step.Variables{Set: []string{"HCA==mlx5_0", "MALLOC=narenas:8"}, Left: []string{"NODE"}}
	const (
		hca, malloc = "HCA:12235693150181780117", "MALLOC:16827567380654843591"
		unknown     = "NODE not set: what it needs is not known"
	)
	for environment, want := range map[string][3]string{
		"":                      {"HCA==mlx5_0 MALLOC=narenas:8 GPUTUNE_ENVIRONMENT=" + hca + "," + malloc, "", unknown},
		"HCA=mine":              {"MALLOC=narenas:8 GPUTUNE_ENVIRONMENT=" + malloc, "", "HCA kept: it was set; " + unknown},
		"HCA= MALLOC= NODE=3":   {"", "", "HCA kept: it was set; MALLOC kept: it was set; NODE kept: it was set"},
		"NODE=3":                {"HCA==mlx5_0 MALLOC=narenas:8 GPUTUNE_ENVIRONMENT=" + hca + "," + malloc, "", "NODE kept: it was set"},
		"GPUTUNE_ENVIRONMENT=x": {"HCA==mlx5_0 MALLOC=narenas:8 GPUTUNE_ENVIRONMENT=" + hca + "," + malloc, "", unknown},
		// What an outer step was given is replaced, or goes; what was changed since is the user's.
		"HCA==mlx5_0 NODE=3 OLD=x GPUTUNE_ENVIRONMENT=" + hca + ",NODE:12638136623020744290,OLD:12638214688346347271": {
			"HCA==mlx5_0 MALLOC=narenas:8 GPUTUNE_ENVIRONMENT=" + hca + "," + malloc, "NODE OLD", unknown,
		},
		"HCA==mlx5_1 GPUTUNE_ENVIRONMENT=" + hca:             {"MALLOC=narenas:8 GPUTUNE_ENVIRONMENT=" + malloc, "", "HCA kept: it was set; " + unknown},
		"HCA=mine MALLOC=mine GPUTUNE_ENVIRONMENT=" + malloc: {"", "GPUTUNE_ENVIRONMENT", "HCA kept: it was set; MALLOC kept: it was set; " + unknown},
	} {
		set, unset, notes := SiteVariables(site, lookup(environment))
		got := [3]string{strings.Join(set, " "), strings.Join(unset, " "), strings.Join(notes, "; ")}
		if got != want {
			t.Errorf("%q:\n%q, want\n%q", environment, got, want)
		}
	}
}
