package sample

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Question is one line from the agent to the process that samples.
type Question struct {
	Devices []string `json:"devices"`
	All     bool     `json:"all"` // also what moves by errors alone
}

// Answer is the line that comes back.
type Answer struct {
	Readings []Reading `json:"readings"`
	// Used is the processor time of the process so far, in seconds.
	Used float64 `json:"used_seconds"`
}

// Serve answers questions with what source says until there are no more.
func Serve(source Source, questions *json.Decoder, answers io.Writer) (err error) {
	defer func() { err = errors.Join(err, source.Close()) }()
	encoder := json.NewEncoder(answers)
	for {
		var q Question
		switch err := questions.Decode(&q); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		a := Answer{Readings: []Reading{}}
		for _, device := range q.Devices {
			a.Readings = append(a.Readings, source.Read(device, q.All))
		}
		a.Used = used().Seconds()
		if err := encoder.Encode(a); errors.Is(err, os.ErrClosed) || errors.Is(err, unix.EPIPE) {
			return nil // nobody wants to know
		} else if err != nil {
			return err
		}
	}
}

// used returns the processor time of this process.
func used() time.Duration {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
