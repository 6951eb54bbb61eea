// Command confine sets the cpuset of a process's cgroup as the plugin does, runs a
// command while it is set, and puts it back:
//
//	confine PID CPUS MEMS COMMAND [ARG…]
//
// CPUS and MEMS are lists as the kernel writes them, or empty for none. It prints
// one line of NAME=VALUE, separated by tabs, for what came of setting and one for
// what came of putting back; step is set or restore, and result ok, not-own,
// not-taken (with file, wrote and effective), taken-over or error (with text).
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"

	"gputune/internal/cgroup"
	"gputune/internal/idset"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "confine:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 4 {
		return errors.New("want PID CPUS MEMS COMMAND [ARG…]")
	}
	pid, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	var want cgroup.Cpuset
	if want.CPUs, err = idset.Parse(args[1]); err != nil {
		return err
	}
	if want.Mems, err = idset.Parse(args[2]); err != nil {
		return err
	}
	paths, err := cgroup.Of("/", pid)
	if err != nil {
		return err
	}
	confined, err := paths.Set(pid, want)
	report("set", err)
	cmd := exec.Command(args[3], args[4:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return err
	}
	report("restore", confined.Restore())
	return nil
}

func report(step string, err error) {
	var notOwn *cgroup.NotOwnError
	var notTaken *cgroup.NotTakenError
	var takenOver *cgroup.TakenOverError
	fmt.Printf("step=%s\t", step)
	switch {
	case err == nil:
		fmt.Println("result=ok")
	case errors.As(err, &notOwn):
		fmt.Printf("result=not-own\ttext=%s\n", notOwn.Reason)
	case errors.As(err, &notTaken):
		fmt.Printf("result=not-taken\tfile=%s\twrote=%s\teffective=%s\ttext=%v\n", notTaken.File, notTaken.Wrote, notTaken.Effective, err)
	case errors.As(err, &takenOver):
		fmt.Printf("result=taken-over\tfile=%s\twrote=%s\tfound=%s\ttext=%v\n", takenOver.File, takenOver.Wrote, takenOver.Found, err)
	default:
		fmt.Printf("result=error\ttext=%v\n", err)
	}
}
