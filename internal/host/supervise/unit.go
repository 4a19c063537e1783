package supervise

import (
	"context"
	"errors"
	"fmt"
	"reflect"
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
	settled bool  // it is as declared
	active  *spec // what runs, for those who order stops
	starts  uint64

	inst     *instance
	steady   bool      // this step found what is declared running and ready
	finished string    // the on-failure spec that ended well since the host came
	backoff  time.Time // not before; zero: now
	why      string    // of the backoff
	// fetches that failed in a row
	misses int
	// trial is a handover under way: from when on, and how often it has ended.
	trialSpec  string
	trialSince time.Time
	trialRuns  int
}

// instance is a running workload.
type instance struct {
	run    *runRecord
	proc   *proc
	exited chan struct{} // closed when the process has ended
	health chan error    // one entry per check
	stop   context.CancelFunc
	wait   sync.WaitGroup

	ready     bool
	since     time.Time // of the host's knowledge of it, by the runtime's monotonic clock
	failures  int       // health checks failed in a row
	lastErr   error
	good      bool          // it was written down as the last good one
	recheck   chan struct{} // the declared check changed
	unpublish func()
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
	for ctx.Err() == nil {
		changed := u.s.Changed()
		p := u.step(ctx)
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

func (u *unit) await(ctx context.Context, changed <-chan struct{}, timer <-chan time.Time) {
	var exited chan struct{}
	var health chan error
	if u.inst != nil {
		exited, health = u.inst.exited, u.inst.health
	}
	select {
	case <-ctx.Done():
	case <-u.wake:
	case <-changed:
	case <-timer:
	case <-exited:
	case err := <-health:
		u.checked(err)
	}
}

// leave lets go of the workload without touching it.
func (u *unit) leave() {
	if u.inst != nil {
		u.inst.release()
	}
	if l := u.log.Swap(nil); l != nil {
		l.close()
	}
}

func (i *instance) release() {
	i.stop()
	if i.unpublish != nil {
		i.unpublish()
	}
	i.proc.close()
	i.wait.Wait()
}

// show changes what others see; they are told when it did change.
func (u *unit) show(state, reason string) {
	u.mu.Lock()
	v := u.view
	v.State, v.Reason = state, reason
	v.PID, v.Since, v.Restarts, v.Epoch, v.Source, v.Digest, v.Seats = 0, time.Time{}, 0, 0, "", "", nil
	sp := u.want
	if u.inst != nil {
		r := u.inst.run
		v.PID, v.Since, v.Restarts, v.Epoch, v.Source = r.PID, r.Since, r.Restarts, r.Epoch, r.Source
		v.Digest, v.Seats = r.Spec.Digest, r.Spec.Seats
		u.active = r.Spec
		sp = r.Spec
	} else {
		u.active = nil
		if sp != nil {
			v.Digest, v.Seats = sp.Digest, sp.Seats
		}
	}
	if sp != nil {
		v.Module, v.ID, v.Type, v.Critical = sp.Module, sp.ID, sp.Type, sp.Critical
	}
	v.Exit = u.s.state.get(u.key).Exit
	ready := u.inst != nil && u.inst.ready || state == "done" || state == "present"
	settled := u.steady || state == "done" || state == "present"
	same := reflect.DeepEqual(v, u.view) && ready == u.ready && settled == u.settled
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
		u.backoff, u.misses, u.trialSpec, u.finished = time.Time{}, 0, "", ""
	}
	if u.inst != nil {
		select {
		case <-u.inst.exited:
			u.ended(ctx)
			return pause{until: time.Now()}
		default:
		}
	}
	if want == nil || stopping {
		return u.wind(ctx, want == nil)
	}
	if !want.runs() {
		if u.inst != nil { // it was a workload once
			if !u.halt(ctx, "is a "+string(want.Type)+" now") {
				return pause{}
			}
		}
		return u.ensure(want)
	}
	if restart {
		u.backoff, u.trialSpec, u.finished = time.Time{}, "", ""
		if u.inst != nil && !u.halt(ctx, "restart asked for") {
			return pause{}
		}
	}
	target, fallback := u.target(want)
	if u.inst == nil {
		return u.begin(ctx, target, fallback)
	}
	if !u.inst.run.Spec.satisfies(u.inst.run.Source, target) {
		return u.handover(ctx, target)
	}
	return u.supervise(ctx, target, fallback)
}

// ensure is the whole life of a volume or file.
func (u *unit) ensure(want *spec) pause {
	if want.Type == mesh.KindVolume {
		if err := u.s.ensureVolume(want); err != nil {
			u.show("failed", err.Error())
			return pause{until: time.Now().Add(maxSourceDelay)}
		}
		if want.Size > 0 {
			u.show("present", noLimit)
			return pause{}
		}
	}
	// A file has no life of its own: each instance that mounts it has its copy.
	u.show("present", "")
	return pause{}
}

// begin starts target when nothing runs.
func (u *unit) begin(ctx context.Context, target *spec, fallback string) pause {
	st := u.s.state.get(u.key)
	id := target.id()
	if target.Policy == mesh.PolicyOnce && st.Done == id {
		u.show("done", "")
		return pause{}
	}
	if target.Policy == mesh.PolicyOnFailure && u.finished == id {
		u.show("done", "")
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
	return u.s.content.ensure(fctx, target.Artifact(), target.Digest, target.Source)
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

// handover replaces what runs by target. The new bytes are here and what it depends on is ready before the
// old one is stopped.
func (u *unit) handover(ctx context.Context, target *spec) pause {
	if dep, why := u.s.unready(target); dep != "" {
		u.showRunning("handover waits for " + dep + ": " + why)
		return pause{others: true}
	}
	stored, err := u.fetch(ctx, target)
	if err != nil {
		p := u.missed(ctx, err, u.runningState())
		if !errors.Is(err, context.Canceled) {
			u.showRunning("handover waits: " + err.Error())
		}
		return p
	}
	u.misses = 0
	u.s.info(u.key, "handover to %s", describe(target))
	if !u.halt(ctx, "handover to "+describe(target)) {
		return pause{}
	}
	return u.start(ctx, target, stored)
}

func describe(sp *spec) string {
	return fmt.Sprintf("the %s form of %s", sp.Type, shortDigest(sp.Digest))
}

func (u *unit) runningState() string {
	switch {
	case u.inst == nil:
		return "starting"
	case !u.inst.ready:
		return "starting"
	case u.inst.run.Spec.Health != nil:
		return "healthy"
	}
	return "running"
}

func (u *unit) showRunning(reason string) { u.show(u.runningState(), reason) }

// wind stops what runs, for good or for a power off, after those that depend on it.
func (u *unit) wind(ctx context.Context, removed bool) pause {
	if u.inst != nil {
		if dep := u.s.dependentAlive(u); dep != "" {
			u.show("stopping", "waits until "+dep+" has stopped")
			return pause{others: true, until: time.Now().Add(time.Second)}
		}
		if !u.halt(ctx, "no longer declared") {
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
