package supervise

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
)

// A handover replaces what runs by what is declared: another form, another digest, other arguments. The new bytes are
// here, checked, and what it depends on is ready before anything of the old one changes. Where the two share nothing
// exclusive they run side by side until the new one is healthy; else the old one is stopped first. Either way one that
// does not get healthy leaves the old one running.

// exclusive says why two instances of a resource must not run at once; empty: nothing stands against it. listens are the
// ports of the node that the old one listens on.
func exclusive(old, next *spec, listens []string) string {
	switch {
	case next.Handover == mesh.HandoverStopStart:
		return "its manifest asks for it"
	case completes(old.Policy) || completes(next.Policy):
		return "a run that is to end is not doubled"
	case old.controller() || next.controller():
		return "a mesh has one controller at a time"
	}
	writes := map[string]bool{}
	for _, m := range old.Volumes {
		writes[m.Volume] = !m.ReadOnly
	}
	for _, m := range next.Volumes {
		if wrote, shared := writes[m.Volume]; shared && (wrote || !m.ReadOnly) {
			return "both have the volume " + m.Volume + ", which is written"
		}
	}
	if len(listens) > 0 && !next.private() {
		return "the old one listens on " + strings.Join(listens, ", ")
	}
	for _, sp := range []*spec{old, next} {
		if port := sp.asksNode(); port != "" {
			return "its check asks port " + port + " of the node, which the other one might answer"
		}
	}
	return ""
}

func completes(p mesh.Policy) bool { return p == mesh.PolicyOnce || p == mesh.PolicyNever }

// asksNode is the port of the node's own network that a check of sp asks; empty for none.
func (sp *spec) asksNode() string {
	if sp.private() {
		return ""
	}
	for _, h := range []*mesh.Health{sp.Health, sp.Ready} {
		switch {
		case h == nil:
		case h.TCP != "":
			_, port, _ := net.SplitHostPort(h.TCP)
			return port
		case h.HTTP != "" && !strings.HasPrefix(h.HTTP, "unix:"):
			host, _, _ := strings.Cut(strings.TrimPrefix(h.HTTP, "http://"), "/")
			if _, port, err := net.SplitHostPort(host); err == nil {
				return port
			}
			return "80"
		}
	}
	return ""
}

// handover replaces what runs by target.
func (u *unit) handover(ctx context.Context, target *spec) pause {
	if reason := u.unwell(u.inst); reason != "" {
		sp := u.inst.run.Spec
		u.halt(ctx, reason)
		u.failed(sp, reason)
		return pause{until: time.Now()}
	}
	if u.next != nil {
		return u.trial(ctx, target)
	}
	if u.trialSpec == target.id() && time.Now().Before(u.backoff) {
		u.showRunning("handover: tried again soon, since " + u.why)
		return pause{until: u.backoff}
	}
	if u.old != nil {
		u.showRunning("handover waits until the one before has stopped")
		return pause{}
	}
	if dep, why := u.s.unready(target); dep != "" {
		u.showRunning("handover waits for " + dep + ": " + why)
		return pause{others: true}
	}
	stored, err := u.fetch(ctx, target)
	if err != nil {
		p := u.missed(ctx, err, u.runningState())
		if ctx.Err() == nil {
			u.showRunning("handover waits: " + err.Error())
		}
		return p
	}
	u.misses = 0
	old := u.inst
	way, why := mesh.HandoverOverlap, "they share nothing exclusive"
	if x := exclusive(old.run.Spec, target, old.w.listens()); x != "" {
		way, why = mesh.HandoverStopStart, x
	} else if good := u.s.good(u.key); !old.isReady(u) || good == nil || good.id() != old.run.Spec.id() {
		way, why = mesh.HandoverStopStart, "the old one has not been good itself, so there is nothing to keep"
	}
	u.move = &hostapi.Handover{Way: way, Why: why, State: "under way", Type: target.Type, Digest: target.Digest, Since: u.s.cfg.Now()}
	u.s.info(u.key, "handover to %s, %s: %s", describe(target), way, why)
	if way == mesh.HandoverStopStart {
		if !u.halt(ctx, "handover to "+describe(target)+": "+why) {
			return pause{}
		}
		return u.start(ctx, target, stored)
	}
	u.tries(target)
	slot := ""
	if old.run.Spec.slot == "" {
		slot = otherSlot
	}
	w, err := u.launch(ctx, target.in(slot), stored, true)
	switch {
	case w != nil:
	case ctx.Err() != nil:
		return pause{}
	default:
		return u.unstarted(ctx, target.in(slot), err)
	}
	u.next = u.watch(ctx, w, target)
	m := *u.move
	m.PID = u.next.run.PID
	u.move = &m
	u.s.info(u.key, "started process %d beside process %d", u.next.run.PID, old.run.PID)
	return u.trial(ctx, target)
}

func describe(sp *spec) string {
	return fmt.Sprintf("the %s form of %s", sp.Type, shortDigest(sp.Digest))
}

// trial looks at the new one that runs beside the old one.
func (u *unit) trial(ctx context.Context, target *spec) pause {
	i := u.next
	if i.taken != target {
		u.adjust(i, target)
	}
	now := time.Now()
	ready, until := i.isReady(u), i.since.Add(target.readyTimeout())
	if ready && target.Health == nil && target.Ready == nil {
		until = i.since.Add(settleTime)
		ready = !now.Before(until)
	}
	reason := u.unwell(i)
	if reason == "" && !ready && !now.Before(i.since.Add(target.readyTimeout())) {
		reason = fmt.Sprintf("it did not become ready in %s: %v", target.readyTimeout(), i.trouble())
	}
	switch {
	case reason != "":
		u.drop(ctx, reason)
		u.trialRuns = maxTrialRuns // its time is over, it is not tried again
		u.failed(target, reason)
		return pause{until: time.Now()}
	case !ready:
		why := "handover: the new one is starting beside it"
		if err := i.trouble(); err != nil {
			why += ": " + err.Error()
		}
		u.showRunning(why)
		return pause{until: until}
	}
	u.promote(ctx)
	return pause{until: time.Now()}
}

// promote makes the new one the resource's. The record says so before the old one is told to stop, so that a host that
// comes in between goes on with the new one.
func (u *unit) promote(ctx context.Context) {
	u.next.run.Trial = false
	if err := u.next.w.keep(); err != nil {
		u.s.warn("%v", err)
	}
	old := u.inst
	u.inst, u.next = u.next, nil
	if old != nil {
		u.leaveBehind(ctx, old, "handover to "+describe(u.inst.run.Spec))
	}
	u.moved("done")
	u.showRunning("")
}

// moved ends the handover that is shown.
func (u *unit) moved(state string) {
	if u.move != nil && u.move.State == "under way" {
		m := *u.move
		m.State, m.PID = state, 0
		u.move = &m
	}
}

// drop stops the new one of a handover.
func (u *unit) drop(ctx context.Context, reason string) {
	if u.next == nil {
		return
	}
	u.showRunning("handover: the new one is stopped: " + reason)
	if _, ok := u.end(ctx, u.next, reason); ok {
		u.next = nil
	}
}

// leaveBehind stops an instance that another one has taken over from, while that one is looked after.
func (u *unit) leaveBehind(ctx context.Context, i *instance, reason string) {
	gone := make(chan struct{})
	u.old, u.oldGone = i, gone
	u.ends.Go(func() {
		defer close(gone)
		u.end(ctx, i, reason)
	})
}

// forgetOld is called when the one that was left behind has ended.
func (u *unit) forgetOld() {
	u.old, u.oldGone = nil, nil
	u.s.notify() // those who wait for it to be gone
}
