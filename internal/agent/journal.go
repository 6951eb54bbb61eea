package agent

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"time"

	systemd "github.com/coreos/go-systemd/v22/journal"

	"gputune/internal/journal"
)

// logPatience is how long a line waits for a journal that is busy. See
// journal.Writer.
const logPatience = 100 * time.Millisecond

// Logger returns the log of a service: systemd's journal at socket, with a field for
// each attribute, where standard error is the journal, else lines to w. The journal
// is nil where the log does not go there. One that hangs later costs lines, and
// keeps nobody waiting.
func Logger(w io.Writer, socket string) (*slog.Logger, *journal.Writer) {
	if ours, err := systemd.StderrIsJournalStream(); err == nil && ours && socket != "" {
		to := &journal.Writer{Path: socket, Patience: logPatience}
		if to.Connect() == nil {
			return slog.New(journalHandler{send: to.Send}), to
		}
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelInfo})), nil
}

// journalHandler writes records to the journal: the message as people read it,
// and each attribute as a field GPUTUNE_<KEY>, so that "journalctl
// GPUTUNE_JOB=42" finds what was done about a job.
type journalHandler struct {
	send  func(journal.Entry) error
	attrs []slog.Attr
	group string
}

// Enabled implements slog.Handler.
func (journalHandler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= slog.LevelInfo
}

// Handle implements slog.Handler.
func (h journalHandler) Handle(_ context.Context, r slog.Record) error {
	entry := journal.Entry{Message: r.Message, Priority: priority(r.Level)}
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
		entry.Fields = append(entry.Fields, journal.Field{Name: "GPUTUNE_" + a.Key, Value: value})
		entry.Message += fmt.Sprintf("%s%s %s", separator, a.Key, value)
		separator = ", "
	}
	return h.send(entry)
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

func priority(level slog.Level) journal.Priority {
	switch {
	case level >= slog.LevelError:
		return journal.Error
	case level >= slog.LevelWarn:
		return journal.Warning
	default:
		return journal.Info
	}
}
