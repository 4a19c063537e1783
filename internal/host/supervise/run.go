package supervise

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"kingpost/internal/mesh"
)

// start starts target from its checked bytes, where nothing runs.
func (u *unit) start(ctx context.Context, target *spec, st *stored) pause {
	if ctx.Err() != nil {
		return pause{}
	}
	u.misses = 0
	u.tries(target)
	u.show("starting", "")
	w, err := u.launch(ctx, target, st, false)
	switch {
	case w != nil:
	case ctx.Err() != nil:
		return pause{}
	default:
		return u.unstarted(ctx, target, err)
	}
	u.inst = u.watch(ctx, w, target)
	u.s.info(u.key, "started process %d (%s)", u.inst.run.PID, describe(target))
	return u.supervise(ctx, target, "")
}

// tries notes that a failure of target, if a good one came before it, is part of a handover.
func (u *unit) tries(target *spec) {
	good := u.s.good(u.key)
	if good == nil || good.id() == target.id() {
		u.trialSpec = ""
	} else if u.trialSpec != target.id() {
		u.trialSpec, u.trialSince, u.trialRuns = target.id(), time.Now(), 0
	}
}

// launch makes one start of an instance.
func (u *unit) launch(ctx context.Context, sp *spec, st *stored, trial bool) (workload, error) {
	u.openLog()
	u.mu.Lock()
	restarts := int(u.starts)
	u.mu.Unlock()
	w, err := u.s.below.start(ctx, sp, st, restarts, trial, u.s.state.nextEpoch)
	if w != nil {
		u.mu.Lock()
		u.starts++
		u.mu.Unlock()
	}
	return w, err
}

// unstarted is a start that failed.
func (u *unit) unstarted(ctx context.Context, sp *spec, err error) pause {
	if errors.Is(err, errSource) {
		return u.missed(ctx, err, "waiting")
	}
	u.s.below.clean(ctx, sp)
	if noRoom(err) {
		return u.missed(ctx, err, "waiting")
	}
	u.failed(sp, fmt.Sprintf("it cannot be started: %v", err))
	return pause{until: time.Now()}
}

// openLog begins to carry the log, however often it is called.
func (u *unit) openLog() {
	if u.log.Load() != nil {
		return
	}
	l, err := u.s.below.log(u.key)
	if err != nil {
		u.s.warn("%s: %v", u.key, err)
		return
	}
	if l == nil {
		return
	}
	u.mu.Lock()
	sp := u.want
	u.mu.Unlock()
	if sp == nil && u.inst != nil {
		sp = u.inst.run.Spec
	}
	if sp != nil {
		l.bound(sp.logSize())
	}
	u.log.Store(l)
}

// unwell says why an instance must be stopped; empty when it need not.
func (u *unit) unwell(i *instance) string {
	h := u.check(i, false)
	if h == nil {
		return ""
	}
	limit := h.Start.Or(60 * time.Second)
	switch {
	case !i.health.passed && time.Since(i.since) >= limit:
		return fmt.Sprintf("it did not become healthy in %s: %v", limit, i.health.err)
	case i.health.passed && i.health.failures >= retries(h):
		return fmt.Sprintf("%d health checks in a row failed: %v", i.health.failures, i.health.err)
	}
	return ""
}

// supervise looks after a workload that is the right one.
func (u *unit) supervise(ctx context.Context, target *spec, fallback string) pause {
	i := u.inst
	if target != i.taken {
		u.adjust(i, target)
	}
	now := time.Now()
	ready := i.isReady(u)
	reason := u.unwell(i)
	if reason == "" && !ready && u.trialSpec == target.id() && now.Sub(i.since) >= target.readyTimeout() {
		reason = fmt.Sprintf("it did not become ready in %s: %v", target.readyTimeout(), i.trouble())
	}
	if reason != "" {
		first := !i.health.passed || !i.was
		if !u.halt(ctx, reason) {
			return pause{}
		}
		if first {
			u.trialRuns = maxTrialRuns // its time is over, it is not tried again
		}
		u.failed(target, reason)
		return pause{until: now}
	}
	why := ""
	if fallback != "" {
		why = "what is declared failed, so the last good one runs: " + fallback
	} else if err := i.trouble(); err != nil {
		why = err.Error()
	}
	u.steady = ready && fallback == ""
	u.showRunning(why)
	if !ready {
		var until time.Time // what its checks say wakes us; beside that there are only the ends of its time
		switch {
		case target.Health != nil && !i.health.passed:
			until = i.since.Add(target.startTimeout())
		case u.trialSpec == target.id():
			until = i.since.Add(target.readyTimeout())
		}
		return pause{until: until}
	}
	well := i.since.Add(settleTime)
	if target.Health != nil || target.Ready != nil || !now.Before(well) {
		u.proved(i)
	} else {
		return pause{until: well}
	}
	// The failures of before are forgotten when it was well long enough.
	if u.s.state.get(u.key).Failures > 0 {
		if over := i.since.Add(resetAfter); now.Before(over) {
			return pause{until: over}
		}
		u.save(func(s *unitState) { s.Spec, s.Failures, s.Reason = "", 0, "" })
	}
	return pause{}
}

// proved writes down what runs as the last good spec.
func (u *unit) proved(i *instance) {
	if i.good {
		return
	}
	i.good = true
	u.trialSpec = ""
	if u.move != nil && u.move.State == "under way" {
		u.moved("done")
		u.showRunning("")
	}
	if completes(i.run.Spec.Policy) {
		return // to run is not to have been good
	}
	if err := u.s.setGood(u.key, i.run.Spec.in("")); err != nil {
		u.s.warn("keep the last good form of %s: %v", u.key, err)
		i.good = false
	}
	u.s.collectSoon()
}

// ended is the end of an instance by itself.
func (u *unit) ended(ctx context.Context, i *instance) {
	e := i.w.exit(ctx)
	u.finish(ctx, i)
	sp := i.run.Spec
	u.s.info(u.key, "process %d %s", i.run.PID, e.how)
	if i == u.next {
		u.next = nil
		u.failed(sp, "it "+e.how)
		return
	}
	u.inst = nil
	u.save(func(s *unitState) { s.Exit = &e.code })
	if u.next != nil {
		// The old one is gone before its time, and the new one is here: the handover goes on as stop and start would.
		u.promote(ctx)
		return
	}
	if sp.Policy == mesh.PolicyNever || e.known && e.code == 0 && sp.Policy == mesh.PolicyOnFailure {
		u.finishedWith(sp.id(), e.code)
	}
	if sp.Policy == mesh.PolicyNever || e.known && e.code == 0 && (sp.Policy == mesh.PolicyOnce || sp.Policy == mesh.PolicyOnFailure) {
		u.trialSpec = ""
		u.moved("done")
		done := ""
		if sp.Policy == mesh.PolicyOnce {
			done = sp.id() // it is not run again after a reboot either
		}
		u.save(func(s *unitState) { s.Done, s.Spec, s.Failures, s.Held, s.Reason = done, "", 0, false, "" })
		return
	}
	if i.isReady(u) && time.Since(i.since) >= resetAfter {
		u.save(func(s *unitState) { s.Spec, s.Failures, s.Reason = "", 0, "" })
	}
	u.failed(sp, "it "+e.how)
}

// failed counts a run that failed, and decides between another try, the way back to the last good spec,
// and a hold.
func (u *unit) failed(sp *spec, reason string) {
	u.s.info(u.key, "failed: %s", reason)
	id := sp.id()
	if u.trialSpec == id {
		u.trialRuns++
		if u.trialRuns >= maxTrialRuns || time.Since(u.trialSince) >= sp.startTimeout() && sp.Health != nil {
			u.trialSpec = ""
			u.backoff = time.Time{}
			u.moved("failed")
			u.save(func(s *unitState) {
				s.Failed, s.FailedReason, s.Spec, s.Failures, s.Reason = sp.verdict(), reason, "", 0, ""
			})
			u.s.warn("%s: the handover failed (%s); the last good one runs", u.key, reason)
			return
		}
		u.backoff, u.why = time.Now().Add(delay(u.trialRuns)), reason
		return
	}
	n := 1
	u.save(func(s *unitState) {
		if s.Spec == id {
			n = s.Failures + 1
		}
		s.Spec, s.Failures, s.Reason = id, n, reason
		if n >= maxFailures {
			s.Held = true
			s.Reason = fmt.Sprintf("it failed %d times in a row, the last time because %s; correct it, or clear it to try again", n, reason)
		}
	})
	u.backoff, u.why = time.Now().Add(delay(n)), reason
}

// adjust takes over what may change while a workload runs: limits, health, policy, stop, order.
func (u *unit) adjust(i *instance, target *spec) {
	was, now := i.run.Spec, target.in(i.run.Spec.slot)
	same := was.equal(now)
	if !same {
		if err := i.w.limit(was, now); err != nil {
			u.s.warn("%v", err)
		}
	}
	u.mu.Lock()
	i.run.Spec, i.taken = now, target
	u.mu.Unlock()
	if same {
		return
	}
	if l := u.log.Load(); l != nil {
		l.bound(now.logSize())
	}
	i.good = false
	i.health.failures, i.ready = 0, checks{passed: i.ready.passed && now.Ready != nil && reflect.DeepEqual(was.Ready, now.Ready)}
	for range 2 {
		select {
		case i.recheck <- struct{}{}:
		default:
		}
	}
	if err := i.w.keep(); err != nil {
		u.s.warn("%v", err)
	}
}

// halt stops what runs: its signal, its grace, then its cgroup whole. It reports false when the host goes
// away meanwhile: the next host finds the record and goes on.
func (u *unit) halt(ctx context.Context, reason string) bool {
	u.show("stopping", reason)
	e, ok := u.end(ctx, u.inst, reason)
	if !ok {
		return false
	}
	u.inst = nil
	u.save(func(s *unitState) { s.Exit = &e.code })
	return true
}

// haltAll stops every instance that there is.
func (u *unit) haltAll(ctx context.Context, reason string) bool {
	if u.next != nil {
		u.drop(ctx, reason)
		u.moved("failed")
	}
	if u.inst != nil && !u.halt(ctx, reason) {
		return false
	}
	u.ends.Wait()
	if ctx.Err() != nil {
		return false
	}
	if u.old != nil {
		u.forgetOld()
	}
	return true
}

// end stops an instance and removes what is left of it; false when the host goes away meanwhile. It touches nothing of the
// unit, so it may run beside its steps.
func (u *unit) end(ctx context.Context, i *instance, reason string) (exit, bool) {
	u.s.info(u.key, "stop process %d: %s", i.run.PID, reason)
	u.mu.Lock()
	sp := i.run.Spec
	u.mu.Unlock()
	if !i.run.Stopping {
		i.run.Stopping = true
		if err := i.w.keep(); err != nil && ctx.Err() == nil {
			u.s.warn("%v", err)
		}
	}
	if err := i.w.signal(sp.stopSignal()); err != nil {
		u.s.warn("stop %s: %v", u.key, err)
	}
	t := time.NewTimer(sp.grace())
	defer t.Stop()
	// While it is stopped nobody takes what its checks say.
	for waiting := true; waiting; {
		select {
		case <-i.exited:
			waiting = false
		case <-i.outcomes:
		case <-t.C:
			u.s.warn("%s does not stop within %s and is killed", u.key, sp.grace())
			waiting = false
		case <-ctx.Done():
			return exit{}, false
		}
	}
	if err := i.w.kill(); err != nil {
		u.s.warn("%v", err)
	}
	e := exit{code: -1, how: "does not end"}
	limit := time.NewTimer(killLimit)
	defer limit.Stop()
	select {
	case <-i.exited:
		e = i.w.exit(context.WithoutCancel(ctx))
	case <-limit.C:
	}
	u.finish(ctx, i)
	return e, true
}

// finish removes what is left of a workload whose process has ended.
func (u *unit) finish(ctx context.Context, i *instance) {
	if err := i.w.kill(); err != nil {
		u.s.warn("%v", err)
	}
	i.stop()
	i.w.release()
	i.wait.Wait()
	i.w.remove(ctx)
}
