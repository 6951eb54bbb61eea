package journal

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Priority is how important an entry is, as syslog(3) counts.
type Priority int

// The priorities that are used, of syslog(3)'s eight.
const (
	Error   Priority = 3
	Warning Priority = 4
	Info    Priority = 6
)

// Field is a value that the journal can be asked for, as systemd.journal-fields(7).
type Field struct {
	// Name is brought into the form that the journal takes: at most 64 capitals,
	// digits and underscores, with a capital first.
	Name string
	// Value is text. What is not printable would hide it from readers, and is
	// replaced: control characters but tab and newline by spaces.
	Value string
}

// Entry is one message with its fields.
type Entry struct {
	Message  string
	Priority Priority
	Fields   []Field
}

// encode returns an entry as the journal's socket takes it
// (systemd.io/JOURNAL_NATIVE_PROTOCOL). Values are no longer than longest bytes, 0
// as long as they are; one that is cut ends with a note.
func encode(e Entry, longest int) []byte {
	text := appendField(nil, Field{"MESSAGE", e.Message}, longest)
	text = appendField(text, Field{"PRIORITY", strconv.Itoa(int(e.Priority))}, longest)
	for _, f := range e.Fields {
		text = appendField(text, f, longest)
	}
	return text
}

func appendField(text []byte, f Field, longest int) []byte {
	name, value := fieldName(f.Name), cut(printable(f.Value), longest)
	if name == "" {
		return text
	}
	text = append(text, name...)
	if strings.Contains(value, "\n") {
		text = append(text, '\n')
		text = binary.LittleEndian.AppendUint64(text, uint64(len(value)))
	} else {
		text = append(text, '=')
	}
	text = append(text, value...)
	return append(text, '\n')
}

// nameMax is how long the journal lets a field's name be.
const nameMax = 64

// fieldName returns a name that the journal takes, "" where nothing is left of it.
func fieldName(name string) string {
	name = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		}
		return '_'
	}, name)
	name = strings.TrimLeft(name, "_0123456789") // an underscore first is the journal's own
	return name[:min(len(name), nameMax)]
}

// printable returns a text that readers of the journal show, and do not take for
// binary data: without control characters, and UTF-8.
func printable(value string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\t' && r != '\n' || r >= 0x7f && r <= 0x9f {
			return ' '
		}
		return r // utf8.RuneError for what is not UTF-8
	}, value)
}

func cut(value string, longest int) string {
	if longest == 0 || len(value) <= longest {
		return value
	}
	end := longest
	for end > 0 && !utf8.RuneStart(value[end]) {
		end--
	}
	return fmt.Sprintf("%s [cut: %d bytes in all]", value[:end], len(value))
}
