package host

import (
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"

	"kingpost/internal/host/supervise"
	"kingpost/internal/mesh"
)

// declared is a supervisor that has a declaration and does nothing.
type declared struct {
	supervise.API
	mu       sync.Mutex
	revision uint64
	changed  chan struct{}
}

func (d *declared) Declaration() (mesh.Declaration, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return mesh.Declaration{Version: mesh.Version{Epoch: 1, Revision: d.revision}}, true
}

func (d *declared) Changed() <-chan struct{} { d.mu.Lock(); defer d.mu.Unlock(); return d.changed }

func (d *declared) change(revision uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.revision = revision
	close(d.changed)
	d.changed = make(chan struct{})
}

// Case 3 of the issue: a crash that comes before anything could be corrected. A host that has failed before gives a
// correction the time to come, and goes on at once when it has.
func TestHesitation(t *testing.T) {
	for name, tt := range map[string]struct {
		hesitate time.Duration
		change   func(d *declared)
		want     time.Duration
	}{
		"not at all":               {0, func(*declared) {}, 0},
		"nothing comes":            {20 * time.Second, func(*declared) {}, 20 * time.Second},
		"something else changes":   {20 * time.Second, func(d *declared) { time.Sleep(time.Second); d.change(1) }, 20 * time.Second},
		"another declaration came": {20 * time.Second, func(d *declared) { time.Sleep(3 * time.Second); d.change(2) }, 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log := logrus.New()
				log.SetOutput(io.Discard)
				d := &declared{revision: 1, changed: make(chan struct{})}
				h := &Host{cfg: Config{Hesitate: tt.hesitate, Log: log}, super: d}
				start := time.Now()
				go tt.change(d)
				h.hesitate(t.Context())
				if took := time.Since(start); took != tt.want {
					t.Errorf("it took %s, want %s", took, tt.want)
				}
			})
		})
	}
}
