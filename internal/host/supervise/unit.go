package supervise

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
)

// unit is one resource's life. One goroutine owns it: step looks at what is wanted and what is there,
// does one thing, and says what to wait for. All fields below mu are for others to read or to leave a
// message in; everything else is the goroutine's alone.
type unit struct {
	s    *Supervisor
	key  string
	name string
	wake chan struct{} // something in the mailbox changed
	done chan struct{} // the goroutine has ended
	log  atomic.Pointer[logWriter]

	mu      sync.Mutex
	want    *spec // nil: removed
	restart bool
	retry   bool               // Clear was called
	cancel  context.CancelFunc // of a fetch under way
	view    hostapi.ResourceStatus
	ready   bool
	settled bool    // it is as declared
	active  *spec   // what runs, for those who order stops
	beside  []*spec // the other instances, in a handover
	starts  uint64

	inst    *instance
	next    *instance     // the new one of a handover, beside inst
	old     *instance     // one that was taken over from and is being stopped
	oldGone chan struct{} // closed when it has
	ends    sync.WaitGroup
	move    *hostapi.Handover // the latest; replaced, never changed
	steady  bool              // this step found what is declared running and ready
	backoff time.Time         // not before; zero: now
	why     string            // of the backoff
	// fetches that failed in a row
	misses int
	asks   bool // it waits for its turn to start
	// trial is a handover under way: from when on, and how often it has ended.
	trialSpec  string
	trialSince time.Time
	trialRuns  int
}

func newUnit(s *Supervisor, key string) *unit {
	u := &unit{s: s, key: key, name: nameOf(key), wake: make(chan struct{}, 1), done: make(chan struct{})}
	u.view = hostapi.ResourceStatus{Key: key, State: "waiting"}
	return u
}

// post leaves a message and wakes the goroutine.
func (u *unit) post(change func()) {
	u.mu.Lock()
	change()
	cancel := u.cancel
	u.mu.Unlock()
	if cancel != nil {
		cancel()
	}
	u.poke()
}

func (u *unit) poke() {
	select {
	case u.wake <- struct{}{}:
	default:
	}
}

// pause is what a step waits for beside the unit's own events.
type pause struct {
	until  time.Time // zero: no timer
	others bool      // a change of any other resource
	gone   bool      // the unit has ended
}

func (u *unit) loop(ctx context.Context) {
	defer close(u.done)
	defer u.leave()
	defer u.s.turns.back(u)
	for ctx.Err() == nil {
		changed := u.s.Changed()
		u.asks = false
		p := u.step(ctx)
		if !u.asks && !u.starting() {
			u.s.turns.back(u)
		}
		if p.gone {
			return
		}
		if !p.others {
			changed = nil
		}
		if p.until.IsZero() {
			u.await(ctx, changed, nil)
			continue
		}
		t := time.NewTimer(time.Until(p.until))
		u.await(ctx, changed, t.C)
		t.Stop()
	}
}

// starting reports whether the start is under way for which the unit has its turn.
func (u *unit) starting() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.misses == 0 && (u.view.State == "fetching" || u.view.State == "starting")
}

func (u *unit) await(ctx context.Context, changed <-chan struct{}, timer <-chan time.Time) {
	exited, said := u.inst.events()
	nextExited, nextSaid := u.next.events()
	select {
	case <-ctx.Done():
	case <-u.wake:
	case <-changed:
	case <-timer:
	case <-exited:
	case <-nextExited:
	case <-u.oldGone:
		u.forgetOld()
	case o := <-said:
		u.inst.take(o, u)
	case o := <-nextSaid:
		u.next.take(o, u)
	}
}

func (i *instance) events() (exited <-chan struct{}, said <-chan outcome) {
	if i == nil {
		return nil, nil
	}
	return i.exited, i.outcomes
}

// leave lets go of the workloads without touching them.
func (u *unit) leave() {
	u.ends.Wait() // it gives up when the host goes
	for _, i := range []*instance{u.inst, u.next, u.old} {
		if i != nil {
			i.release()
		}
	}
	if l := u.log.Swap(nil); l != nil {
		l.close()
	}
}

// show changes what others see; they are told when it did change.
func (u *unit) show(state, reason string) {
	ready := u.inst != nil && u.inst.isReady(u) || state == "done" || state == "present"
	u.mu.Lock()
	v := u.view
	v.State, v.Reason = state, reason
	v.PID, v.Since, v.Restarts, v.Epoch, v.Source, v.Digest, v.Seats, v.Wanted = 0, time.Time{}, 0, 0, "", "", nil, nil
	sp := u.want
	if sp != nil {
		v.Wanted = &hostapi.Wanted{Type: sp.Type, Digest: sp.Digest, Source: sp.Source}
	}
	active, beside := u.active, u.beside
	u.active, u.beside = nil, nil
	for _, i := range []*instance{u.inst, u.next, u.old} {
		switch {
		case i == nil:
		case u.active == nil:
			u.active = i.run.Spec
		default:
			u.beside = append(u.beside, i.run.Spec)
		}
	}
	if u.inst != nil {
		r := u.inst.run
		v.PID, v.Since, v.Restarts, v.Epoch, v.Source = r.PID, r.Since, r.Restarts, r.Epoch, r.Source
		v.Digest, v.Seats = r.Spec.Digest, r.Spec.Seats
		sp = r.Spec
	} else if sp != nil {
		v.Digest, v.Seats = sp.Digest, sp.Seats
	}
	if sp != nil {
		v.Module, v.ID, v.Type, v.Critical = sp.Module, sp.ID, sp.Type, sp.Critical
	}
	v.Exit = u.s.state.get(u.key).Exit
	v.Handover = u.move
	v.Ready = ready
	settled := u.steady || state == "done" || state == "present"
	same := reflect.DeepEqual(v, u.view) && ready == u.ready && settled == u.settled && active == u.active && slices.Equal(beside, u.beside)
	u.view, u.ready, u.settled = v, ready, settled
	u.mu.Unlock()
	if !same {
		u.s.notify()
	}
}

// target is what should run now: what is wanted, or the last good spec while the wanted one is known to fail.
func (u *unit) target(want *spec) (t *spec, fallback string) {
	st := u.s.state.get(u.key)
	if st.Failed == "" {
		return want, ""
	}
	if st.Failed != want.verdict() {
		u.save(func(s *unitState) { s.Failed, s.FailedReason = "", "" })
		return want, ""
	}
	good := u.s.good(u.key)
	if good == nil || good.id() == want.id() {
		return want, ""
	}
	return good, st.FailedReason
}

func (u *unit) save(change func(*unitState)) {
	if err := u.s.state.unit(u.key, change); err != nil {
		u.s.warn("keep the state of %s: %v", u.key, err)
	}
}

// step does one thing.
func (u *unit) step(ctx context.Context) pause {
	u.mu.Lock()
	want, restart, retry := u.want, u.restart, u.retry
	u.restart, u.retry = false, false
	u.mu.Unlock()
	stopping := u.s.stopping()
	u.steady = false

	if retry {
		u.save(func(s *unitState) {
			s.Failures, s.Held, s.Reason, s.Spec, s.Failed, s.FailedReason = 0, false, "", "", "", ""
		})
		u.backoff, u.misses, u.trialSpec = time.Time{}, 0, ""
		u.unfinish()
	}
	if u.next != nil && u.next.run.Stopping { // the host before has begun to stop it
		u.drop(ctx, "it was being stopped")
		return pause{until: time.Now()}
	}
	if u.inst != nil && u.inst.run.Stopping {
		u.halt(ctx, "it was being stopped")
		return pause{until: time.Now()}
	}
	for _, i := range []*instance{u.inst, u.next} {
		if i == nil {
			continue
		}
		select {
		case <-i.exited:
			u.ended(ctx, i)
			return pause{until: time.Now()}
		default:
		}
	}
	if want == nil || stopping {
		return u.wind(ctx, want == nil)
	}
	if !want.runs() {
		if !u.haltAll(ctx, "is a "+string(want.Type)+" now") { // it was a workload once
			return pause{}
		}
		return u.ensure(want)
	}
	if restart {
		u.backoff, u.trialSpec = time.Time{}, ""
		u.unfinish()
		if !u.haltAll(ctx, "restart asked for") {
			return pause{}
		}
	}
	target, fallback := u.target(want)
	if u.next != nil && !u.next.is(target) {
		u.drop(ctx, "something else is declared")
		u.moved("failed")
		return pause{until: time.Now()}
	}
	if u.inst == nil {
		return u.begin(ctx, target, fallback)
	}
	if !u.inst.is(target) {
		return u.handover(ctx, target)
	}
	return u.supervise(ctx, target, fallback)
}

// ensure is the whole life of a volume or file.
func (u *unit) ensure(want *spec) pause {
	if want.Type == mesh.KindVolume {
		note, err := u.s.below.volume(want)
		if err != nil {
			u.show("failed", err.Error())
			return pause{until: time.Now().Add(maxSourceDelay)}
		}
		u.show("present", note)
		return pause{}
	}
	// A file has no life of its own: each instance that mounts it has its copy.
	u.show("present", "")
	return pause{}
}

// begin starts target when nothing runs.
func (u *unit) begin(ctx context.Context, target *spec, fallback string) pause {
	st := u.s.state.get(u.key)
	id := target.id()
	done := func() pause {
		if fallback != "" {
			u.show("failed", "what is declared failed, and the last good one has ended: "+fallback)
		} else {
			u.show("done", "")
		}
		return pause{}
	}
	if target.Policy == mesh.PolicyOnce && st.Done == id {
		return done()
	}
	if p := target.Policy; p == mesh.PolicyOnFailure || p == mesh.PolicyNever {
		switch code, ended := u.finished(id); {
		case ended && code == 0:
			return done()
		case ended && p == mesh.PolicyNever:
			u.show("failed", fmt.Sprintf("it ended with code %d, and its policy is never to be started again; `clear` starts it", code))
			return pause{}
		}
	}
	if u.old != nil {
		u.show("waiting", "the one before is still stopping")
		return pause{}
	}
	if st.Spec != id && st.Spec != "" {
		// Another spec's failures do not count against this one.
		u.save(func(s *unitState) { s.Spec, s.Failures, s.Held, s.Reason = "", 0, false, "" })
		u.backoff, u.misses = time.Time{}, 0
		st = u.s.state.get(u.key)
	}
	if st.Held {
		u.show("held", st.Reason)
		return pause{}
	}
	if time.Now().Before(u.backoff) {
		u.show("backoff", u.why)
		return pause{until: u.backoff}
	}
	if dep, why := u.s.unready(target); dep != "" {
		u.show("waiting", "waits for "+dep+": "+why)
		return pause{others: true}
	}
	if u.asks = !u.s.turns.take(u, rank(target)); u.asks {
		u.show("waiting", "waits its turn: the node starts a few at a time")
		return pause{}
	}
	stored, err := u.fetch(ctx, target)
	if err == nil {
		return u.start(ctx, target, stored)
	}
	if good := u.s.good(u.key); u.misses >= patience && good != nil && good.id() != target.id() && ctx.Err() == nil {
		// A power cut came between the declaration and its bytes, and their source is not there. What ran
		// before is, and the handover goes on when the source is back.
		if stored, gerr := u.fetch(ctx, good); gerr == nil {
			u.s.info(u.key, "the last good one is started, since what is declared cannot be fetched: %v", err)
			return u.start(ctx, good, stored)
		}
	}
	return u.missed(ctx, err, "fetching")
}

// fetch has the target's bytes on disk and checked.
func (u *unit) fetch(ctx context.Context, target *spec) (*stored, error) {
	fctx, cancel := context.WithCancel(ctx)
	defer cancel()
	u.mu.Lock()
	u.cancel = cancel
	u.mu.Unlock()
	defer func() {
		u.mu.Lock()
		u.cancel = nil
		u.mu.Unlock()
	}()
	return u.s.below.fetch(fctx, target)
}

// missed waits after something outside was not there. It is no failure of the resource, so it is never held for it.
func (u *unit) missed(ctx context.Context, err error, state string) pause {
	if errors.Is(err, context.Canceled) {
		return pause{until: time.Now()}
	}
	u.misses++
	wait := sourceDelay << min(u.misses-1, 10)
	u.show(state, err.Error())
	return pause{until: time.Now().Add(min(wait, maxSourceDelay))}
}

func (u *unit) runningState() string {
	i := u.inst
	switch {
	case i == nil:
		return "starting"
	case i.isReady(u):
		i.was = true
		if i.run.Spec.Health != nil || i.run.Spec.Ready != nil {
			return "healthy"
		}
		return "running"
	case i.was:
		return "unready"
	}
	return "starting"
}

func (u *unit) showRunning(reason string) { u.show(u.runningState(), reason) }

// wind stops what runs, for good or for a power off, after those that depend on it.
func (u *unit) wind(ctx context.Context, removed bool) pause {
	if u.inst != nil || u.next != nil || u.old != nil {
		if dep := u.s.dependentAlive(u); dep != "" {
			u.show("stopping", "waits until "+dep+" has stopped")
			return pause{others: true, until: time.Now().Add(time.Second)}
		}
		if !u.haltAll(ctx, "no longer declared") {
			return pause{}
		}
	}
	if !removed {
		u.show("waiting", "the node is stopping")
		return pause{}
	}
	if !u.s.forget(u) {
		return pause{until: time.Now()} // it was declared again meanwhile
	}
	return pause{gone: true}
}
