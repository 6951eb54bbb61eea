package main

import (
	"strings"

	"github.com/spf13/cobra"

	"gputune/internal/option"
)

// itemsTopic is the help on what --bind and --gpu-numa-bind take.
func itemsTopic() *cobra.Command {
	return &cobra.Command{
		Use:   "items",
		Short: "What --bind and srun's --gpu-numa-bind take",
		Long: `Items of --bind and of srun's --gpu-numa-bind, separated by commas:

  on, off            bind with the site's defaults; do not bind
  cpus=node          all granted CPUs of the GPU's local nodes (default)
  cpus=exclusive     an equal share of its node's cores for each GPU alone
  cpus=core-complex  the CPUs of one L3 group, another one for each GPU
  cpus=socket        all granted CPUs of the package
  cpus=none          leave the CPUs alone
  mem=prefer         memory of the GPU's nodes while there is any (default)
  mem=bind           memory of the GPU's nodes only
  mem=interleave     memory of the GPU's nodes in turn
  mem=none           leave the memory policy alone
  smt=all, smt=one   all hardware threads (default), or the first of each core
  gpus=auto          a task that sees several GPUs uses its part where all see
                     the same and their number divides, in the order of
                     CUDA_VISIBLE_DEVICES, else all (default)
  gpus=all, local    all that it sees; those that are near the CPUs it has
  enforce=cgroup     write the cpuset of the task's cgroup, too (default)
  enforce=affinity   set the affinity alone
  follow             one task that starts a worker for each GPU, as torchrun
                     does: gputuned binds each to the GPU that it uses
  strict             fail where it cannot be bound as asked
  verbose, quiet     say what was done; do not even warn`,
	}
}

// completeItems completes a list of items, the last of which is being typed.
func completeItems(command *cobra.Command, flag string) {
	words := bindWords()
	offer := func(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
		before := typed[:strings.LastIndexByte(typed, ',')+1]
		var offered []string
		for _, word := range words {
			offered = append(offered, before+word)
		}
		return offered, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
	if err := command.RegisterFlagCompletionFunc(flag, offer); err != nil {
		panic(err) // the command has no such flag
	}
}

// bindWords spells out option.BindForms: "cpus=node", "cpus=exclusive", ….
func bindWords() []string {
	var words []string
	for form := range strings.SplitSeq(option.BindForms, ", ") {
		key, values, found := strings.Cut(form, "=")
		if !found {
			words = append(words, form)
			continue
		}
		for value := range strings.SplitSeq(values, "|") {
			words = append(words, key+"="+value)
		}
	}
	return words
}
