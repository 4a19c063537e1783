package console

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// Screen is what a virtual terminal shows above the last lines: who the node is, how it stands, and what to do about it.
type Screen struct {
	Title string // left in the bar
	Right string // right in the bar
	Time  time.Time
	Rows  []Row
	// Alerts are shown between Rows and Hints, the gravest first.
	Alerts []Alert
	Hints  []string
}

// Row is a name and what it has; further values go on lines of their own.
type Row struct {
	Name   string
	Values []string
	Colour string // of the values; empty: as any text
}

// Alert is something that is not as it should be.
type Alert struct {
	Grave bool
	Text  string
}

// What a terminal understands (ECMA-48); Linux's own has these colours.
const (
	plain  = "\x1b[0m"
	bar    = "\x1b[0;1;37;44m"
	dim    = "\x1b[0;36m"
	bright = "\x1b[0;1;37m"
	green  = "\x1b[0;1;32m"
	yellow = "\x1b[0;1;33m"
	red    = "\x1b[0;1;31m"
)

// A terminal is at least this large; what is drawn is at most so wide, since longer lines are hard to read.
const (
	leastCols, leastRows = 80, 25
	mostCols             = 120
)

// nameWidth is the width of a Row's name with the blanks around it.
const nameWidth = 12

// canvas collects lines of at most cols cells, each cut there.
type canvas struct {
	cols  int
	lines []string
}

// add adds a line made of parts, each a colour and its text.
func (c *canvas) add(parts ...string) {
	var b strings.Builder
	left := c.cols
	for i := 0; i+1 < len(parts); i += 2 {
		text := cut(parts[i+1], left)
		left -= utf8.RuneCountInString(text)
		b.WriteString(parts[i] + text)
	}
	b.WriteString(plain)
	c.lines = append(c.lines, b.String())
}

// wrapped adds a text behind a mark, over at most most lines.
func (c *canvas) wrapped(colour, mark, text string, most int) {
	indent := strings.Repeat(" ", utf8.RuneCountInString(mark))
	for i, l := range wrap(text, c.cols-len(indent)-1, most) {
		if i > 0 {
			mark = indent
		}
		c.add(colour, mark+l)
	}
}

// draw is the screen as bytes for a terminal of cols by rows. tail are the last lines that were written; as many as fit are
// below. It never writes into the last cell, which would scroll.
func (s *Screen) draw(tail []string, cols, rows int) string {
	cols, rows = min(max(cols, leastCols), mostCols), max(rows, leastRows)
	c := &canvas{cols: cols}
	right := s.Right
	if !s.Time.IsZero() {
		right += "   " + s.Time.UTC().Format("2006-01-02 15:04 UTC")
	}
	right += " "
	left := cut(" "+s.Title, cols-utf8.RuneCountInString(right)-1)
	c.add(bar, left+strings.Repeat(" ", max(cols-utf8.RuneCountInString(left)-utf8.RuneCountInString(right), 1))+right)
	c.add(plain, "")
	for _, r := range s.Rows {
		for i, v := range r.Values {
			name := r.Name
			if i > 0 {
				name = ""
			}
			colour := r.Colour
			if colour == "" {
				colour = plain
			}
			c.add(dim, fmt.Sprintf("  %-*s", nameWidth-2, name), colour, v)
		}
	}
	if len(s.Alerts) > 0 {
		c.add(plain, "")
	}
	// Half of what is left is for alerts: the hints and some of the last lines have their place always.
	room := max((rows-len(c.lines)-len(s.Hints)-2)/2, 2)
	for i, a := range s.Alerts {
		colour, mark := yellow, "  ! "
		if a.Grave {
			colour, mark = red, "  x "
		}
		if room <= 1 && len(s.Alerts)-i > 1 {
			c.add(yellow, fmt.Sprintf("  ! and %d more: kingpost node status", len(s.Alerts)-i))
			break
		}
		before := len(c.lines)
		c.wrapped(colour, mark, a.Text, min(2, max(room, 1)))
		room -= len(c.lines) - before
	}
	if len(s.Hints) > 0 {
		c.add(plain, "")
	}
	for _, h := range s.Hints {
		c.wrapped(bright, "  ", h, 2)
	}
	c.add(plain, "")
	if n := rows - len(c.lines) - 2; n > 0 && len(tail) > 0 {
		c.add(dim, "  "+strings.Repeat("─", cols-4))
		for _, l := range tail[max(0, len(tail)-n):] {
			c.add(dim, "  "+l)
		}
	}
	if len(c.lines) > rows {
		c.lines = c.lines[:rows]
	}
	var b strings.Builder
	b.WriteString("\x1b[?25l\x1b[H") // no cursor; from the top, over what is there, so that nothing flickers
	for i, l := range c.lines {
		if i > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString("\x1b[K" + l) // cleared first: after a line that is full it would take its last cell
	}
	if len(c.lines) < rows {
		b.WriteString("\r\n\x1b[J")
	}
	return b.String()
}

// cut shortens a text to n cells and says so.
func cut(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	if n < 3 {
		return ""
	}
	return string([]rune(s)[:n-3]) + "..."
}

// wrap breaks a text between words into at most most lines of width cells; the last one is cut.
func wrap(text string, width, most int) []string {
	var out []string
	line := ""
	for _, word := range strings.Fields(text) {
		switch {
		case line == "":
			line = word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) <= width || len(out) == most-1:
			line += " " + word
		default:
			out = append(out, cut(line, width))
			line = word
		}
	}
	return append(out, cut(line, width))
}

// plainScreen shows a block of lines that nobody has put into rows: what the initrd and the rescue say.
func plainScreen(lines []string) *Screen {
	s := &Screen{Title: "KINGPOST"}
	for _, l := range lines {
		word, rest, _ := strings.Cut(l, " ")
		switch word {
		case "error", "warning":
			s.Alerts = append(s.Alerts, Alert{Grave: word == "error", Text: rest})
		case "rescue", "release", "state", "node", "disk", "api", "mesh":
			colour := ""
			if l == "state rescue" {
				colour = red
			}
			s.Rows = append(s.Rows, Row{Name: word, Values: []string{rest}, Colour: colour})
		default:
			s.Hints = append(s.Hints, l)
		}
	}
	return s
}
