// Program control is the fake nvidia-cuda-mps-control, nvidia-cuda-mps-server and
// cuda-client of package fakemps, by the name that it is called by.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	var err error
	switch filepath.Base(os.Args[0]) {
	case "nvidia-cuda-mps-server":
		// Ends with the daemon, which holds the other end.
		_, err = io.Copy(io.Discard, os.Stdin)
	case "cuda-client":
		err = client(os.Args[1:])
	default:
		err = control(os.Args[1:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

const usage = "CUDA MPS Control for Linux/Unix/QNX.\nnvidia-cuda-mps-control [-h|-v|-d|-f]"

func control(arguments []string) error {
	option := ""
	if len(arguments) > 0 {
		option = arguments[0]
	}
	switch option {
	case "":
		return userInterface()
	case "-d", "--daemon":
		return background()
	case "-f", "--forground":
		return foreground(os.Stdout)
	case "--in-background": // the fake's own
		return inBackground()
	case "-v":
		fmt.Println("CUDA MPS Control for Linux/Unix/QNX. Binary version: 13000")
		return nil
	default:
		fmt.Println(usage)
		return nil
	}
}

// folder returns the folder that a variable names, or the real one's default.
func folder(variable, standard string) string {
	if f := os.Getenv(variable); f != "" {
		return f
	}
	return standard
}

func pipes() string { return folder("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps") }
func logs() string  { return folder("CUDA_MPS_LOG_DIRECTORY", "/var/log/nvidia-mps") }

func inPipes(name string) string { return filepath.Join(pipes(), name) }

// fault returns what the faults file says about something, as "fail" about
// "start"; "" if it says nothing.
func fault(what string) string {
	program, err := os.Executable()
	if err != nil {
		return ""
	}
	text, err := os.ReadFile(filepath.Join(filepath.Dir(program), "faults"))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		line, _, _ = strings.Cut(line, "#")
		fields := strings.Fields(line)
		if len(fields) > 0 && strings.HasPrefix(fields[0], "job=") {
			if !slices.Contains(strings.Split(pipes(), "/"), fields[0][len("job="):]) {
				continue
			}
			fields = fields[1:]
		}
		if len(fields) > 1 && fields[0] == what {
			return strings.Join(fields[1:], " ")
		}
	}
	return ""
}

// late waits as a fault "late DURATION" says.
func late(text string) {
	if d, found := strings.CutPrefix(text, "late "); found {
		if wait, err := time.ParseDuration(d); err == nil {
			time.Sleep(wait)
		}
	}
}

var errNoDaemon = errors.New("Cannot find MPS control daemon process") //nolint:staticcheck // the real one's words

// userInterface is the program without an option.
func userInterface() error {
	connection, err := net.Dial("unix", inPipes("control"))
	if err != nil {
		return errNoDaemon
	}
	defer connection.Close()
	answers := bufio.NewReader(connection)
	if _, err := io.WriteString(connection, "UI\n"); err != nil {
		return err
	}
	for commands := bufio.NewScanner(os.Stdin); commands.Scan(); {
		if _, err := fmt.Fprintln(connection, commands.Text()); err != nil {
			return err
		}
		for {
			line, err := answers.ReadString('\n')
			if err != nil {
				if strings.HasPrefix(commands.Text(), "quit") {
					return nil
				}
				return fmt.Errorf("connection to the daemon: %w", err)
			}
			if line == ".\n" {
				break
			}
			fmt.Print(line)
		}
	}
	return nil
}

// client is a program that uses CUDA.
func client(arguments []string) error {
	connection, err := net.Dial("unix", inPipes("control"))
	if errors.Is(err, unix.EACCES) {
		return errRefused
	}
	if err != nil {
		fmt.Println("without MPS")
		return nil
	}
	defer connection.Close()
	fmt.Fprintf(connection, "CLIENT %s\n", folder("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100"))
	answer, err := bufio.NewReader(connection).ReadString('\n')
	if err != nil {
		return errRefused
	}
	fmt.Print(answer)
	if len(arguments) == 0 {
		return nil
	}
	stay, err := time.ParseDuration(arguments[0])
	if err != nil {
		return err
	}
	time.Sleep(stay)
	return nil
}

var errRefused = errors.New("MPS client failed to connect to the MPS control daemon or the MPS server")

// background starts the daemon and returns when it listens.
func background() error {
	if err := writable(); err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	daemon := exec.Command(program, "--in-background")
	daemon.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	daemon.ExtraFiles = []*os.File{write}
	daemon.Stderr = os.Stderr
	if err := daemon.Start(); err != nil {
		return err
	}
	write.Close()
	if _, err := io.ReadFull(read, make([]byte, 1)); err != nil {
		return daemon.Wait()
	}
	return nil
}

// inBackground is the daemon that background has started. Descriptor 3 is told
// when it listens.
func inBackground() error {
	log, err := os.OpenFile(filepath.Join(logs(), "control.log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	return foreground(log)
}

// writable says what the real one says about a pipe folder that it cannot use.
func writable() error {
	if unix.Access(pipes(), unix.W_OK|unix.X_OK) != nil {
		return fmt.Errorf("Cannot access CUDA_MPS_PIPE_DIRECTORY=%s", pipes()) //nolint:staticcheck // the real one's words
	}
	return nil
}
