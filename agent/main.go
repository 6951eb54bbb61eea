// Command gputuned is gputune's agent, one for each node, as root: it puts back
// what jobs have left that ended without their Epilog, keeps the topology snapshot
// for the plugin, checks bound tasks, follows workers and serves metrics. It is a systemd service
// that also runs without systemd.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"gputune/conf"
	"gputune/internal/agent"
	"gputune/internal/metrics"
	"gputune/internal/nvml"
	"gputune/internal/program"
	"gputune/internal/verify"
)

// version is set by the linker.
var version = "unknown"

// workerFlag makes this program a child that does one piece of work.
const workerFlag = "--worker"

func main() {
	unix.Umask(0o022)
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "gputuned: %v\n", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	flags := flag.NewFlagSet("gputuned", flag.ExitOnError)
	config := flags.String("config", "", "gputune.toml to read (default "+conf.File+")")
	once := flags.Bool("once", false, "do everything but following workers a single time and end; the status is 1 if something could not be done")
	showVersion := flags.Bool("version", false, "print the version")
	worker := flags.Bool("worker", false, "do one piece of work; the program runs itself with it")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("argument %q: none are taken, but for options", flags.Arg(0))
	}
	if *showVersion {
		fmt.Println("gputuned", version)
		return nil
	}
	host := program.Host(os.Stderr)
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	if *worker {
		return agent.Serve(ctx, host, nvml.New(), os.Stdin, os.Stdout)
	}
	// Little is alive between two rounds: memory is worth more than the time.
	debug.SetGCPercent(50)
	// A reader of the log that has gone must not end the work in the middle.
	signal.Ignore(unix.SIGPIPE)
	reload := make(chan os.Signal, 1)
	signal.Notify(reload, unix.SIGHUP)

	host.Load(*config) // where the journal is; a.Load says what is wrong with it
	log, journal := agent.Logger(os.Stderr, string(host.Site.Paths.Journal))
	if journal != nil {
		defer journal.Close()
	}
	children := &agent.Children{Path: "/proc/self/exe", Argument: workerFlag, Log: log}
	a := &agent.Agent{
		Config: *config, Host: host, Log: log, Journal: journal, Metrics: metrics.New(version), Worker: children,
		Notify: agent.Systemd{Log: log},
	}
	a.Reports = agent.NewReporter(host, children, *config, a.Metrics)
	a.Verify = &agent.Bounded{Verifier: &agent.Tasks{Host: verify.This(), Log: log, Metrics: a.Metrics, Pages: a.Reports.Pages}}
	a.Follow = &agent.Follower{
		Host: verify.This(), Config: *config, Log: log, Metrics: a.Metrics,
		Watcher: &agent.Children{Path: "/proc/self/exe", Argument: workerFlag, Log: log},
	}
	a.Load()
	unlock, err := agent.Lock(string(host.Site.Paths.Run))
	if err != nil {
		return err
	}
	defer unlock()
	if *once {
		return a.Once(ctx)
	}
	return a.Run(ctx, reload)
}
