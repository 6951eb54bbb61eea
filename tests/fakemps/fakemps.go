// Package fakemps builds an nvidia-cuda-mps-control for tests: a program with
// the real one's options, commands, answers and files, that needs no GPU and
// has faults on demand.
//
// # What it does as the real one
//
// As measured with driver 580 (program version 13000), and so in the fake:
//
//   - "-d" returns when the daemon listens, "-f" is the daemon; its log goes to
//     control.log in CUDA_MPS_LOG_DIRECTORY, and with -f to standard output
//   - in CUDA_MPS_PIPE_DIRECTORY it makes the sockets control and
//     control_privileged, the file control_lock, the fifo log and
//     nvidia-cuda-mps-control.pid; quit removes the last two, a signal none
//   - without an option it reads commands, one a line, has the daemon carry them
//     out and prints what that answers; without a daemon it says "Cannot find MPS
//     control daemon process", exit status 1. What the daemon refuses looks like
//     what it does: exit status 0
//   - one command is carried out at a time; "quit" waits for the end of all
//     clients, "quit -t N" for N seconds, and nothing else is answered meanwhile
//   - a folder that it cannot write to and a daemon that is there already are
//     said on standard error, exit status 1
//   - the first client makes the daemon start a server, nvidia-cuda-mps-server,
//     which ends with it, in its session and with its environment
//   - programs of other users are refused
//
// The protocol on the sockets is the fake's own.
//
// # Clients
//
// The program cuda-client beside it is in place of a CUDA program. It connects
// as one would and prints one line:
//
//	server 715 percent 50.0 mem 4G uid 1000 gpus GPU-…
//	without MPS
//	MPS client failed to connect to the MPS control daemon or the MPS server
//
// the last with exit status 1. With an argument it stays connected for so long
// (1s, 1h) or until it is killed.
//
// # Faults
//
// Lines of the file "faults" beside the program, read at each start and for each
// command; # begins a comment. "job=N " before a fault is for the daemon whose
// pipe folder has a part N in its path:
//
//	start fail       ends at once with a line on standard error
//	start exit       listens, logs a line and ends
//	start hang       is there and never listens
//	start late 700ms listens after that time
//	die 300ms        ends so long after its start, as if killed
//	answer hang      takes commands and never answers
//	answer late 1s   answers after that time
//	quit refuse      answers quit and goes on
//	term ignore      takes no notice of SIGTERM
//	child leave      starts a child that takes no notice of SIGTERM and outlives it
//	limit ignore     does not take limits, as it does those that it refuses
package fakemps

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Names of the programs in a folder of Build.
const (
	ControlName = "nvidia-cuda-mps-control"
	ServerName  = "nvidia-cuda-mps-server"
	ClientName  = "cuda-client"
	faultsName  = "faults"
)

// Programs is a folder with the programs.
type Programs struct {
	Folder string // absolute
}

// Build compiles the programs into a folder, which it makes if need be. It needs
// the go command and has to run inside this module.
func Build(ctx context.Context, folder string) (Programs, error) {
	folder, err := filepath.Abs(folder)
	if err != nil {
		return Programs{}, err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return Programs{}, err
	}
	p := Programs{folder}
	build := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", p.Control(), "gputune/tests/fakemps/control")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return Programs{}, fmt.Errorf("fakemps: %w: %s", err, out)
	}
	for _, name := range []string{ServerName, ClientName} {
		link := filepath.Join(folder, name)
		if err := os.RemoveAll(link); err != nil {
			return Programs{}, err
		}
		if err := os.Symlink(ControlName, link); err != nil {
			return Programs{}, err
		}
	}
	return p, p.Faults()
}

// Control is the path of nvidia-cuda-mps-control.
func (p Programs) Control() string { return filepath.Join(p.Folder, ControlName) }

// Client is the path of the program in place of a CUDA program.
func (p Programs) Client() string { return filepath.Join(p.Folder, ClientName) }

// Faults replaces the faults by the given ones.
func (p Programs) Faults(faults ...string) error {
	path := filepath.Join(p.Folder, faultsName)
	if err := os.WriteFile(path+".new", []byte(strings.Join(faults, "\n")+"\n"), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
