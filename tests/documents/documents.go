// Package documents finds the commands in documents, so that tests run what
// people are told to type.
package documents

import (
	"fmt"
	"strings"
)

// Block is a block of commands in a document.
type Block struct {
	// Line is that of the first command.
	Line int
	// Text has the commands, a line each.
	Text string
	// NotRun says why the block cannot be run, "" for one that can.
	NotRun string
	// Machine is what the block does in the virtual machine, such as "install";
	// "" for one that runs on loopback.
	Machine string
}

// What a comment before a block begins with.
const (
	notRun  = "<!-- not run:"
	machine = "<!-- in the virtual machine:"
)

// Blocks returns the blocks of a text in Markdown that are marked sh. A comment
// before a block says why it is not run, or what it does in the virtual machine:
//
//	<!-- not run: REASON -->
//	<!-- in the virtual machine: WHAT -->
func Blocks(text string) ([]Block, error) {
	var found []Block
	var next Block // what a comment has said of it
	indent, inside := "", false
	for i, line := range strings.Split(text, "\n") {
		trimmed := strings.TrimSpace(line)
		said, about := "", (*string)(nil)
		for prefix, target := range map[string]*string{notRun: &next.NotRun, machine: &next.Machine} {
			if rest, is := strings.CutPrefix(trimmed, prefix); is {
				said, about = strings.TrimSpace(strings.TrimSuffix(rest, "-->")), target
			}
		}
		switch {
		case inside && trimmed == "```":
			inside = false
		case inside:
			found[len(found)-1].Text += strings.TrimPrefix(line, indent) + "\n"
		case about != nil && said == "":
			return nil, fmt.Errorf("line %d: %s: want a word", i+1, trimmed)
		case about != nil:
			*about = said
		case trimmed == "```sh":
			indent, inside = line[:strings.Index(line, "`")], true
			next.Line = i + 2
			found = append(found, next)
			next = Block{}
		case trimmed != "" && next != (Block{}):
			return nil, fmt.Errorf("line %d: a comment on a block, and no block", i)
		}
	}
	if inside || next != (Block{}) {
		return nil, fmt.Errorf("a block or a comment on one without an end")
	}
	return found, nil
}
