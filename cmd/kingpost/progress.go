package main

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"kingpost/internal/mesh/hostapi"
)

// progress shows how a raise goes.
type progress interface {
	show(hostapi.RaiseStatus)
	note(format string, args ...any)
	close()
}

// newProgress is a bar on a terminal and plain lines off one.
func newProgress(w io.Writer) progress {
	if isTerminal(w) {
		return newBar(w)
	}
	return &plain{w: w, seen: map[int]string{}}
}

// stepLine is what is said of a step once it is over, and every so often before.
func stepLine(s hostapi.RaiseStep, total int) string {
	line := fmt.Sprintf("[%2d/%d] %s: ", s.Number, total, s.Name)
	switch {
	case s.State == "done":
		return line + fmt.Sprintf("done in %.1f s", s.Seconds)
	case s.State == "refused":
		return line + "refused: " + s.Reason
	}
	return line + s.Reason
}

// plain writes a line when a step ends and when its reason changes, the latter at most every few seconds.
type plain struct {
	w    io.Writer
	seen map[int]string // by step, the last line written
	last time.Time      // of the last reason
}

const plainEvery = 2 * time.Second

func (p *plain) show(st hostapi.RaiseStatus) {
	for _, s := range st.Steps {
		for _, text := range s.Warnings {
			key := -s.Number*1000 - len(text)
			if p.seen[key] != text {
				p.seen[key] = text
				p.note("[%2d/%d] %s: warning: %s", s.Number, len(st.Steps), s.Name, text)
			}
		}
		if s.State == "pending" || s.State == "running" && s.Reason == "" {
			continue
		}
		line := stepLine(s, len(st.Steps))
		if p.seen[s.Number] == line || s.State == "running" && time.Since(p.last) < plainEvery {
			continue
		}
		if s.State == "running" {
			p.last = time.Now()
		}
		p.seen[s.Number] = line
		p.note("%s", line)
	}
}

func (p *plain) note(format string, args ...any) {
	fmt.Fprintln(p.w, printable(fmt.Sprintf(format, args...)))
}
func (p *plain) close() {}

// bar is one bar of ten steps, with the step under way and its reason beside it; steps that are over
// are written above it.
type bar struct {
	p    *mpb.Progress
	bar  *mpb.Bar
	mu   sync.Mutex
	said string
	over map[int]bool
}

func newBar(w io.Writer) *bar {
	b := &bar{p: mpb.New(mpb.WithOutput(w), mpb.WithWidth(30)), over: map[int]bool{}}
	b.bar = b.p.New(10, mpb.BarStyle(),
		mpb.PrependDecorators(decor.Name("raise ")),
		mpb.AppendDecorators(decor.Any(func(decor.Statistics) string {
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.said
		})))
	return b
}

func (b *bar) show(st hostapi.RaiseStatus) {
	done := 0
	for _, s := range st.Steps {
		if s.State != "done" {
			continue
		}
		done++
		if b.over[s.Number] {
			continue
		}
		b.over[s.Number] = true
		for _, text := range s.Warnings {
			b.note("[%2d/%d] %s: warning: %s", s.Number, len(st.Steps), s.Name, text)
		}
		b.note("%s", stepLine(s, len(st.Steps)))
	}
	b.mu.Lock()
	b.said = ""
	if st.Step >= 1 && st.Step <= len(st.Steps) && st.State != "done" {
		b.said = " " + stepLine(st.Steps[st.Step-1], len(st.Steps))
	}
	b.mu.Unlock()
	if done < len(st.Steps) {
		b.bar.SetCurrent(int64(done))
	}
}

func (b *bar) note(format string, args ...any) {
	fmt.Fprintln(b.p, printable(fmt.Sprintf(format, args...)))
}

func (b *bar) close() {
	if b.bar.Completed() || b.bar.Aborted() {
		return
	}
	b.bar.Abort(true)
	b.p.Wait()
}
