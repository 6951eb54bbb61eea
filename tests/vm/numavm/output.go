package numavm

import (
	"io"
	"strings"
	"sync"
)

// output collects what a command writes and passes it on. After end nothing is passed on any more, since the command's
// caller has gone.
type output struct {
	mu    sync.Mutex
	text  strings.Builder
	err   error
	ended bool
}

func (o *output) add(b []byte, w io.Writer) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended {
		return
	}
	o.text.Write(b)
	if w == nil || o.err != nil {
		return
	}
	_, o.err = w.Write(b)
}

// end returns all that was written and the first error in passing it on.
func (o *output) end() (string, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = true
	return o.text.String(), o.err
}
