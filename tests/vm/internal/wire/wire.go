// Package wire is the protocol between the runner on the host and the agent in the virtual machine: frames on one byte
// stream, a virtio-serial port. Commands run side by side, each under an id that the host chose.
//
// A frame is a type (1 byte), the id of the command it belongs to (4 bytes, big endian), the length of its payload
// (4 bytes, big endian) and the payload.
package wire

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
)

// MaxPayload is the most a frame carries, in bytes.
const MaxPayload = 64 << 10

const headerSize = 9

// Type says what a frame's payload is.
type Type byte

// The types of frames.
const (
	// Hello is sent once in each direction, by the host first: a guest that writes before its host end is attached
	// would lose what it wrote. The guest's payload is a Greeting; the host's is empty.
	Hello Type = iota + 1
	// Exec starts a command; payload Command.
	Exec
	// Kill ends a command and all that it started; no payload. An Exit frame follows as always.
	Kill
	// File begins writing a file; payload FileHeader. Data frames with the same id follow.
	File
	// Data is a piece of the file, an empty payload its end, upon which an Exit frame follows.
	Data
	// Stdout is a piece of what a command wrote there.
	Stdout
	// Stderr is a piece of what a command wrote there.
	Stderr
	// Exit is the last frame of a command or file; payload Status.
	Exit
	// Ping asks for a Pong with the same id; no payload.
	Ping
	// Pong answers a Ping.
	Pong
	lastType = Pong
)

// Greeting is what the guest says of itself.
type Greeting struct {
	// Uptime is the guest's /proc/uptime, in seconds.
	Uptime float64 `json:"uptime"`
	// Kernel is its release, as uname -r prints it.
	Kernel string `json:"kernel"`
}

// Command is a program to run.
type Command struct {
	// Argv is looked up in the PATH of Env.
	Argv []string `json:"argv"`
	// Env is the whole environment, K=V.
	Env []string `json:"env"`
	// Dir is the working directory.
	Dir string `json:"dir"`
	// Merge sends stderr as Stdout, through one pipe, so that the order of writing stays.
	Merge bool `json:"merge,omitempty"`
	// TimeoutMillis is after how long the command and all that it started is killed; 0 is never.
	TimeoutMillis int64 `json:"timeout_ms"`
}

// FileHeader says where the Data that follows goes. The file appears under its path when it is complete.
type FileHeader struct {
	Path string `json:"path"`
	// Mode has the permission bits.
	Mode uint32 `json:"mode"`
}

// Status is how a command or a file ended.
type Status struct {
	// Code is the exit status; 128 + n after signal n, as a shell says it.
	Code int `json:"code"`
	// TimedOut is set when the agent killed the command at its timeout.
	TimedOut bool `json:"timed_out,omitempty"`
	// Error is set when the command could not be started or the file not be written.
	Error string `json:"error,omitempty"`
}

// Frame is one message.
type Frame struct {
	Type    Type
	ID      uint32
	Payload []byte
}

// Decode unmarshals the payload of a frame whose type carries JSON.
func (f Frame) Decode(v any) error {
	if err := json.Unmarshal(f.Payload, v); err != nil {
		return fmt.Errorf("frame of type %d, command %d: %w", f.Type, f.ID, err)
	}
	return nil
}

// Read takes one frame off r. At the end of the stream it returns io.EOF, inside of a frame io.ErrUnexpectedEOF. A frame
// of unknown type or excessive length is an error: the stream is out of step and cannot be read on.
func Read(r io.Reader) (Frame, error) {
	var h [headerSize]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return Frame{}, err
	}
	f := Frame{Type: Type(h[0]), ID: binary.BigEndian.Uint32(h[1:])}
	n := binary.BigEndian.Uint32(h[5:])
	if f.Type == 0 || f.Type > lastType {
		return Frame{}, fmt.Errorf("frame of unknown type %d: the stream is out of step", f.Type)
	}
	if n > MaxPayload {
		return Frame{}, fmt.Errorf("frame of type %d with %d bytes, more than %d: the stream is out of step", f.Type, n, MaxPayload)
	}
	if n == 0 {
		return f, nil
	}
	f.Payload = make([]byte, n)
	if _, err := io.ReadFull(r, f.Payload); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return Frame{}, fmt.Errorf("frame of type %d: %w", f.Type, err)
	}
	return f, nil
}

// Writer puts frames on a stream; any number of goroutines may use it.
type Writer struct {
	mu sync.Mutex
	w  io.Writer
}

// NewWriter returns a Writer on w.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// Write sends one frame with at most MaxPayload bytes.
func (w *Writer) Write(t Type, id uint32, payload []byte) error {
	if len(payload) > MaxPayload {
		return fmt.Errorf("frame of type %d: %d bytes, more than the %d that a frame carries", t, len(payload), MaxPayload)
	}
	b := make([]byte, headerSize, headerSize+len(payload))
	b[0] = byte(t)
	binary.BigEndian.PutUint32(b[1:], id)
	binary.BigEndian.PutUint32(b[5:], uint32(len(payload)))
	b = append(b, payload...)
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, err := w.w.Write(b); err != nil {
		return fmt.Errorf("frame of type %d, command %d: %w", t, id, err)
	}
	return nil
}

// WriteJSON sends one frame with v as its payload.
func (w *Writer) WriteJSON(t Type, id uint32, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("frame of type %d, command %d: %w", t, id, err)
	}
	return w.Write(t, id, b)
}
