// Package launcher keeps one program running: the host.
//
// It starts it again when it ends, with growing, capped and jittered delays; kills one that is silent for too long; counts
// failures per digest on disk, across reboots; rolls back to the last good host and at last to the one in the root image;
// and when that fails as well it stops trying and says so, while PID 1, console and diagnostics stay. A host that failed
// too often is in quarantine until an operator clears it. It knows nothing of what the host does.
// Start with Launcher.Run; the rules are those of State, which are pure, and the bounds those of Limits.
package launcher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"

	"kingpost/internal/mesh"
)

// Instance is a host that was started.
type Instance interface {
	// Ready is closed when it has said that it is ready.
	Ready() <-chan struct{}
	// Fed has an entry whenever it has said that it is alive.
	Fed() <-chan struct{}
	// Done is closed when it has ended.
	Done() <-chan struct{}
	// Reason says how it ended, in a person's words; after Done.
	Reason() string
	// Orderly reports whether it said that it stops, and exited with 0; after Done.
	Orderly() bool
	// Kill ends it at once.
	Kill()
}

// Clock is the time; tests bring their own.
type Clock interface {
	Now() time.Time
	After(time.Duration) <-chan time.Time
}

// ErrDamaged is wrapped by what Verify finds: the program is not the one that was delivered.
var ErrDamaged = errors.New("the program on disk is damaged")

// Launcher supervises the host.
type Launcher struct {
	Baked  Host
	Limits Limits
	State  *State
	// Save puts State on the disk. A failure to save is reported and survived.
	Save func() error
	// Verify checks a delivered host's program before it is started or taken.
	Verify func(Host) error
	Start  func(Host) (Instance, error)
	Clock  Clock
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
	// OnChange is told what others may know, whenever it changes. May be nil.
	OnChange func(mesh.LauncherInfo)
	// Beat is called every few seconds as long as the launcher can do its work; not while a host that was killed does
	// not end, which nothing short of a reset can help. May be nil.
	Beat func()

	requests chan request
	info     mesh.LauncherInfo // what State does not know
}

// request is what somebody asks of the launcher. do runs in its goroutine; it says whether what runs is to be replaced.
type request struct {
	do    func() (replace bool, err error)
	reply chan error
}

// beatEvery is how often Launcher.Beat is called.
const beatEvery = 5 * time.Second

// leaving is how long the end of an orderly host may come before the end of the node that it is part of.
const leaving = 2 * time.Second

// New returns l with what it needs inside; its fields are set before.
func New(l Launcher) *Launcher {
	l.requests = make(chan request)
	return &l
}

// Offer asks the launcher to replace the host by h, which the running one has fetched and checked; the digest BakedIn
// alone asks for the one in the root image. The running one is ended and h started under the same rules as any other. It
// returns once h is the one to run, or refused.
func (l *Launcher) Offer(ctx context.Context, h Host) error {
	return l.ask(ctx, func() (bool, error) { return l.offered(h) })
}

// Clear lets a host out of quarantine.
func (l *Launcher) Clear(ctx context.Context, digest string) error {
	return l.ask(ctx, func() (bool, error) {
		if !l.State.Clear(digest) {
			return false, nil
		}
		if l.info.Refused == digest {
			l.info.Refused, l.info.RefusedReason = "", ""
		}
		l.save()
		l.Log.WithField("host", digest).Warn("host cleared: its failures are forgotten")
		return false, nil
	})
}

func (l *Launcher) ask(ctx context.Context, do func() (bool, error)) error {
	r := request{do, make(chan error, 1)}
	select {
	case l.requests <- r:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-r.reply:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// offered takes or refuses a successor.
func (l *Launcher) offered(h Host) (replace bool, err error) {
	l.info.Answered++
	was := l.State.Current
	err = l.State.Offer(h, l.Limits)
	if err == nil && h.Digest != BakedIn {
		// Before the running one is ended: it is the one who can fetch it again.
		if err = l.Verify(h); err != nil {
			l.State.Damage(h, err.Error(), l.Clock.Now())
			l.State.Current = was
		}
	}
	if err != nil {
		l.info.Refused, l.info.RefusedReason = h.Digest, err.Error()
		l.save()
		return false, err
	}
	l.info.Refused, l.info.RefusedReason = "", ""
	l.save()
	return h.Digest != l.info.Current, nil
}

// Run supervises until ctx ends, and leaves the host as it is then: who ends ctx ends the host.
func (l *Launcher) Run(ctx context.Context) {
	if err := l.Limits.Check(); err != nil {
		l.Report(fmt.Sprintf("error the launcher's limits make no sense and the usual ones are used: %v", err))
		l.Limits = DefaultLimits
	}
	l.State.Boot(l.Limits)
	row := 0 // failures in a row in this boot, of whichever host: what the delay grows with
	for ctx.Err() == nil {
		before := l.State.Current
		h, ok := l.State.Next(l.Baked, l.Limits)
		if !ok {
			l.halt(ctx)
			row = 0
			continue
		}
		if h.Digest != before {
			l.Report(fmt.Sprintf("error host %s is given up (%s); going back to %s", short(before), l.last(before), short(h.Digest)))
			row = 0
		}
		l.info.Current, l.info.Proven, l.info.Halted = h.Digest, false, ""
		if l.State.Trying(h, l.Clock.Now()) || h.Digest != before {
			l.save()
		} else {
			l.changed()
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
		if !l.idle(ctx, l.Clock.After(Delay(row, l.Limits, l.Random()))) {
			return
		}
	}
}

// once starts h and watches it until it ends; it reports whether that was a failure.
func (l *Launcher) once(ctx context.Context, h Host) (failed bool) {
	if h.Digest != BakedIn {
		if err := l.Verify(h); err != nil {
			l.State.Damage(h, err.Error(), l.Clock.Now())
			l.save()
			l.Report(fmt.Sprintf("error host %s is not started: %v", short(h.Digest), err))
			return true
		}
	}
	in, err := l.Start(h)
	if err != nil {
		l.fail(h, err.Error())
		return true
	}
	l.Log.WithField("host", h.Digest).Info("host started")
	w := watch{l: l, h: h, in: in, timer: l.alarm(l.Limits.ReadyWithin)}
	return w.run(ctx)
}

func (l *Launcher) fail(h Host, why string) {
	n := l.State.Failed(h, why, l.Clock.Now())
	l.save()
	// Report shows it; as an error of the log it would stand on the console twice.
	l.Log.WithFields(logrus.Fields{"host": h.Digest, "failures": n, "reason": why}).Info("host failed")
	l.Report(fmt.Sprintf("error host %s failed, %d of %d: %s", short(h.Digest), n, l.State.find(h.Digest).limit(l.Limits), why))
}

// halt waits for a different host; nothing else helps any more.
func (l *Launcher) halt(ctx context.Context) {
	why := l.last(BakedIn)
	l.Report(fmt.Sprintf("error the host of this release has failed %d times in a row and is not started again before the next boot: %s", l.Limits.MaxFailures, why))
	l.info.Current, l.info.Halted = "", why
	l.changed()
	if l.OnHalt != nil {
		l.OnHalt(why)
	}
	l.idle(ctx, nil)
}

// idle waits until over, while no host runs. It ends early when something was asked for that changes what is to run.
// False: ctx has ended.
func (l *Launcher) idle(ctx context.Context, over <-chan time.Time) bool {
	for {
		l.beat()
		select {
		case <-ctx.Done():
			return false
		case <-over:
			return true
		case <-l.Clock.After(beatEvery):
		case r := <-l.requests:
			replace, err := r.do()
			r.reply <- err
			if replace && err == nil {
				return true
			}
		}
	}
}

func (l *Launcher) beat() {
	if l.Beat != nil {
		l.Beat()
	}
}

func (l *Launcher) last(digest string) string {
	if r := l.State.find(digest); r != nil && r.Damaged != "" {
		return r.Damaged
	} else if r != nil && r.Last != "" {
		return r.Last
	}
	return "no reason is known"
}

func (l *Launcher) save() {
	if err := l.Save(); err != nil {
		l.Log.WithError(err).Error("save the launcher's state; failures are not counted across a reboot")
	}
	l.changed()
}

func (l *Launcher) changed() {
	if l.OnChange == nil {
		return
	}
	i := l.State.info(l.Limits)
	i.Proven, i.Halted = l.info.Proven, l.info.Halted
	i.Refused, i.RefusedReason, i.Answered = l.info.Refused, l.info.RefusedReason, l.info.Answered
	l.OnChange(i)
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
