package supervise

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strconv"
	"time"

	"kingpost/internal/mesh"
)

// start starts target from its checked bytes.
func (u *unit) start(ctx context.Context, target *spec, st *stored) pause {
	if ctx.Err() != nil {
		return pause{}
	}
	u.misses = 0
	// A failed start of a spec that follows a good one is part of a handover.
	if good := u.s.good(u.key); good != nil && good.id() != target.id() {
		if u.trialSpec != target.id() {
			u.trialSpec, u.trialSince, u.trialRuns = target.id(), time.Now(), 0
		}
	} else {
		u.trialSpec = ""
	}
	u.show("starting", "")
	u.openLog()
	restarts := 0
	u.mu.Lock()
	if u.starts > 0 {
		restarts = int(u.starts)
	}
	u.mu.Unlock()
	inst, err := u.s.launch(ctx, target, st, restarts)
	if errors.Is(err, errSource) {
		return u.missed(ctx, err, "waiting")
	}
	if ctx.Err() != nil && inst == nil {
		return pause{}
	}
	if err != nil {
		u.s.clean(ctx, target)
		u.failed(target, fmt.Sprintf("it cannot be started: %v", err))
		return pause{until: time.Now()}
	}
	u.mu.Lock()
	u.starts++
	u.mu.Unlock()
	u.hold(ctx, inst)
	u.s.info(u.key, "started process %d (%s)", inst.run.PID, describe(target))
	return u.supervise(ctx, target, "")
}

// hold takes a running workload under supervision: one that was started, or one that was adopted.
func (u *unit) hold(ctx context.Context, i *instance) {
	u.openLog()
	ictx, stop := context.WithCancel(ctx)
	i.stop, i.exited, i.recheck, i.since = stop, make(chan struct{}), make(chan struct{}, 1), time.Now()
	u.inst = i
	i.wait.Go(func() {
		if i.proc.wait() == nil {
			close(i.exited)
		}
	})
	i.health = make(chan error)
	i.ready = i.run.Spec.Health == nil
	if i.run.Address.IsValid() {
		unpublish, err := u.s.publish(u.key, i.run.Spec.Ports, i.run.Address)
		if err != nil {
			u.s.warn("%v", err)
			i.lastErr = err
		}
		i.unpublish = unpublish
	}
	u.watchHealth(ictx, i)
}

// openLog begins to carry the log. Without it a workload would wait as soon as the pipe is full.
func (u *unit) openLog() {
	if u.log.Load() != nil {
		return
	}
	warn := func(f string, a ...any) { u.s.warn(u.key+": "+f, a...) }
	l, err := startLog(u.s.fifoPath(u.name), u.s.logDir(u.key), u.s.cfg.Now, warn)
	if err != nil {
		warn("%v", err)
		return
	}
	u.log.Store(l)
}

// watchHealth makes the checks of the wanted spec, so that a changed check counts at once.
func (u *unit) watchHealth(ctx context.Context, i *instance) {
	c := &checker{s: u.s, sp: i.run.Spec, pid: i.run.PID, start: i.run.Start, uid: i.run.UID, name: u.name}
	i.wait.Go(func() {
		// At first often, so that readiness is seen when it comes; then at the declared interval.
		wait := 20 * time.Millisecond
		for started := true; ; {
			t := time.NewTimer(wait)
			if u.health(i) == nil {
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
				continue
			case <-t.C:
			}
			h := u.health(i)
			if h == nil {
				continue
			}
			err := c.check(ctx, h)
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
			case i.health <- err:
			case <-ctx.Done():
				return
			case <-i.exited:
				return
			}
		}
	})
}

func (u *unit) health(i *instance) *mesh.Health {
	u.mu.Lock()
	defer u.mu.Unlock()
	// Where something else runs than is wanted (the last good one, while the wanted one is known to fail), its own
	// check counts, or the check that nothing can pass would take it down as well.
	if u.want != nil && u.want.Health != nil && i.run.Spec.satisfies(i.run.Source, u.want) {
		return u.want.Health
	}
	return i.run.Spec.Health
}

// checked takes in the outcome of one check.
func (u *unit) checked(err error) {
	i := u.inst
	if err == nil {
		i.ready, i.failures, i.lastErr = true, 0, nil
		return
	}
	i.failures++
	i.lastErr = err
}

// supervise looks after a workload that is the right one.
func (u *unit) supervise(ctx context.Context, target *spec, fallback string) pause {
	i := u.inst
	if target != i.run.Spec {
		u.adjust(target)
	}
	now := time.Now()
	h := u.health(i)
	switch {
	case !i.ready && now.Sub(i.since) >= target.startTimeout():
		reason := fmt.Sprintf("it did not become healthy in %s: %v", target.startTimeout(), i.lastErr)
		u.halt(ctx, reason)
		u.trialRuns = maxTrialRuns // its time is over, it is not tried again
		u.failed(target, reason)
		return pause{until: now}
	case i.ready && h != nil && i.failures >= retries(h):
		reason := fmt.Sprintf("%d health checks in a row failed: %v", i.failures, i.lastErr)
		u.halt(ctx, reason)
		u.failed(target, reason)
		return pause{until: now}
	}
	reason := ""
	if fallback != "" {
		reason = "what is declared failed, so the last good one runs: " + fallback
	} else if i.lastErr != nil {
		reason = i.lastErr.Error()
	}
	u.steady = i.ready && fallback == ""
	u.showRunning(reason)
	if !i.ready {
		return pause{until: i.since.Add(target.startTimeout())}
	}
	well := i.since.Add(settleTime)
	if i.run.Spec.Health != nil || !now.Before(well) {
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

func retries(h *mesh.Health) int {
	if h.Retries > 0 {
		return h.Retries
	}
	return 3
}

// proved writes down what runs as the last good spec.
func (u *unit) proved(i *instance) {
	if i.good {
		return
	}
	i.good = true
	u.trialSpec = ""
	if i.run.Spec.Policy == mesh.PolicyOnce {
		return // to run is not to have been good
	}
	if err := u.s.setGood(u.key, i.run.Spec); err != nil {
		u.s.warn("keep the last good form of %s: %v", u.key, err)
		i.good = false
	}
	u.s.collectSoon()
}

// ended is the end of a workload by itself.
func (u *unit) ended(ctx context.Context) {
	i := u.inst
	code, known, how := u.s.exitOf(ctx, i)
	u.finish(ctx)
	u.save(func(s *unitState) { s.Exit = &code })
	sp := i.run.Spec
	u.s.info(u.key, "process %d %s", i.run.PID, how)
	if known && code == 0 && (sp.Policy == mesh.PolicyOnce || sp.Policy == mesh.PolicyOnFailure) {
		u.trialSpec, u.finished = "", sp.id()
		done := ""
		if sp.Policy == mesh.PolicyOnce {
			done = sp.id() // it is not run again after a reboot either
		}
		u.save(func(s *unitState) { s.Done, s.Spec, s.Failures, s.Held, s.Reason = done, "", 0, false, "" })
		return
	}
	if i.ready && time.Since(i.since) >= resetAfter {
		u.save(func(s *unitState) { s.Spec, s.Failures, s.Reason = "", 0, "" })
	}
	u.failed(sp, "it "+how)
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
			u.save(func(s *unitState) {
				s.Failed, s.FailedReason, s.Spec, s.Failures, s.Reason = sp.verdict(), reason, "", 0, ""
			})
			u.s.warn("%s: the handover failed (%s); the last good one is started again", u.key, reason)
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
func (u *unit) adjust(target *spec) {
	i := u.inst
	if reflect.DeepEqual(i.run.Spec, target) {
		u.mu.Lock()
		i.run.Spec = target
		u.mu.Unlock()
		return
	}
	if i.run.Spec.Limits != target.Limits {
		if err := u.s.cgroups.limit(u.name, target.Limits); err != nil {
			u.s.warn("%v", err)
		}
	}
	if i.run.Spec.Critical != target.Critical {
		_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", i.run.PID), []byte(strconv.Itoa(oomScore(target.Critical))), 0)
	}
	u.mu.Lock()
	i.run.Spec = target
	u.mu.Unlock()
	i.good = false
	i.ready = i.ready || target.Health == nil
	select {
	case i.recheck <- struct{}{}:
	default:
	}
	if err := i.run.write(u.s.rundir(u.name).record()); err != nil {
		u.s.warn("%v", err)
	}
}

// halt stops what runs: its signal, its grace, then its cgroup whole. It reports false when the host goes
// away meanwhile: the next host finds the record and goes on.
func (u *unit) halt(ctx context.Context, reason string) bool {
	i := u.inst
	u.show("stopping", reason)
	u.s.info(u.key, "stop process %d: %s", i.run.PID, reason)
	if err := i.proc.signal(i.run.Spec.stopSignal()); err != nil {
		u.s.warn("stop %s: %v", u.key, err)
	}
	t := time.NewTimer(i.run.Spec.grace())
	defer t.Stop()
	select {
	case <-i.exited:
	case <-t.C:
		u.s.warn("%s does not stop within %s and is killed", u.key, i.run.Spec.grace())
	case <-ctx.Done():
		return false
	}
	code, _, _ := u.s.killed(i)
	u.finish(ctx)
	u.save(func(s *unitState) { s.Exit = &code })
	return true
}

// finish removes what is left of a workload whose process has ended.
func (u *unit) finish(ctx context.Context) {
	i := u.inst
	sp := i.run.Spec
	if err := u.s.cgroups.kill(u.name, killLimit); err != nil {
		u.s.warn("%v", err)
	}
	i.release()
	if i.run.Address.IsValid() {
		u.s.network.release(i.run.Address)
	}
	u.s.clean(ctx, sp)
	u.s.exits.drop(procID{i.run.PID, i.run.Start})
	u.inst = nil
}

// exitOf reads how a workload ended.
func (s *Supervisor) exitOf(ctx context.Context, i *instance) (code int, known bool, how string) {
	r, ok := s.exits.take(ctx, procID{i.run.PID, i.run.Start}, exitRecordLimit)
	switch {
	case !ok:
		return -1, false, "ended; PID 1 has not recorded how"
	case r.Signal != 0:
		return 128 + r.Signal, true, fmt.Sprintf("was killed by signal %d", r.Signal)
	}
	return r.Code, true, fmt.Sprintf("exited with code %d", r.Code)
}

// killed ends the rest of a workload that is being stopped and reads how its process ended.
func (s *Supervisor) killed(i *instance) (code int, known bool, how string) {
	if err := s.cgroups.kill(i.run.Spec.name(), killLimit); err != nil {
		s.warn("%v", err)
	}
	select {
	case <-i.exited:
		return s.exitOf(context.Background(), i)
	case <-time.After(killLimit):
		return -1, false, "does not end"
	}
}

// clean removes the run files, the cgroup and what the container runtime keeps. The seat folder goes too:
// a socket without a server would only make callers wait.
func (s *Supervisor) clean(ctx context.Context, sp *spec) {
	name := sp.name()
	if err := s.cgroups.kill(name, killLimit); err != nil {
		s.warn("%v", err)
	}
	if err := s.cleanContainer(ctx, name); err != nil {
		s.warn("clean up the container %s: %v", name, err)
	}
	if err := s.cgroups.remove(name); err != nil {
		s.warn("%v", err)
	}
	for _, dir := range []string{s.seatDir(name), string(s.rundir(name))} {
		if err := os.RemoveAll(dir); err != nil {
			s.warn("clean up %s: %v", sp.Key(), err)
		}
	}
}
