// Command hold changes settings of this node for a job through the ledger, as the
// job's Prolog does, and ends:
//
//	hold JOB KEY=VALUE…
//
// So the node is as a job has left it whose Epilog never came. It prints a line
// "KEY WAS" for each key.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"gputune/internal/ledger"
	"gputune/internal/setting"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "hold:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 2 {
		return errors.New("want JOB KEY=VALUE…")
	}
	ctx := context.Background()
	env := setting.NewEnvironment("/", nil)
	l, err := ledger.Open(ledger.Dir, ledger.Options{
		Resolve: func(key string) (setting.Setting, error) { return setting.Parse(env, key) },
	})
	if err != nil {
		return err
	}
	var changes []ledger.Change
	for _, arg := range args[1:] {
		key, value, _ := strings.Cut(arg, "=")
		s, err := setting.Parse(env, key)
		if err != nil {
			return err
		}
		if value, err = s.Check(ctx, value); err != nil {
			return err
		}
		changes = append(changes, ledger.Change{Setting: s, Value: value})
	}
	report, err := l.Apply(ctx, args[0], changes)
	if err != nil {
		return err
	}
	for _, outcome := range report.Outcomes {
		fmt.Println(outcome.Key, outcome.Prior)
	}
	return env.Close()
}
