package pid1

import (
	"sync"
	"sync/atomic"
	"time"
)

// stallAfter is how long a part of PID 1 may stand still before the watchdog is not fed any more. What each of them waits
// for is bounded by far less; a disk that hangs is not, and then a reset is what is left.
const stallAfter = 90 * time.Second

// vitals are the parts of PID 1 without which a node is not looked after. The main loop is the third: it feeds the watchdog.
type vitals struct {
	reaper   pulse
	launcher pulse
	looked   time.Time // when the main loop looked last
	told     sync.Once
}

// pulse is when a part was last alive, by the monotonic clock.
type pulse struct {
	base time.Time
	at   atomic.Int64 // nanoseconds since base
}

func (v *vitals) begin() {
	now := time.Now()
	v.reaper.base, v.launcher.base, v.looked = now, now, now
}

func (p *pulse) beat() { p.at.Store(int64(time.Since(p.base))) }

func (p *pulse) silent() time.Duration { return time.Since(p.base) - time.Duration(p.at.Load()) }

// stalled names the part that stands still, "" when none does.
func (v *vitals) stalled() string {
	now := time.Now()
	late := now.Sub(v.looked) > 2*watchdogFeed
	v.looked = now
	if late {
		return "" // the machine as a whole stood still, and the parts have had no time since
	}
	if v.launcher.silent() > stallAfter {
		return "the launcher, or a host that it cannot end,"
	}
	if v.reaper.silent() > stallAfter {
		return "the reaping of processes"
	}
	return ""
}

// starve says once that the watchdog is not fed any more.
func (p *pid1) starve(why string) {
	p.vitals.told.Do(func() {
		p.console.Line("error %s has stood still for %s: the watchdog is not fed any more and resets the node", why, stallAfter)
	})
}
