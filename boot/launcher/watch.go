package launcher

import (
	"context"
	"fmt"
	"time"
)

// watch is one run of a host, from its start to its end.
type watch struct {
	l  *Launcher
	h  Host
	in Instance

	timer   alarm // for what is waited for now: ready, then healthy
	silence alarm // the host is stuck when it fires
	ready   bool
	healthy bool
	killed  bool
	why     string // it was ended for this
	replace bool   // it was ended for another one
}

// run watches until the host has ended, and reports whether that was a failure.
func (w *watch) run(ctx context.Context) (failed bool) {
	l := w.l
	ready := w.in.Ready()
	beat := l.Clock.After(beatEvery)
	l.beat()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-beat:
			beat = l.Clock.After(beatEvery)
			if !w.killed {
				l.beat()
			}
		case <-ready:
			ready, w.ready = nil, true
			w.timer = l.alarm(l.Limits.HealthyAfter)
			w.silence = l.alarm(l.Limits.WatchdogWithin)
			l.Log.WithField("host", w.h.Digest).Info("host ready")
			if l.OnReady != nil {
				l.OnReady(w.h)
			}
		case <-w.in.Fed():
			if w.ready && !w.killed {
				w.silence = l.alarm(l.Limits.WatchdogWithin)
			}
		case <-w.silence.c:
			if l.stoodStill(w.silence) {
				w.silence = l.alarm(l.Limits.WatchdogWithin)
				continue
			}
			w.kill(fmt.Sprintf("stuck: it has said nothing for %s", l.Limits.WatchdogWithin))
		case <-w.timer.c:
			if !w.ready && l.stoodStill(w.timer) {
				w.timer = l.alarm(l.Limits.ReadyWithin)
				continue
			}
			w.timer = alarm{}
			if !w.ready {
				w.kill(fmt.Sprintf("not ready within %s", l.Limits.ReadyWithin))
			} else if !w.killed {
				w.proved()
			}
		case r := <-l.requests:
			replace, err := r.do()
			r.reply <- err
			switch {
			case err != nil:
				l.Report("warning " + err.Error())
			case replace && !w.killed:
				l.Report(fmt.Sprintf("host %s is replaced by %s", short(w.h.Digest), short(l.State.Current)))
				w.replace = true
				w.kill("")
			}
		case <-w.in.Done():
			return w.ended(ctx)
		}
	}
}

// alarm is a timer that knows when it was to fire.
type alarm struct {
	c   <-chan time.Time
	due time.Time
}

func (l *Launcher) alarm(d time.Duration) alarm {
	return alarm{l.Clock.After(d), l.Clock.Now().Add(d)}
}

// tooLate is by how much a timer is late where PID 1 did not run itself.
const tooLate = 5 * time.Second

// stoodStill says that an alarm which has just fired is so late that not the host alone stood still: the machine was
// suspended, or had nothing left for PID 1 either.
func (l *Launcher) stoodStill(a alarm) bool {
	late := l.Clock.Now().Sub(a.due)
	if late <= tooLate {
		return false
	}
	l.Log.WithField("late", late.String()).Warn("the machine stood still; the host gets its time anew")
	return true
}

func (w *watch) kill(why string) {
	if w.killed {
		return
	}
	w.killed, w.why = true, why
	w.silence, w.timer = alarm{}, alarm{}
	w.in.Kill()
}

func (w *watch) proved() {
	w.healthy = true
	w.l.info.Proven = true
	if w.l.State.Healthy(w.h) {
		w.l.save()
	} else {
		w.l.changed()
	}
	w.l.Log.WithField("host", w.h.Digest).Info("host healthy")
}

// ended decides what the end of the host was.
func (w *watch) ended(ctx context.Context) (failed bool) {
	l := w.l
	if l.OnGone != nil {
		l.OnGone(w.h)
	}
	if w.replace {
		return false
	}
	if w.why == "" && w.in.Orderly() {
		if w.healthy {
			return false
		}
		// Either the whole node goes down, which is known in a moment, or a host ends at once and says that all is well:
		// without a delay and a count that would go on for ever.
		select {
		case <-ctx.Done():
			return false
		case <-l.Clock.After(leaving):
		}
		w.why = "it ended by itself before it was healthy"
	}
	if w.why == "" {
		w.why = w.in.Reason()
	}
	if w.healthy {
		l.Log.WithField("host", w.h.Digest).WithField("reason", w.why).Warn("a healthy host ended")
	}
	l.fail(w.h, w.why)
	return true
}
