package agent

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/coreos/go-systemd/v22/journal"
)

// Logger returns the log of a service: systemd's journal with a field for each
// attribute where standard error is the journal, else lines to w.
func Logger(w io.Writer) *slog.Logger {
	if ours, err := journal.StderrIsJournalStream(); err == nil && ours && journal.Enabled() {
		return slog.New(journalHandler{send: journal.Send})
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelInfo}))
}

// journalHandler writes records to the journal: the message as people read it,
// and each attribute as a field GPUTUNE_<KEY>, so that "journalctl
// GPUTUNE_JOB=42" finds what was done about a job.
type journalHandler struct {
	send  func(message string, priority journal.Priority, fields map[string]string) error
	attrs []slog.Attr
	group string
}

// Enabled implements slog.Handler.
func (journalHandler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= slog.LevelInfo
}

// Handle implements slog.Handler.
func (h journalHandler) Handle(_ context.Context, r slog.Record) error {
	fields := map[string]string{}
	message := r.Message
	separator := ": "
	attrs := append([]slog.Attr{}, h.attrs...)
	r.Attrs(func(a slog.Attr) bool {
		a.Key = h.group + a.Key
		attrs = append(attrs, a)
		return true
	})
	for _, a := range attrs {
		value := a.Value.Resolve().String()
		if value == "" {
			continue
		}
		fields[field(a.Key)] = value
		message += fmt.Sprintf("%s%s %s", separator, a.Key, value)
		separator = ", "
	}
	return h.send(message, priority(r.Level), fields)
}

// WithAttrs implements slog.Handler.
func (h journalHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	list := append([]slog.Attr{}, h.attrs...)
	for _, a := range attrs {
		a.Key = h.group + a.Key
		list = append(list, a)
	}
	h.attrs = list
	return h
}

// WithGroup implements slog.Handler.
func (h journalHandler) WithGroup(name string) slog.Handler {
	if name != "" {
		h.group += name + "_"
	}
	return h
}

// field is the journal's name for an attribute: capitals, digits and underscores
// (systemd.journal-fields(7)).
func field(key string) string {
	return "GPUTUNE_" + strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		}
		return '_'
	}, key)
}

func priority(level slog.Level) journal.Priority {
	switch {
	case level >= slog.LevelError:
		return journal.PriErr
	case level >= slog.LevelWarn:
		return journal.PriWarning
	default:
		return journal.PriInfo
	}
}
