//go:build gpu

package hw

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// process is a running program of cuda.c.
type process struct {
	*exec.Cmd
	input  io.WriteCloser
	lines  chan string
	errors bytes.Buffer
	seen   []string
}

// start starts one as the user with this id, with these variables and none of
// another MPS daemon.
func start(t *testing.T, program string, uid uint32, variables []string, arguments ...string) *process {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	p := &process{Cmd: exec.CommandContext(ctx, program, arguments...), lines: make(chan string, 64)}
	p.Dir = "/"
	// A pipe folder of nobody's keeps a daemon at the usual place out of this.
	p.Env = append([]string{"PATH=" + os.Getenv("PATH"), "LD_LIBRARY_PATH=" + os.Getenv("LD_LIBRARY_PATH"), "CUDA_MPS_PIPE_DIRECTORY=/nonexistent"}, variables...)
	p.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	p.Stderr = &p.errors
	var err error
	if p.input, err = p.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	output, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.lines)
		for scanner := bufio.NewScanner(output); scanner.Scan(); {
			p.lines <- scanner.Text()
		}
	}()
	return p
}

// until reads lines until one begins with word, and returns its other words.
func (p *process) until(t *testing.T, word string) []string {
	t.Helper()
	for line := range p.lines {
		p.seen = append(p.seen, line)
		if words := strings.Fields(line); len(words) > 0 && words[0] == word {
			return words[1:]
		}
	}
	err := p.Wait()
	t.Fatalf("%s ended before %q: %v: %s%s", p.Path, word, err, strings.Join(p.seen, "\n"), &p.errors)
	return nil
}

// goOn lets it do what its arguments say.
func (p *process) goOn(t *testing.T) {
	t.Helper()
	if _, err := io.WriteString(p.input, "go\n"); err != nil {
		t.Fatal(err)
	}
}

// end lets it end by itself.
func (p *process) end(t *testing.T) {
	t.Helper()
	if err := p.input.Close(); err != nil {
		t.Error(err)
	}
	if err := p.ended(); err != nil {
		t.Errorf("%s: %v: %s", p.Path, err, &p.errors)
	}
}

// ended waits for its end, and returns how it ended.
func (p *process) ended() error {
	for line := range p.lines {
		p.seen = append(p.seen, line)
	}
	return p.Wait()
}

// device is a GPU as the program sees it.
type device struct {
	uuid, pci       string
	multiprocessors int
}

func (p *process) devices(t *testing.T) []device {
	t.Helper()
	p.until(t, "ready")
	var all []device
	for _, line := range p.seen {
		if words := strings.Fields(line); words[0] == "device" {
			n, err := strconv.Atoi(words[4])
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, device{words[2], words[3], n})
		}
	}
	return all
}

// kernels lets the processes run kernels at the same time and returns what
// each measured, in ms.
func kernels(t *testing.T, processes ...*process) []float64 {
	t.Helper()
	for _, p := range processes {
		p.goOn(t)
	}
	times := make([]float64, len(processes))
	for i, p := range processes {
		words := p.until(t, "kernel")
		var err error
		if times[i], err = strconv.ParseFloat(words[0], 64); err != nil || times[i] <= 0 {
			t.Fatalf("kernel %v: %v", words, err)
		}
		p.until(t, "done")
	}
	return times
}
