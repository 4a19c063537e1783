// Package timeline keeps when each phase of a boot ended, from the kernel's start to the host's first answer, so that a
// slow boot can be read instead of guessed.
//
// It measures nothing by itself: the caller passes the time since the kernel started. Start with Timeline.Mark.
package timeline

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
)

// Phase is one stretch of a boot.
type Phase struct {
	Name string `json:"name"`
	// End is when it ended, in seconds since the kernel started.
	End float64 `json:"end"`
}

// Timeline is a list of phases that follow each other. It is safe for concurrent use.
type Timeline struct {
	now    func() time.Duration
	mu     sync.Mutex
	phases []Phase
}

// New returns an empty timeline; now is the time since the kernel started (CLOCK_BOOTTIME).
func New(now func() time.Duration) *Timeline { return &Timeline{now: now} }

// Mark ends the phase name now.
func (t *Timeline) Mark(name string) {
	at := t.now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.phases = append(t.phases, Phase{name, at.Seconds()})
}

// Phases returns what was marked, in order.
func (t *Timeline) Phases() []Phase {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]Phase(nil), t.phases...)
}

// String is "5.21s: kernel 1.90, modules 0.31, ...": the whole, then how long each phase took.
func (t *Timeline) String() string {
	p := t.Phases()
	if len(p) == 0 {
		return "nothing measured"
	}
	var parts []string
	last := 0.0
	for _, q := range p {
		parts = append(parts, fmt.Sprintf("%s %.2f", q.Name, q.End-last))
		last = q.End
	}
	return fmt.Sprintf("%.2fs: %s", last, strings.Join(parts, ", "))
}

// Save writes the timeline as JSON.
func (t *Timeline) Save(path string) error {
	b, err := json.Marshal(t.Phases())
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}
