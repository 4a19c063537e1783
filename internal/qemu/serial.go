package qemu

import (
	"context"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"sync"
)

// maxSerial bounds the text that Serial keeps in memory, and maxSerialFile what it writes to its file. A guest in a
// panic loop writes megabytes a minute.
const (
	maxSerial     = 4 << 20
	maxSerialFile = 64 << 20
)

// Serial is the captured console of a machine. It is a Writer: what the guest prints is written to it.
type Serial struct {
	mu      sync.Mutex
	text    []byte
	dropped int64 // bytes forgotten at the start of text
	file    *os.File
	written int64
	tee     io.Writer
	changed chan struct{} // closed and replaced at each write
	ended   bool
}

// newSerial captures into the file at path, and tee where it is not nil.
func newSerial(path string, tee io.Writer) (*Serial, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	return &Serial{file: f, tee: tee, changed: make(chan struct{})}, nil
}

func (s *Serial) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text = append(s.text, p...)
	if n := len(s.text) - maxSerial; n > maxSerial/4 {
		s.text = append([]byte(nil), s.text[n:]...)
		s.dropped += int64(n)
	}
	// A full disk or a closed terminal must not stop the guest: the text in memory is what waits are made on.
	if s.written < maxSerialFile {
		n, _ := s.file.Write(p)
		if s.written += int64(n); s.written >= maxSerialFile {
			fmt.Fprintf(s.file, "\n[the console wrote more than %d MiB; the rest is not kept]\n", maxSerialFile>>20)
		}
	}
	if s.tee != nil {
		s.tee.Write(p)
	}
	close(s.changed)
	s.changed = make(chan struct{})
	return len(p), nil
}

// end says that nothing more will come.
func (s *Serial) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	s.file.Close()
	close(s.changed)
	s.changed = make(chan struct{})
}

// Mark is a place in the console's text, for Since and Wait.
type Mark int64

// Now is the end of the text.
func (s *Serial) Now() Mark {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Mark(s.dropped + int64(len(s.text)))
}

// Since returns the text from m on, carriage returns and escape sequences removed.
func (s *Serial) Since(m Mark) string {
	text, _, _ := s.since(m)
	return text
}

func (s *Serial) since(m Mark) (string, <-chan struct{}, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	from := max(int64(m)-s.dropped, 0)
	return plain(s.text[min(from, int64(len(s.text))):]), s.changed, s.ended
}

// Wait waits until the text since m matches re, and returns the match and its groups. The error carries the last lines.
func (s *Serial) Wait(ctx context.Context, m Mark, re *regexp.Regexp) ([]string, error) {
	for {
		text, changed, ended := s.since(m)
		if match := re.FindStringSubmatch(text); match != nil {
			return match, nil
		}
		if ended {
			return nil, fmt.Errorf("the machine ended and its console never said %q; it ended with:\n%s", re, Tail(text, 15))
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for %q on the console: %w; it ends with:\n%s", re, context.Cause(ctx), Tail(text, 15))
		case <-changed:
		}
	}
}

// escapes matches terminal control sequences (ECMA-48) as firmware, boot loaders and consoles write them.
var escapes = regexp.MustCompile("\x1b(\\[[0-9;?=]*[A-Za-z]|[()][A-Z0-9]|[=>78cDEHM])|[\r\x00\x07]")

func plain(b []byte) string { return escapes.ReplaceAllString(string(b), "") }

// Tail is the last n lines of text.
func Tail(text string, n int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(lines[max(len(lines)-n, 0):], "\n")
}
