package bed

import (
	"errors"
	"os/exec"
	"runtime"
	"sync"
)

var errStopped = errors.New("bed: it has been stopped")

// nursery starts children from one thread that lives as long as the bed.
// prctl(2), PR_SET_PDEATHSIG: the "parent" whose death sends the signal is the
// thread that forked, and Go ends threads when it likes.
type nursery struct {
	starts chan func()
	closed chan struct{}
	once   sync.Once
}

func newNursery() *nursery {
	n := &nursery{starts: make(chan func()), closed: make(chan struct{})}
	go func() {
		runtime.LockOSThread() // for good: the thread ends with this goroutine
		for {
			select {
			case start := <-n.starts:
				start()
			case <-n.closed:
				return
			}
		}
	}()
	return n
}

func (n *nursery) start(cmd *exec.Cmd) error {
	result := make(chan error, 1)
	select {
	case n.starts <- func() { result <- cmd.Start() }:
		return <-result
	case <-n.closed:
		return errStopped
	}
}

// close ends the thread, and by that the children that are left.
func (n *nursery) close() {
	n.once.Do(func() { close(n.closed) })
}
