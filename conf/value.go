package conf

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"gputune/internal/option"
)

// The types of values. Each reads itself, so that an error can say what would
// be accepted; the decoder adds file, line and key.

// Path is a file or folder: absolute, or empty where the key's comment says
// what that means.
type Path string

// UnmarshalTOML implements toml.Unmarshaler.
func (p *Path) UnmarshalTOML(value any) error {
	text, isText := value.(string)
	if !isText || text != "" && !filepath.IsAbs(text) || strings.ContainsRune(text, 0) {
		return wrong(value, `an absolute path, such as "/run/gputune"`)
	}
	*p = Path(text)
	return nil
}

// Duration is a time that a program may take.
type Duration time.Duration

// Bounds of a Duration. Less is no time to talk to a GPU in; more is not what a
// job should wait.
const (
	minDuration = time.Second
	maxDuration = time.Hour
)

// UnmarshalTOML implements toml.Unmarshaler.
func (d *Duration) UnmarshalTOML(value any) error {
	text, isText := value.(string)
	duration, err := time.ParseDuration(text)
	if !isText || err != nil || duration < minDuration || duration > maxDuration {
		return wrong(value, fmt.Sprintf("a time from %v to %v, such as %q", minDuration, maxDuration, "30s"))
	}
	*d = Duration(duration)
	return nil
}

// Refusal is what becomes of a job whose option the node or the site refuses.
type Refusal string

// The values of on_refusal.
const (
	RefusalFails Refusal = "fail" // its steps on that node fail
	RefusalWarns Refusal = "warn" // it runs without, and says so
)

// UnmarshalTOML implements toml.Unmarshaler.
func (r *Refusal) UnmarshalTOML(value any) error {
	switch text, _ := value.(string); Refusal(text) {
	case RefusalFails, RefusalWarns:
		*r = Refusal(text)
		return nil
	}
	return wrong(value, `"fail" or "warn"`)
}

// Number is a bound in the key's unit; 0 is none.
type Number uint32

const maxNumber = 100_000

// UnmarshalTOML implements toml.Unmarshaler.
func (n *Number) UnmarshalTOML(value any) error {
	number, isNumber := value.(int64)
	if !isNumber || number < 0 || number > maxNumber {
		return wrong(value, fmt.Sprintf("a whole number from 0 to %d", maxNumber))
	}
	*n = Number(number)
	return nil
}

// MiB is a size in MiB; 0 is no bound.
type MiB uint64

const maxMiB = 1 << 30

// UnmarshalTOML implements toml.Unmarshaler.
func (m *MiB) UnmarshalTOML(value any) error {
	number, isNumber := value.(int64)
	if !isNumber || number < 0 || number > maxMiB {
		return wrong(value, fmt.Sprintf("a whole number from 0 to %d", maxMiB))
	}
	*m = MiB(number)
	return nil
}

// Switch is yes or no.
type Switch bool

// UnmarshalTOML implements toml.Unmarshaler.
func (s *Switch) UnmarshalTOML(value any) error {
	on, isBool := value.(bool)
	if !isBool {
		return wrong(value, "true or false")
	}
	*s = Switch(on)
	return nil
}

// Modes are compute modes.
type Modes []option.ComputeMode

// UnmarshalTOML implements toml.Unmarshaler.
func (m *Modes) UnmarshalTOML(value any) error {
	texts, ok := list(value)
	*m = Modes{}
	for _, text := range texts {
		mode, err := option.ParseComputeMode(text)
		ok = ok && err == nil
		*m = append(*m, mode)
	}
	if !ok {
		return wrong(value, `a list of "shared", "exclusive" and "prohibited"`)
	}
	return nil
}

// list returns the texts of a list, and whether it is one.
func list(value any) (texts []string, ok bool) {
	values, ok := value.([]any)
	for _, value := range values {
		text, isText := value.(string)
		ok = ok && isText
		texts = append(texts, text)
	}
	return texts, ok
}

func wrong(value any, accepts string) error {
	if text, isText := value.(string); isText {
		return fmt.Errorf("%q: want %s", text, accepts)
	}
	return fmt.Errorf("%v: want %s", value, accepts)
}
