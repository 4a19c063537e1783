package main

import (
	"fmt"
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

func printableLine(s string) string {
	var b strings.Builder
	for at := 0; at < len(s); {
		if b.Len() > maxMessageLine {
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
