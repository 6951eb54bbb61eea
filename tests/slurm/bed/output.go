package bed

import (
	"bytes"
	"context"
	"strings"
	"sync"
)

// output collects what a command prints and lets others look at it meanwhile.
type output struct {
	mu      sync.Mutex
	changed chan struct{} // closed and replaced with every change
	closed  bool
	stdout  bytes.Buffer
	stderr  bytes.Buffer
}

func newOutput() *output { return &output{changed: make(chan struct{})} }

// stream is the writer for one of the two buffers.
type stream struct {
	output *output
	buffer *bytes.Buffer
}

func (s stream) Write(text []byte) (int, error) {
	s.output.mu.Lock()
	defer s.output.mu.Unlock()
	s.output.signal()
	return s.buffer.Write(text)
}

// signal wakes who waits; the caller holds mu.
func (o *output) signal() {
	close(o.changed)
	o.changed = make(chan struct{})
}

// close says that nothing more will come.
func (o *output) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	o.signal()
}

func (o *output) texts() (stdout, stderr string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.stdout.String(), o.stderr.String()
}

// wait returns nil when text has been printed, errEnded when it never will be,
// and ctx's reason when ctx ends first.
func (o *output) wait(ctx context.Context, text string) error {
	for {
		o.mu.Lock()
		found := strings.Contains(o.stdout.String(), text) || strings.Contains(o.stderr.String(), text)
		closed, changed := o.closed, o.changed
		o.mu.Unlock()
		switch {
		case found:
			return nil
		case closed:
			return errEnded
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
