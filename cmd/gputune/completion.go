package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

func completionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "completion bash|zsh|fish",
		Short: "Write a script that completes gputune's options in a shell",
		Long: `Write a script that completes gputune's commands, options and their values in a
shell. "make install" puts the scripts where the shells look for them.`,
		Example: `  source <(gputune completion bash)
  gputune completion zsh >"${fpath[1]}/_gputune"
  gputune completion fish >~/.config/fish/completions/gputune.fish`,
		ValidArgs: []string{"bash", "zsh", "fish"},
		Args: func(_ *cobra.Command, arguments []string) error {
			shells := []string{"bash", "zsh", "fish"}
			switch {
			case len(arguments) != 1:
				return refusal{fmt.Errorf("which shell? %s", want("", shells))}
			case nearest(arguments[0], shells) != arguments[0]:
				return refusal{fmt.Errorf("shell %q: %s", arguments[0], want(arguments[0], shells))}
			}
			return nil
		},
		RunE: func(command *cobra.Command, arguments []string) error {
			root, out := command.Root(), command.OutOrStdout()
			switch arguments[0] {
			case "bash":
				return root.GenBashCompletionV2(out, true)
			case "zsh":
				return root.GenZshCompletion(out)
			}
			return root.GenFishCompletion(out, true)
		},
	}
}
