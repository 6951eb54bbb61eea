// Package setting knows the values of a machine that gputune changes for a job
// and puts back after it: one file for each, one registry over them.
//
// A setting has a key ("gpu/GPU-5c4b…/clocks.sm"), is read and written as a
// string, and can be made again from its key alone, which is all that a later
// program finds in the ledger. Values are canonical: two values are the same
// exactly if their strings are, so that "is still what we set" is a comparison
// of strings.
//
// To add a setting, write a file with a type that implements Setting and an
// init function that calls register. Nothing else changes.
//
// The package changes nothing by itself. Package ledger is the one caller of
// Write, because it alone remembers what was there before.
package setting

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// Setting is one value of the machine.
type Setting interface {
	// Key names the setting, as Parse takes it.
	Key() string

	// Traits says what the ledger has to know. They depend on the kind of
	// setting alone, never on the machine's state.
	Traits() Traits

	// Check returns the canonical form of a value that Write would accept on
	// this machine. A value that the machine cannot take is a *ValueError; a
	// machine without the setting is ErrUnsupported. It may read the machine
	// and changes nothing.
	Check(ctx context.Context, value string) (string, error)

	// Read returns the present value in canonical form. A write-only setting
	// returns ErrWriteOnly.
	Read(ctx context.Context) (string, error)

	// Write sets a canonical value and, unless the setting is write-only,
	// reads it back; another value than the one written is an error, save for
	// a loose setting.
	Write(ctx context.Context, value string) error
}

// Stepwise is a loose setting that can tell its own unfinished work from what
// somebody else has set meanwhile.
type Stepwise interface {
	Setting

	// Between tells whether a value can be what is left of a change from one value
	// to another, or of the way back, that was not finished. A value that is not
	// is somebody else's and stays. It reads nothing of the machine.
	Between(from, to, value string) bool
}

// Needs is what a job has to own for a setting to be its own to change.
type Needs int

// What a setting may need.
const (
	WholeGPU  Needs = iota + 1 // the GPU in the key, and no part of it is another job's
	WholeNode                  // the node, alone
)

// String returns the words for people.
func (n Needs) String() string {
	switch n {
	case WholeGPU:
		return "whole GPU"
	case WholeNode:
		return "whole node"
	default:
		return fmt.Sprintf("Needs(%d)", int(n))
	}
}

// Lifetime is how long the machine keeps a value by itself.
type Lifetime string

// Lifetimes. Their texts are part of the ledger's files.
const (
	UntilReboot Lifetime = "boot"     // kernel and drivers start with their default again
	Kept        Lifetime = "hardware" // the hardware remembers it over a reboot
	// WhileThere is the value of a thing that comes and goes, as a cgroup or an
	// interrupt of a driver, and that is new when it comes again. Read returns
	// ErrGone when there is none: nothing is left that could be put back.
	WhileThere Lifetime = "thing"
)

// Traits are the facts about a setting that decide how it is put back.
type Traits struct {
	Needs    Needs
	Lifetime Lifetime

	// WriteOnly marks a value that nothing can read back, as NVIDIA's locked
	// clocks. Neutral is then what is taken to be there before a job, and
	// writing it undoes every other value.
	WriteOnly bool
	Neutral   string

	// Loose marks a setting whose Write can end at a value that is neither
	// the one before nor the one asked for: the kernel rounds it, or it takes
	// several steps and can be killed between two. While a write of gputune is
	// unfinished, every such value counts as gputune's doing.
	Loose bool
}

// What goes wrong with a setting, for errors.Is.
var (
	ErrUnknownKey  = errors.New("no such setting")
	ErrUnsupported = errors.New("not supported")
	ErrWriteOnly   = errors.New("cannot be read back")
	ErrGone        = errors.New("not there")
	ErrInUse       = errors.New("in use")
	ErrDenied      = errors.New("permission denied")
	// ErrPassing is what can be otherwise a moment later: a driver that timed out
	// or did not know why it failed.
	ErrPassing = errors.New("failed for the moment")
)

// Passes tells whether what went wrong can pass by itself within seconds, also
// since programs that use something are about to end.
func Passes(err error) bool {
	return errors.Is(err, ErrPassing) || errors.Is(err, ErrInUse)
}

// ValueError is a value that the machine cannot take.
type ValueError struct {
	Of      string // what it is for: "gpu 0000:07:00.0"
	Value   string // setting, value and unit as asked: "clocks 9999 MHz"
	Accepts string // what would work: "supported 345–1980 MHz"
	Nearest string // the canonical value nearest to the one asked for; "" if none is near
}

// Error returns the line that a user reads.
func (e *ValueError) Error() string { return e.Of + ": " + e.Value + ": " + e.Accepts }

// ReadBackError is a write after which something else was read.
type ReadBackError struct {
	Of, Wrote, Read string
}

// Error names what was written and what is there.
func (e *ReadBackError) Error() string {
	return fmt.Sprintf("%s: wrote %s, but it reads %s", e.Of, e.Wrote, e.Read)
}

// shown makes a value from a user fit for one line of an error: short, and
// without control characters.
func shown(value string) string {
	const most = 64
	clean := strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == '\uFFFD' {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(value, "?"))
	if runes := []rune(clean); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return clean
}
