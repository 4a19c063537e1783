// Package console shows on every active console of a node who it is and how it stands.
//
// Serial consoles get plain lines, one for each thing that changed, so that what records them can be read and parsed:
// "kingpost: node NAME key SHA256:...", "kingpost: state STATE", "kingpost: api https://ADDR:7443",
// "kingpost: raise step 3/10 NAME STATE: REASON", "kingpost: warning ...", "kingpost: error ...". Virtual terminals
// get the same lines as one block that is drawn anew. It never blocks its callers: a console that takes no bytes loses
// lines, nothing else. It reads no input. Start with Open, then Console.Line and Console.Show.
package console

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Prefix starts every line.
const Prefix = "kingpost: "

// queued is how many lines wait for a slow console before new ones are dropped.
const queued = 256

// kept is how many of the last plain lines are kept for virtual terminals, which show as many as fit.
const kept = 40

// Console is all consoles of a node. It is safe for concurrent use.
type Console struct {
	mu    sync.Mutex
	sinks []*sink
	shown []string // the block, as last shown
	view  *Screen  // the same for screens
	tail  []string // last plain lines
}

// sink is one console with its writer.
type sink struct {
	w       io.WriteCloser
	screen  bool
	lines   chan string
	dropped int
	drawn   string // what a screen shows
	done    chan struct{}
}

// Open opens the consoles named in active, the text of /sys/class/tty/console/active ("tty0 ttyS0"), below dev. Where none
// can be opened it takes dev/console.
func Open(active, dev string) *Console {
	c := &Console{}
	for _, name := range strings.Fields(active) {
		if strings.ContainsAny(name, "/.") {
			continue
		}
		if f, err := openTTY(dev + "/" + name); err == nil {
			c.Add(f, isScreen(name))
		}
	}
	if len(c.sinks) == 0 {
		if f, err := openTTY(dev + "/console"); err == nil {
			c.Add(f, false)
		}
	}
	return c
}

// openTTY opens a console so that it never becomes anybody's controlling terminal and does not wait for a carrier.
func openTTY(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	// Writes themselves block: each console has a goroutine of its own, and half a line helps nobody.
	if err := unix.SetNonblock(fd, false); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

// isScreen tells a virtual terminal (tty0, tty1) from serial lines (ttyS0, ttyAMA0, hvc0).
func isScreen(name string) bool {
	n, ok := strings.CutPrefix(name, "tty")
	return ok && n != "" && strings.Trim(n, "0123456789") == ""
}

// Add adds a console: a screen is drawn anew, anything else gets plain lines.
func (c *Console) Add(w io.WriteCloser, screen bool) {
	s := &sink{w: w, screen: screen, lines: make(chan string, queued), done: make(chan struct{})}
	go s.run()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sinks = append(c.sinks, s)
}

func (s *sink) run() {
	defer close(s.done)
	for text := range s.lines {
		// A console that went away is no reason to stop: it may come back.
		_, _ = io.WriteString(s.w, text)
	}
	s.w.Close()
}

func (s *sink) put(text string) {
	if s.dropped > 0 && !s.screen { // a screen is drawn whole each time
		text = fmt.Sprintf("%s%d lines were lost here\n", Prefix, s.dropped) + text
	}
	select {
	case s.lines <- text:
		s.dropped = 0
	default:
		s.dropped++
	}
}

// Line writes one line, without its prefix, to every console.
func (c *Console) Line(format string, args ...any) {
	line := clean(fmt.Sprintf(format, args...))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tail = append(c.tail, line)
	if len(c.tail) > kept {
		c.tail = c.tail[len(c.tail)-kept:]
	}
	for _, s := range c.sinks {
		if !s.screen {
			s.put(Prefix + line + "\n")
		}
	}
	c.draw()
}

// Show makes lines the block. Serial consoles get those that were not in the block before, a whole block only at first.
func (c *Console) Show(lines []string) {
	clean := cleaned(lines)
	c.show(lines, plainScreen(clean))
}

func cleaned(lines []string) []string {
	out := make([]string, len(lines))
	for i, l := range lines {
		out[i] = clean(l)
	}
	return out
}

// show is Show with what screens show instead of the lines.
func (c *Console) show(lines []string, view *Screen) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := map[string]bool{}
	for _, l := range c.shown {
		before[l] = true
	}
	var news strings.Builder
	next := cleaned(lines)
	for _, l := range next {
		if !before[l] {
			news.WriteString(Prefix + l + "\n")
		}
	}
	c.shown, c.view = next, view
	for _, s := range c.sinks {
		if !s.screen && news.Len() > 0 {
			s.put(news.String())
		}
	}
	c.draw()
}

// draw puts view and tail on every screen that shows something else. The caller holds the lock.
func (c *Console) draw() {
	view := c.view
	if view == nil {
		view = plainScreen(nil)
	}
	for _, s := range c.sinks {
		if !s.screen {
			continue
		}
		cols, rows := s.size()
		if text := view.draw(c.tail, cols, rows); text != s.drawn {
			s.drawn = text
			s.put(text)
		}
	}
}

// size is how many characters a screen has across and down. It grows when a graphics driver takes over from the firmware.
func (s *sink) size() (cols, rows int) {
	f, ok := s.w.(*os.File)
	if !ok {
		return leastCols, leastRows
	}
	rc, err := f.SyscallConn()
	if err != nil {
		return leastCols, leastRows
	}
	cols, rows = leastCols, leastRows
	// Not Fd(), which would make the file block for good.
	_ = rc.Control(func(fd uintptr) {
		if w, err := unix.IoctlGetWinsize(int(fd), unix.TIOCGWINSZ); err == nil && w.Col > 0 && w.Row > 0 {
			cols, rows = int(w.Col), int(w.Row)
		}
	})
	return cols, rows
}

// Flush waits until what was written is on the consoles, but at most as long as stop stays open. No line may follow.
func (c *Console) Flush(stop <-chan struct{}) {
	c.mu.Lock()
	sinks := c.sinks
	c.sinks = nil
	c.mu.Unlock()
	for _, s := range sinks {
		close(s.lines)
	}
	for _, s := range sinks {
		select {
		case <-s.done:
		case <-stop:
			return
		}
	}
}

// maxLine bounds a line, in bytes.
const maxLine = 400

// clean keeps what comes from elsewhere (names, reasons, a program's last words) from moving the cursor or forging lines.
func clean(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\r' || r == '\t':
			return ' '
		case r < ' ' || r >= 0x7f && r < 0xa0:
			return -1
		}
		return r
	}, s)
	if len(s) > maxLine {
		s = strings.ToValidUTF8(s[:maxLine], "") + "..."
	}
	return strings.TrimSpace(s)
}
