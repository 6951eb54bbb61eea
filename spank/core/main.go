// Without these the runtime keeps two cgroup files open, to follow CPU limits.

//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0

// Command core is the Go half of the plugin, built as libgputune.so. The C half
// loads it into slurmstepd's own process, never into one that was forked from
// it, and calls its four functions with the page that both share.
//
// It is a guest there: it starts no goroutine that outlives a call, turns every
// panic into an error, and sets its runtime itself. The user's environment does
// not reach it; slurmd's own may.
package main

/*
#cgo CFLAGS: -Wall -Wextra -Werror
#include "../abi/gputune_core.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"unsafe"

	"golang.org/x/sys/unix"

	"gputune/internal/idset"
	"gputune/internal/option"
	"gputune/internal/step"
)

// memoryLimit is where garbage is collected after all. A step allocates a few
// megabytes; collecting them would cost more than they are worth.
const memoryLimit = 64 << 20

func init() {
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(memoryLimit)
	debug.SetTraceback("none")
}

func main() {}

// session is the one step of this slurmstepd.
var session struct {
	step  *step.Step
	tasks []step.Task
}

// guard runs f and gives an error or a panic to fail.
func guard(p *C.struct_gputune_page, fail func(*C.struct_gputune_page, error), f func(*page) error) (status C.int) {
	defer func() {
		if r := recover(); r != nil {
			fail(p, fmt.Errorf("fault in gputune: %v", r))
			status = -1
		}
	}()
	if p.abi != C.GPUTUNE_ABI {
		fail(p, fmt.Errorf("plugin and core are of different versions (%d and %d)", p.abi, C.GPUTUNE_ABI))
		return -1
	}
	if err := f((*page)(p)); err != nil {
		fail(p, err)
		return -1
	}
	return 0
}

//export gputune_core_limit
func gputune_core_limit(p *C.struct_gputune_page) C.int {
	swap := func(p *C.struct_gputune_page, err error) { put(p.swap[:], err.Error()) }
	return guard(p, swap, func(page *page) error {
		return step.NoSwap("/", int(page.slots()[0].pid))
	})
}

func fail(p *C.struct_gputune_page, err error) {
	p.state = C.GPUTUNE_FAILED
	var unaccepted *step.OptionError
	if errors.As(err, &unaccepted) {
		p.strict = 1 // nobody can say what was meant: the task must not run as if it had been done
	}
	put(p.error[:], err.Error())
}

//export gputune_core_open
func gputune_core_open(p *C.struct_gputune_page) C.int {
	return guard(p, fail, func(page *page) error {
		request := page.request()
		if bind, err := option.ParseBind(request.Option, option.DefaultBind()); err == nil && !bind.On && request.MIG == "" {
			page.state = C.GPUTUNE_OFF
			return nil
		}
		s, err := step.Open(request)
		if err != nil {
			return err
		}
		session.step = s
		return page.opened(s)
	})
}

//export gputune_core_locate
func gputune_core_locate(p *C.struct_gputune_page) C.int {
	return guard(p, fail, func(page *page) error {
		session.tasks = make([]step.Task, len(page.slots()))
		for i := range page.slots() {
			session.tasks[i] = step.Task{LocalID: i, PID: int(page.slots()[i].pid)}
		}
		if err := session.step.Locate(session.tasks); err != nil {
			return err
		}
		for i, task := range session.tasks {
			put(page.slots()[i].join[:], task.Join)
		}
		page.openDevices(session.step)
		return nil
	})
}

//export gputune_core_bind
func gputune_core_bind(p *C.struct_gputune_page) C.int {
	return guard(p, fail, func(page *page) error {
		page.closeDevices()
		for i := range session.tasks {
			slot := &page.slots()[i]
			session.tasks[i].Access = gpuSet(slot.access)
			if slot.probe_errno != 0 && session.tasks[i].Probed == nil {
				session.tasks[i].Probed = unix.Errno(slot.probe_errno)
			}
		}
		result, err := session.step.Bind(session.tasks)
		if err != nil {
			return err
		}
		page.bound(session.step, result)
		return nil
	})
}

func gpuSet(mask C.uint64_t) idset.Set { return idset.FromWords([]uint64{uint64(mask)}) }

func gpuMask(set idset.Set) C.uint64_t {
	if words := set.Words(); len(words) > 0 {
		return C.uint64_t(words[0])
	}
	return 0
}

// put writes text as a C string. What does not fit is cut, which shows.
func put(target []C.char, text string) {
	if len(text) >= len(target) && len(target) > len(cutMark) {
		text = text[:len(target)-1-len(cutMark)] + cutMark
	}
	n := min(len(text), len(target)-1)
	for i := range n {
		target[i] = C.char(text[i])
	}
	target[n] = 0
}

const cutMark = " …"

func putWords(target []C.uint64_t, set idset.Set) {
	words := set.Words()
	for i := range target {
		target[i] = 0
		if i < len(words) {
			target[i] = C.uint64_t(words[i])
		}
	}
}

func text(source []C.char) string {
	return C.GoString((*C.char)(unsafe.Pointer(&source[0])))
}
