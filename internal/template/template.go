// Package template fills in the environment variables that a site gives its
// tasks: NCCL_IB_HCA = "={nic}". It does no I/O.
package template

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Place is where a task is, as templates can say it. Empty is not known.
type Place struct {
	NIC   string   // the network device nearest to the task's GPUs: mlx5_0
	NICs  []string // all that are as near
	Nodes string   // the NUMA nodes of its GPUs, as the kernel writes a list: 0-1
}

// The words that stand for something in a template.
const (
	wordNIC  = "nic"
	wordNICs = "nics"
	wordNode = "node"
)

// Forms says what a template may have, for messages.
const Forms = "text with {nic}, {nics} or {node} in it; {{ and }} are braces"

// piece is text, or a word that stands for something.
type piece struct {
	text string
	word bool
}

// Template is the value of a variable with words in braces.
type Template struct{ pieces []piece }

// NeedsNIC tells whether a network device is in the template.
func (t Template) NeedsNIC() bool {
	return slices.ContainsFunc(t.pieces, func(p piece) bool { return p.word && p.text != wordNode })
}

const maxLength = 1000

// Parse reads a template.
func Parse(text string) (Template, error) {
	fail := func(reason string) (Template, error) {
		return Template{}, fmt.Errorf("%.80q: %s: want %s", text, reason, Forms)
	}
	if len(text) > maxLength || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return fail(fmt.Sprintf("longer than %d bytes, or with control characters", maxLength))
	}
	var t Template
	plain := ""
	for rest := text; rest != ""; {
		switch {
		case strings.HasPrefix(rest, "{{"), strings.HasPrefix(rest, "}}"):
			plain, rest = plain+rest[:1], rest[2:]
		case rest[0] == '{':
			word, after, closed := strings.Cut(rest[1:], "}")
			if !closed || !slices.Contains([]string{wordNIC, wordNICs, wordNode}, word) {
				return fail("a brace with none of the words")
			}
			t.pieces = append(t.pieces, piece{text: plain}, piece{word, true})
			plain, rest = "", after
		case rest[0] == '}':
			return fail("a brace that nothing opens")
		default:
			plain, rest = plain+rest[:1], rest[1:]
		}
	}
	t.pieces = append(t.pieces, piece{text: plain})
	return t, nil
}

// ErrUnknown is a template that needs what is not known of a task.
var ErrUnknown = errors.New("not known here")

// Fill returns the value at a place, or ErrUnknown.
func (t Template) Fill(p Place) (string, error) {
	words := map[string]string{wordNIC: p.NIC, wordNICs: strings.Join(p.NICs, ","), wordNode: p.Nodes}
	var b strings.Builder
	for _, piece := range t.pieces {
		text := piece.text
		if piece.word {
			if text = words[piece.text]; text == "" {
				return "", fmt.Errorf("{%s}: %w", piece.text, ErrUnknown)
			}
		}
		b.WriteString(text)
	}
	return b.String(), nil
}

// CheckName returns an error unless a variable may be set by a template. Those
// that say what is loaded into a process are not, nor those of Slurm and gputune.
func CheckName(name string) error {
	const signs = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_"
	if name == "" || len(name) > 128 || strings.Trim(name, signs) != "" || name[0] >= '0' && name[0] <= '9' {
		return fmt.Errorf("%.80q: want the name of a variable: letters, digits and _, no digit first", name)
	}
	for _, prefix := range []string{"LD_", "SLURM", "SPANK_", "GPUTUNE_", "PATH", "HOME", "SHELL", "USER", "CUDA_VISIBLE_DEVICES"} {
		if strings.HasPrefix(name, prefix) {
			return fmt.Errorf("%s: variables that begin with %s are not set by templates", name, prefix)
		}
	}
	return nil
}

// Filled are variables for one task.
type Filled struct {
	Set  map[string]string
	Kept []string         // the user had set them, in order
	Left map[string]error // what they need is not known
}

// Fill fills in all templates for a task. What the user has set, to whatever
// value, stays.
func Fill(templates map[string]Template, p Place, isSet func(name string) bool) Filled {
	f := Filled{Set: map[string]string{}, Left: map[string]error{}}
	for _, name := range slices.Sorted(maps.Keys(templates)) {
		if isSet(name) {
			f.Kept = append(f.Kept, name)
			continue
		}
		value, err := templates[name].Fill(p)
		if err != nil {
			f.Left[name] = err
			continue
		}
		f.Set[name] = value
	}
	return f
}
