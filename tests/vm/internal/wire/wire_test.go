package wire

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
)

func TestFramesComeBackAsSent(t *testing.T) {
	var b bytes.Buffer
	w := NewWriter(&b)
	sent := []Frame{
		{Type: Hello},
		{Type: Stdout, ID: 7, Payload: []byte("a\x00b\n")},
		{Type: Stderr, ID: 1 << 31, Payload: bytes.Repeat([]byte{0xff}, MaxPayload)},
	}
	for _, f := range sent {
		if err := w.Write(f.Type, f.ID, f.Payload); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.WriteJSON(Exit, 9, Status{Code: 137, TimedOut: true}); err != nil {
		t.Fatal(err)
	}
	for _, want := range sent {
		got, err := Read(&b)
		if err != nil || got.Type != want.Type || got.ID != want.ID || !bytes.Equal(got.Payload, want.Payload) {
			t.Errorf("read type %d id %d %d bytes, %v; sent type %d id %d %d bytes",
				got.Type, got.ID, len(got.Payload), err, want.Type, want.ID, len(want.Payload))
		}
	}
	f, err := Read(&b)
	if err != nil {
		t.Fatal(err)
	}
	var s Status
	if err := f.Decode(&s); err != nil || s != (Status{Code: 137, TimedOut: true}) {
		t.Errorf("status %+v, %v", s, err)
	}
	if _, err := Read(&b); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v, want io.EOF", err)
	}
}

func TestReadRefusesWhatIsNoFrame(t *testing.T) {
	for _, c := range []struct {
		name, stream, want string
	}{
		{"type 0", "\x00\x00\x00\x00\x01\x00\x00\x00\x00", "unknown type 0"},
		{"type after the last", "\x0b\x00\x00\x00\x01\x00\x00\x00\x00", "unknown type 11"},
		{"text", "Kernel panic - not syncing", "unknown type 75"},
		{"too long", "\x06\x00\x00\x00\x01\x00\x01\x00\x01", "65537 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Read(strings.NewReader(c.stream))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error with %q", err, c.want)
			}
		})
	}
	for _, cut := range []string{"\x06\x00\x00", "\x06\x00\x00\x00\x01\x00\x00\x00\x02", "\x06\x00\x00\x00\x01\x00\x00\x00\x02x"} {
		if _, err := Read(strings.NewReader(cut)); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("stream cut after %d bytes: %v, want io.ErrUnexpectedEOF", len(cut), err)
		}
	}
}

func TestWriteRefusesTooMuch(t *testing.T) {
	var b bytes.Buffer
	if err := NewWriter(&b).Write(Stdout, 1, make([]byte, MaxPayload+1)); err == nil || b.Len() != 0 {
		t.Errorf("got %v and %d bytes written, want an error and none", err, b.Len())
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte("\x06\x00\x00\x00\x01\x00\x00\x00\x02xy"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, stream []byte) {
		r := bytes.NewReader(stream)
		var back bytes.Buffer
		w := NewWriter(&back)
		for {
			fr, err := Read(r)
			if err != nil {
				break
			}
			if err := w.Write(fr.Type, fr.ID, fr.Payload); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.HasPrefix(stream, back.Bytes()) {
			t.Errorf("%q read and written is %q", stream, back.Bytes())
		}
	})
}
