// Package timesync keeps a node's clock right: it asks time servers (SNTP, RFC 5905) that node.yaml or DHCP names, else
// the control-node, decides what to believe, and moves the clock.
//
// It never sets a clock before its floor (the release's date and the last time that servers confirmed) or beyond 2200,
// never believes one server against two others that agree, and never moves a clock that was right by more than a
// quarter of an hour on one or two servers' word, unless they stay with it. It works with no server: then it does nothing.
//
// Start with Keeper.Run; choose.go decides what to believe, ntp.go and node.go ask, kernel.go is the clock.
package timesync

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
)

// Bounds of what is done to a clock.
const (
	// stepFrom is the offset from which the clock is set at once; a smaller one is slewed, so that time never runs
	// backwards for those who measure with it. It is NTP's STEPT (RFC 5905, section 11.3).
	stepFrom = 128 * time.Millisecond
	// doubtFrom is the offset that fewer than three servers are not believed at once, after the first time.
	doubtFrom = 15 * time.Minute
	// doubtPolls is how often in a row they have to say the same until they are.
	doubtPolls = 3
)

// Pauses between polls.
const (
	firstPoll = 2 * time.Second
	leastPoll = 64 * time.Second // once the clock is right
	mostPoll  = 1024 * time.Second
	// steady is the offset up to which polls come less and less often.
	steady = 20 * time.Millisecond
)

// latest is the latest time that is believed.
var latest = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)

// Clock is a clock that can be moved.
type Clock interface {
	Now() time.Time
	Step(by time.Duration) error
	Slew(by time.Duration) error
}

// Config is what a Keeper is made of.
type Config struct {
	// Servers lists who is to be asked, and says who named them.
	Servers func() (servers []string, from string)
	// Changed is closed when Servers may give others.
	Changed func() <-chan struct{}
	// Ask asks one server.
	Ask   func(ctx context.Context, server string) (Sample, error)
	Clock Clock
	// Floor is the earliest time that the clock may be set to.
	Floor func() time.Time
	// Keep is told a time that servers have confirmed.
	Keep func(time.Time)
	Log  logrus.FieldLogger
}

// Status is how the clock stands.
type Status struct {
	// Synced is set once servers have confirmed or corrected the clock and as long as they have not been silent since.
	Synced bool
	From   string        // who named the servers: "node.yaml", "DHCP", "control-node"
	Server string        // the one whose time was taken
	Offset time.Duration // how far the clock was off
	// Reason says why it is not synced.
	Reason string
}

// Keeper keeps a clock.
type Keeper struct {
	cfg Config

	mu     sync.Mutex
	status Status

	done  bool // the clock was right once since the start
	doubt struct {
		offset time.Duration
		times  int
	}
}

// New makes a Keeper; nothing happens until Run.
func New(cfg Config) *Keeper {
	return &Keeper{cfg: cfg, status: Status{Reason: "nobody was asked yet"}}
}

// Status is how the clock stands.
func (k *Keeper) Status() Status {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.status
}

// Run keeps the clock until ctx is done.
func (k *Keeper) Run(ctx context.Context) error {
	pause := firstPoll
	for ctx.Err() == nil {
		changed := k.cfg.Changed()
		offset, err := k.poll(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			k.failed(err)
			pause = min(2*pause, leastPoll)
		case offset.Abs() > steady:
			pause = leastPoll
		default:
			pause = min(max(2*pause, leastPoll), mostPoll)
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-changed:
			// Not at once: a network that has just come up is not there yet, and one that flaps is asked no more often.
			wait(ctx, firstPoll)
			pause = firstPoll
		}
		timer.Stop()
	}
	return nil
}

func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// failed keeps why the clock is not known to be right, and says it once.
func (k *Keeper) failed(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.status.Synced || k.status.Reason != err.Error() {
		k.cfg.Log.WithError(err).Info("time: the clock is not synced")
	}
	k.status.Synced, k.status.Reason = false, err.Error()
}

// poll asks all servers once and moves the clock by what is believed.
func (k *Keeper) poll(ctx context.Context) (time.Duration, error) {
	servers, from := k.cfg.Servers()
	if len(servers) == 0 {
		return 0, fmt.Errorf("no time server: neither node.yaml nor DHCP names one")
	}
	samples, err := askAll(ctx, servers, k.cfg.Ask)
	if err != nil {
		return 0, err
	}
	c, err := choose(samples)
	if err != nil {
		return 0, err
	}
	for _, o := range c.outvoted {
		k.cfg.Log.WithFields(logrus.Fields{"server": o.Server, "offset": o.Offset.String()}).Warn("time: a server is outvoted by the others")
	}
	if err := k.believe(c); err != nil {
		return 0, err
	}
	if err := k.move(c.Offset); err != nil {
		return 0, err
	}
	k.cfg.Keep(k.cfg.Clock.Now())
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.status.Synced || c.Offset.Abs() >= stepFrom {
		k.cfg.Log.WithFields(logrus.Fields{"server": c.Server, "from": from, "offset": c.Offset.String(), "agree": c.agree}).Info("time: the clock is synced")
	}
	k.done = true
	k.status = Status{Synced: true, From: from, Server: c.Server, Offset: c.Offset}
	return c.Offset, nil
}

// believe says what is against an offset that was chosen.
func (k *Keeper) believe(c choice) error {
	to := k.cfg.Clock.Now().Add(c.Offset)
	const form = "2006-01-02 15:04"
	if floor := k.cfg.Floor(); to.Before(floor) {
		return fmt.Errorf("%s says that it is %s, which is before %s, when this node knows it was later; it is not believed", c.Server, to.UTC().Format(form), floor.UTC().Format(form))
	}
	if to.After(latest) {
		return fmt.Errorf("%s says that it is %s, which is not believed", c.Server, to.UTC().Format(form))
	}
	if !k.done || c.Offset.Abs() < doubtFrom || c.agree >= 3 {
		k.doubt.times = 0
		return nil
	}
	if k.doubt.times == 0 || (c.Offset-k.doubt.offset).Abs() > time.Minute {
		k.doubt.times = 0
	}
	k.doubt.times++
	k.doubt.offset = c.Offset
	if k.doubt.times >= doubtPolls {
		k.doubt.times = 0
		return nil
	}
	return fmt.Errorf("%s says that the clock, which was right, is off by %s; that is believed when it stays with it, or at once of three servers that agree", c.Server, c.Offset.Round(time.Second))
}

// move moves the clock: small offsets slowly, others at once.
func (k *Keeper) move(by time.Duration) error {
	if by.Abs() < stepFrom {
		if err := k.cfg.Clock.Slew(by); err != nil {
			return fmt.Errorf("slew the clock by %s: %w", by, err)
		}
		return nil
	}
	before := k.cfg.Clock.Now()
	if err := k.cfg.Clock.Step(by); err != nil {
		return fmt.Errorf("set the clock by %s: %w", by, err)
	}
	k.cfg.Log.WithFields(logrus.Fields{"from": before.UTC().Format(time.RFC3339), "to": before.Add(by).UTC().Format(time.RFC3339)}).Warn("time: the clock was set")
	return nil
}
