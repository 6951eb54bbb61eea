// Command numavm boots a virtual NUMA machine with a real Slurm and runs a script in it.
//
//	numavm run [flags] -- SCRIPT|COMMAND [ARG…]   boot, run, power off; the exit status is the command's
//	numavm image [--suite S]                      build an image, or all of them, ahead of time
//	numavm list                                   print the suites and topologies
//	numavm clean                                  remove images that are not in use
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"gputune/tests/vm/numavm"
)

// The exit statuses that are not the command's, as in env(1) and timeout(1).
const (
	exitTimeout = 124
	exitFailure = 125
	exitUsage   = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	code, err := run(ctx, os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "numavm:", err)
	}
	os.Exit(code)
}

const usage = `usage: numavm run [flags] -- SCRIPT|COMMAND [ARG…]
       numavm image [--suite S]
       numavm list
       numavm clean
`

func run(ctx context.Context, args []string) (int, error) {
	verb := ""
	if len(args) > 0 {
		verb, args = args[0], args[1:]
	}
	switch verb {
	case "run":
		return runScript(ctx, args)
	case "image":
		return buildImages(ctx, args)
	case "list":
		return list(os.Stdout)
	case "clean":
		return clean(ctx)
	case "help", "-h", "--help":
		fmt.Print(usage)
		return 0, nil
	}
	return exitUsage, fmt.Errorf("verb %q\n%s", verb, usage)
}

// list prints what --suite and --topo take.
func list(w io.Writer) (int, error) {
	var b strings.Builder
	for _, s := range numavm.Suites() {
		fmt.Fprintf(&b, "suite %s slurm %s\n", s, s.Slurm())
	}
	for _, t := range numavm.Topologies() {
		fmt.Fprintf(&b, "topology %s\n", t)
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return exitFailure, err
	}
	return 0, nil
}

func clean(ctx context.Context) (int, error) {
	cache, err := numavm.CacheDir()
	if err == nil {
		err = numavm.CleanImages(ctx, cache)
	}
	if err != nil {
		return exitFailure, err
	}
	return 0, nil
}

func newLog(verbose bool) *slog.Logger {
	level := slog.LevelInfo
	if verbose {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
}

func buildImages(ctx context.Context, args []string) (int, error) {
	fs := flag.NewFlagSet("numavm image", flag.ContinueOnError)
	suites := numavm.Suites()
	fs.Func("suite", "only this `suite`", func(v string) error {
		s, err := numavm.ParseSuite(v)
		suites = []numavm.Suite{s}
		return err
	})
	if err := fs.Parse(args); err != nil {
		return usageCode(err), nil
	}
	tree, err := numavm.FindTree()
	if err != nil {
		return exitFailure, err
	}
	cache, err := numavm.CacheDir()
	if err != nil {
		return exitFailure, err
	}
	for _, s := range suites {
		img, err := numavm.EnsureImage(ctx, tree, cache, s, newLog(false))
		if err != nil {
			return exitFailure, err
		}
		fmt.Println(img.Dir)
		if err := img.Close(); err != nil {
			return exitFailure, err
		}
	}
	return 0, nil
}

// usageCode is the exit status for an error of flag.FlagSet.Parse, which has printed it.
func usageCode(err error) int {
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	return exitUsage
}

func runScript(ctx context.Context, args []string) (code int, err error) {
	opt := numavm.Options{Suite: numavm.Trixie}
	topo := "n2"
	verbose := false
	fs := flag.NewFlagSet("numavm run", flag.ContinueOnError)
	fs.Func("suite", "Debian `suite` to boot: bookworm, trixie (default) or forky", func(v string) (err error) {
		opt.Suite, err = numavm.ParseSuite(v)
		return err
	})
	fs.StringVar(&topo, "topo", topo, "`topology`: "+strings.Join(numavm.Topologies(), ", "))
	fs.Func("share", "`DIR[:NAME]` that the guest sees as /host/NAME; may be repeated. The working tree is /host/tree", func(v string) error {
		dir, name, _ := strings.Cut(v, ":")
		opt.Shares = append(opt.Shares, numavm.Share{Dir: dir, Name: name})
		return nil
	})
	fs.Func("env", "`K=V` for the command's environment; may be repeated", func(v string) error {
		if k, _, ok := strings.Cut(v, "="); !ok || k == "" {
			return errors.New("want K=V")
		}
		opt.Env = append(opt.Env, v)
		return nil
	})
	fs.Func("append", "`argument` for the guest kernel's command line; may be repeated", func(v string) error {
		opt.KernelArgs = append(opt.KernelArgs, v)
		return nil
	})
	fs.DurationVar(&opt.CommandTimeout, "timeout", 10*time.Minute, "after which the command is killed")
	fs.DurationVar(&opt.BootTimeout, "boot-timeout", 5*time.Minute, "after which a boot is given up")
	fs.StringVar(&opt.LogDir, "log-dir", "", "`folder` that keeps the machine's console and logs")
	fs.BoolVar(&opt.Udev, "udev", false, "keep systemd-udevd in the guest")
	fs.BoolVar(&verbose, "verbose", false, "say more about what is done")
	poweroff := fs.Bool("poweroff", false, "stop all units in order at the end; without it the machine is ended at once")
	if err := fs.Parse(args); err != nil {
		return usageCode(err), nil
	}
	if fs.NArg() == 0 {
		return exitUsage, errors.New("no script or command given after the flags")
	}
	if opt.Topology, err = numavm.ParseTopology(topo); err != nil {
		return exitUsage, err
	}
	tree, err := numavm.FindTree()
	if err != nil {
		return exitFailure, err
	}
	argv := fs.Args()
	if argv[0], err = guestPath(argv[0], append([]numavm.Share{{Dir: tree, Name: numavm.TreeShare}}, opt.Shares...)); err != nil {
		return exitFailure, err
	}
	opt.Log = newLog(verbose)
	vm, err := numavm.Start(ctx, opt)
	if err != nil {
		return exitFailure, err
	}
	defer func() {
		if cerr := vm.Close(); cerr != nil {
			code, err = exitFailure, errors.Join(err, cerr)
		}
	}()
	res, err := vm.Exec(ctx, numavm.Command{Argv: argv, Stdout: os.Stdout, Stderr: os.Stderr})
	switch {
	case errors.Is(err, numavm.ErrTimeout):
		return exitTimeout, err
	case err != nil:
		return exitFailure, err
	}
	if *poweroff {
		if err := vm.Shutdown(ctx); err != nil {
			return exitFailure, err
		}
	}
	return res.Code, nil
}

// guestPath is how the guest sees a script of the host: a path that exists here must lie in one of the shares. A name without
// a slash, or a path that is not here, is the guest's own.
func guestPath(name string, shares []numavm.Share) (string, error) {
	if !strings.Contains(name, "/") {
		return name, nil
	}
	path, err := filepath.Abs(name)
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) && filepath.IsAbs(name) {
		return name, nil
	} else if err != nil {
		return "", err
	}
	for _, s := range shares {
		dir, err := filepath.Abs(s.Dir)
		if err != nil {
			return "", fmt.Errorf("share %s: %w", s.Dir, err)
		}
		if s.Name == "" {
			s.Name = filepath.Base(dir)
		}
		if rel, err := filepath.Rel(dir, path); err == nil && filepath.IsLocal(rel) {
			return filepath.Join(s.GuestPath(), rel), nil
		}
	}
	if filepath.IsAbs(name) { // /bin/true exists on both sides
		return name, nil
	}
	return "", fmt.Errorf("%s lies neither in the working tree nor in a --share: the guest does not see it", path)
}
