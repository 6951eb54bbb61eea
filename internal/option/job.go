package option

import (
	"fmt"
	"strings"
)

// environmentPrefix is what Slurm and the plugin put before the name of a job's
// option in the environment of Prolog and Epilog: SPANK_ is Slurm's for all
// that spank_job_control_setenv(3) was given, GPUTUNE_ the plugin's.
const environmentPrefix = "SPANK_GPUTUNE_"

// JobOption is an option that belongs to a job, not to a step: the Prolog
// carries it out.
type JobOption struct {
	Name  string // without dashes before it: "gpu-clocks"
	Forms string // the accepted values, for messages
	check func(value string) error
}

// JobOptions returns the options of jobs, in the order in which they are
// carried out.
func JobOptions() []JobOption {
	return []JobOption{
		// Hugepages while memory is as free as it will be, and what was asked for by
		// name before the profile that it stands in.
		{HugepagesName, HugepagesForms, check(ParseHugepages)},
		{THPName, THPForms, check(ParseTHP)},
		{DropCachesName, DropCachesForms, check(ParseDropCaches)},
		{MIGName, MIGForms, check(ParseMIG)}, // it can take the GPUs' settings with it
		{NodeProfileName, NodeProfileForms, check(ParseNodeProfile)},
		{ClocksName, ClocksForms, check(ParseClocks)},
		{PowerName, PowerForms, check(ParsePower)},
		{ComputeModeName, ComputeModeForms, check(ParseComputeMode)},
		{MPSName, MPSForms, check(ParseMPS)},
		{MemlockName, MemlockForms, check(ParseMemlock)},
	}
}

func check[T any](parse func(string) (T, error)) func(string) error {
	return func(value string) error {
		_, err := parse(value)
		return err
	}
}

// Check returns an error unless the grammar accepts the value.
func (o JobOption) Check(value string) error { return o.check(value) }

// Variable returns the name of the variable in which the value reaches Prolog
// and Epilog: SPANK_GPUTUNE_GPU_CLOCKS.
func (o JobOption) Variable() string {
	return environmentPrefix + strings.ReplaceAll(strings.ToUpper(o.Name), "-", "_")
}

// JobOptionName returns the name that an option would have that reaches Prolog
// and Epilog in a variable, and false where the variable is not gputune's.
// Anybody can make one: it may be no option's, and its name anything.
func JobOptionName(variable string) (name string, ours bool) {
	name, ours = strings.CutPrefix(variable, environmentPrefix)
	return strings.ReplaceAll(strings.ToLower(name), "_", "-"), ours
}

// parseItems gives each item of a comma-separated list to set and puts the
// option's and the item's name before an error. A value can come from anybody
// who can submit a job, so nothing of it is repeated unless it is short and
// printable.
func parseItems(name, value string, set func(item string) error) error {
	if len(value) > MaxLength {
		return fmt.Errorf("--%s: %d bytes long: at most %d are accepted", name, len(value), MaxLength)
	}
	for item := range strings.SplitSeq(value, ",") {
		if err := set(item); err != nil {
			return fmt.Errorf("--%s: %s: %w", name, Shown(item), err)
		}
	}
	return nil
}

// Shown returns hostile text as it can be shown to a person: quoted, with
// everything that a terminal or a log would act on escaped, and cut where it is
// long.
func Shown(text string) string {
	const most = 64
	if len(text) > most {
		return fmt.Sprintf("%+q… (%d bytes)", text[:most], len(text))
	}
	return fmt.Sprintf("%+q", text)
}
