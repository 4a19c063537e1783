// Package launcher keeps one program running: the host.
//
// It starts it again when it ends, with growing, capped and jittered delays; counts failures per digest on disk, across
// reboots; rolls back to the last good host and at last to the one in the root image; and when that fails as well it
// stops trying and says so, while PID 1, console and diagnostics stay. It knows nothing of what the host does.
// Start with Launcher.Run; the rules are those of State, which are pure.
package launcher

import (
	"context"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"
)

// Instance is a host that was started.
type Instance interface {
	// Ready is closed when it has said that it is ready.
	Ready() <-chan struct{}
	// Done is closed when it has ended.
	Done() <-chan struct{}
	// Reason says how it ended, in a person's words; after Done.
	Reason() string
	// Asked reports whether it ended as it was asked to, by itself or by others; after Done.
	Asked() bool
	// Kill ends it at once.
	Kill()
}

// Clock is the time; tests bring their own.
type Clock interface {
	Now() time.Time
	After(time.Duration) <-chan time.Time
}

// Limits are the launcher's bounds. Zero values are those of DefaultLimits.
type Limits struct {
	MaxFailures  int           // of one host in a row, before it is given up
	HealthyAfter time.Duration // up and ready for so long is healthy
	ReadyWithin  time.Duration // not ready by then is a failure
	FirstDelay   time.Duration // before the first restart; doubles with each failure in a row
	MaxDelay     time.Duration
}

// DefaultLimits fit real machines and emulated ones, where a start takes many seconds.
var DefaultLimits = Limits{MaxFailures: 5, HealthyAfter: 30 * time.Second, ReadyWithin: 3 * time.Minute, FirstDelay: 500 * time.Millisecond, MaxDelay: 30 * time.Second}

// Launcher supervises the host.
type Launcher struct {
	Baked  Host
	Limits Limits
	State  *State
	// Save puts State on the disk. A failure to save is reported and survived.
	Save  func() error
	Start func(Host) (Instance, error)
	Clock Clock
	// Random gives the jitter, in [0, 1).
	Random func() float64
	Log    logrus.FieldLogger
	// Report shows a person what happens, in a line.
	Report func(string)
	// OnReady and OnGone are called when a host has become ready and when one has ended. Either may be nil.
	OnReady func(Host)
	OnGone  func(Host)
	// OnHalt is called once when even the baked-in host is given up. May be nil.
	OnHalt func(reason string)

	offers chan offer
}

type offer struct {
	host  Host
	reply chan error
}

// New returns l with what it needs inside; its fields are set before.
func New(l Launcher) *Launcher {
	l.offers = make(chan offer)
	return &l
}

// Offer asks the launcher to replace the host by h, which the running one has fetched and checked. The running one is
// ended and h started under the same rules as any other. It returns once h is the one to run, or refused.
func (l *Launcher) Offer(ctx context.Context, h Host) error {
	o := offer{h, make(chan error, 1)}
	select {
	case l.offers <- o:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-o.reply:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Run supervises until ctx ends, and leaves the host as it is then: who ends ctx ends the host.
func (l *Launcher) Run(ctx context.Context) {
	l.State.Boot(l.Limits.MaxFailures)
	row := 0 // failures in a row in this boot, of whichever host: what the delay grows with
	for ctx.Err() == nil {
		before := l.State.Current
		h, ok := l.State.Next(l.Baked, l.Limits.MaxFailures)
		if !ok {
			l.halt(ctx)
			row = 0
			continue
		}
		if h.Digest != before {
			l.Report(fmt.Sprintf("error host %s is given up (%s); going back to %s", short(before), l.last(before), short(h.Digest)))
			l.save()
			row = 0
		}
		if l.State.Trying(h, l.Clock.Now()) {
			l.save()
		}
		failed := l.once(ctx, h)
		if ctx.Err() != nil {
			return
		}
		if !failed {
			row = 0
			continue
		}
		row++
		if !l.wait(ctx, Delay(row, l.Limits, l.Random())) {
			return
		}
	}
}

// once starts h and watches it until it ends; it reports whether that was a failure.
func (l *Launcher) once(ctx context.Context, h Host) (failed bool) {
	log := l.Log.WithField("host", h.Digest)
	in, err := l.Start(h)
	if err != nil {
		l.fail(h, err.Error())
		return true
	}
	log.Info("host started")
	ready := in.Ready()
	timer := l.Clock.After(l.Limits.ReadyWithin)
	why := ""
	isReady, healthy := false, false
	for {
		select {
		case <-ctx.Done():
			return false
		case <-ready:
			ready, isReady = nil, true
			timer = l.Clock.After(l.Limits.HealthyAfter)
			log.Info("host ready")
			if l.OnReady != nil {
				l.OnReady(h)
			}
		case <-timer:
			timer = nil
			if !isReady {
				why = fmt.Sprintf("not ready within %s", l.Limits.ReadyWithin)
				in.Kill()
				continue
			}
			healthy = true
			if l.State.Healthy(h) {
				l.save()
			}
		case o := <-l.offers:
			err := l.State.Offer(o.host, l.Limits.MaxFailures)
			o.reply <- err
			if err != nil {
				l.Report("warning " + err.Error())
				continue
			}
			l.save()
			l.Report(fmt.Sprintf("host %s is replaced by %s", short(h.Digest), short(o.host.Digest)))
			in.Kill()
			<-in.Done()
			if l.OnGone != nil {
				l.OnGone(h)
			}
			return false
		case <-in.Done():
			if l.OnGone != nil {
				l.OnGone(h)
			}
			if in.Asked() && why == "" {
				if l.State.Stopped(h) {
					l.save()
				}
				return false
			}
			if why == "" {
				why = in.Reason()
			}
			if healthy {
				log.WithField("reason", why).Warn("a healthy host ended")
			}
			l.fail(h, why)
			return true
		}
	}
}

func (l *Launcher) fail(h Host, why string) {
	n := l.State.Failed(h, why, l.Clock.Now())
	l.save()
	// Report shows it; as an error of the log it would stand on the console twice.
	l.Log.WithFields(logrus.Fields{"host": h.Digest, "failures": n, "reason": why}).Info("host failed")
	l.Report(fmt.Sprintf("error host %s failed, %d of %d: %s", short(h.Digest), n, l.Limits.MaxFailures, why))
}

// halt waits for a different host; nothing else helps any more.
func (l *Launcher) halt(ctx context.Context) {
	why := l.last(BakedIn)
	l.Report(fmt.Sprintf("error the host of this release has failed %d times in a row and is not started again before the next boot: %s", l.Limits.MaxFailures, why))
	if l.OnHalt != nil {
		l.OnHalt(why)
	}
	l.idle(ctx, nil)
}

// wait pauses between starts, and ends early when another host is offered. False: ctx has ended.
func (l *Launcher) wait(ctx context.Context, d time.Duration) bool {
	return l.idle(ctx, l.Clock.After(d))
}

func (l *Launcher) idle(ctx context.Context, over <-chan time.Time) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-over:
			return true
		case o := <-l.offers:
			err := l.State.Offer(o.host, l.Limits.MaxFailures)
			o.reply <- err
			if err == nil {
				l.save()
				return true
			}
		}
	}
}

func (l *Launcher) last(digest string) string {
	if r := l.State.find(digest); r != nil && r.Last != "" {
		return r.Last
	}
	return "no reason is known"
}

func (l *Launcher) save() {
	if err := l.Save(); err != nil {
		l.Log.WithError(err).Error("save the launcher's state; failures are not counted across a reboot")
	}
}

// Delay is the pause before the start that follows failure number row in a row (from 1): doubled each time, capped, and
// jittered down by up to a quarter by random in [0, 1), so that a room of nodes that lost power does not beat in step.
func Delay(row int, l Limits, random float64) time.Duration {
	d := l.FirstDelay
	for i := 1; i < row && d < l.MaxDelay; i++ {
		d *= 2
	}
	d = min(d, l.MaxDelay)
	return d - time.Duration(float64(d)/4*random)
}

func short(digest string) string {
	if len(digest) > 19 {
		return digest[:19]
	}
	return digest
}
