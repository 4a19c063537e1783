package main

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Bounds of what a message may say: more is no message but somebody's data.
const (
	maxMessageLine = 2000 // bytes
	maxMessage     = 64 << 10
)

// printable is a message as it may go to a terminal. What other people's files, nodes and programs say is part of it, and
// must not move the cursor, change colours or fill the screen: what is no character to be seen is written as an escape.
func printable(s string) string {
	rest := 0
	if len(s) > maxMessage {
		rest = len(s) - maxMessage
		s = s[:maxMessage]
	}
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		lines[i] = printableLine(strings.TrimSuffix(line, "\r"))
	}
	s = strings.Join(lines, "\n")
	if rest > 0 {
		s += fmt.Sprintf("\n... and %d bytes more", rest)
	}
	return s
}

// escaping writes what people read: names and values of images, nodes and modules are part of it, and escaped as in
// messages, but whole. Who writes to it writes whole characters.
type escaping struct{ w io.Writer }

func (s *escaping) Write(p []byte) (int, error) {
	lines := strings.Split(string(p), "\n")
	for i, line := range lines {
		lines[i] = escaped(line, len(p)*8)
	}
	if _, err := io.WriteString(s.w, strings.Join(lines, "\n")); err != nil {
		return 0, err
	}
	return len(p), nil
}

func printableLine(s string) string { return escaped(s, maxMessageLine) }

// escaped is one line with what is no character to be seen written as an escape, and what is beyond about most bytes
// only counted.
func escaped(s string, most int) string {
	var b strings.Builder
	for at := 0; at < len(s); {
		if b.Len() > most {
			fmt.Fprintf(&b, "... and %d bytes more", len(s)-at)
			break
		}
		r, n := utf8.DecodeRuneInString(s[at:])
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, "\\x%02x", s[at])
		case r == '\t' || unicode.IsPrint(r):
			b.WriteRune(r)
		case r < 0x80:
			fmt.Fprintf(&b, "\\x%02x", r)
		default:
			fmt.Fprintf(&b, "\\u%04x", r)
		}
		at += n
	}
	return b.String()
}
