package supervise

import (
	"context"
	"sync"
	"time"

	"kingpost/internal/mesh"
)

// instance is a running workload under supervision.
type instance struct {
	w        workload
	run      *runRecord    // the workload's; Spec is changed under the unit's mu
	exited   chan struct{} // closed when the process has ended
	outcomes chan outcome  // one entry per check
	stop     context.CancelFunc
	wait     sync.WaitGroup

	since   time.Time // of the host's knowledge of it, by the runtime's monotonic clock
	health  checks
	ready   checks
	was     bool          // ready, at some time
	good    bool          // it was written down as the last good one
	taken   *spec         // the declared spec that run.Spec was made from
	recheck chan struct{} // the declared checks changed
}

// checks is what the checks of one kind have said.
type checks struct {
	passed   bool // health: once; ready: lately
	failures int  // in a row
	err      error
}

// outcome is what one check said.
type outcome struct {
	ready bool // it was of readiness
	err   error
}

// take takes in the outcome of a check. Health, once passed, is lost by a restart alone; readiness comes and goes.
func (i *instance) take(o outcome, u *unit) {
	c := &i.health
	if o.ready {
		c = &i.ready
	}
	if o.err == nil {
		*c = checks{passed: true}
		return
	}
	c.failures++
	c.err = o.err
	if h := u.check(i, true); o.ready && h != nil && c.failures >= retries(h) {
		c.passed = false
	}
}

// isReady says whether others may use it. Checks that are not declared have passed.
func (i *instance) isReady(u *unit) bool {
	return (i.health.passed || u.check(i, false) == nil) && (i.ready.passed || u.check(i, true) == nil)
}

// trouble is what the latest failed check said.
func (i *instance) trouble() error {
	if i.health.err != nil {
		return i.health.err
	}
	return i.ready.err
}

// is says whether it is what want asks for.
func (i *instance) is(want *spec) bool {
	return i.taken == want || i.run.Spec.satisfies(i.run.Source, want)
}

// release lets go of the workload without touching it.
func (i *instance) release() {
	i.stop()
	i.w.release()
	i.wait.Wait()
}

// watch takes a running workload under supervision: one that was started, or one that was adopted.
// taken is the declared spec that it was started for, nil for one that was adopted.
func (u *unit) watch(ctx context.Context, w workload, taken *spec) *instance {
	u.openLog()
	ictx, stop := context.WithCancel(ctx)
	i := &instance{
		w: w, run: w.record(), taken: taken, stop: stop, since: time.Now(),
		exited: make(chan struct{}), outcomes: make(chan outcome), recheck: make(chan struct{}, 2),
	}
	i.wait.Go(func() {
		if w.wait() == nil {
			close(i.exited)
		}
	})
	for _, ready := range []bool{false, true} {
		i.wait.Go(func() { u.ask(ictx, i, ready) })
	}
	return i
}

// ask makes the checks of one kind, those of the wanted spec, so that a changed check counts at once.
func (u *unit) ask(ctx context.Context, i *instance, ready bool) {
	// At first often, so that readiness is seen when it comes; then at the declared interval.
	wait := 20 * time.Millisecond
	for started := true; ; {
		t := time.NewTimer(wait)
		if u.check(i, ready) == nil {
			t.Stop() // until the check that is declared comes
		}
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-i.exited:
			t.Stop()
			return
		case <-i.recheck:
			t.Stop()
			wait = 20 * time.Millisecond
			continue
		case <-t.C:
		}
		h := u.check(i, ready)
		if h == nil {
			continue
		}
		err := i.w.check(ctx, h)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			started = false
		}
		interval := h.Interval.Or(5 * time.Second)
		if started {
			wait = min(wait*3/2, time.Second, interval)
		} else {
			wait = interval
		}
		select {
		case i.outcomes <- outcome{ready, err}:
		case <-ctx.Done():
			return
		case <-i.exited:
			return
		}
	}
}

// check is the check, of health or of readiness, that counts for an instance; nil for none.
func (u *unit) check(i *instance, ready bool) *mesh.Health {
	u.mu.Lock()
	defer u.mu.Unlock()
	sp := i.run.Spec
	// Where something else runs than is wanted (the last good one, while the wanted one is known to fail), its own
	// check counts, or the check that nothing can pass would take it down as well.
	if u.want != nil && i.is(u.want) {
		sp = u.want
	}
	if ready {
		return sp.Ready
	}
	return sp.Health
}

func retries(h *mesh.Health) int {
	if h.Retries > 0 {
		return h.Retries
	}
	return 3
}
