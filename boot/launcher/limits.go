package launcher

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Limits are the launcher's bounds.
type Limits struct {
	// MaxFailures is how often in a row a host that was good once may fail before it is given up, MaxTrials how often one
	// that never was.
	MaxFailures int
	MaxTrials   int
	// HealthyAfter is how long a host must have been ready to be healthy, which is what forgets its failures.
	HealthyAfter time.Duration
	ReadyWithin  time.Duration // not ready by then is a failure
	// WatchdogWithin is the longest silence of a ready host. One that hangs says nothing.
	WatchdogWithin time.Duration
	FirstDelay     time.Duration // before the first restart; doubles with each failure in a row
	MaxDelay       time.Duration
}

// DefaultLimits fit real machines and emulated ones, where a start takes many seconds.
var DefaultLimits = Limits{
	MaxFailures: 5, MaxTrials: 3,
	HealthyAfter: 90 * time.Second, ReadyWithin: 90 * time.Second, WatchdogWithin: time.Minute,
	FirstDelay: 500 * time.Millisecond, MaxDelay: 30 * time.Second,
}

// maxReach is the longest that a host which never works may keep a node busy before it is given up.
const maxReach = time.Hour

// Check says whether a host that fails in whichever way is ever given up with these limits. The count goes back to zero
// when a host is healthy and never by time alone, so a delay can never outrun it; what can is a fault that shows only
// after the host counts as healthy.
func (l Limits) Check() error {
	switch {
	case l.MaxFailures < 1 || l.MaxTrials < 1:
		return fmt.Errorf("a host may fail %d times, a new one %d times: at least 1 each", l.MaxFailures, l.MaxTrials)
	case l.ReadyWithin <= 0 || l.HealthyAfter <= 0 || l.WatchdogWithin <= 0:
		return errors.New("the times for ready, healthy and the watchdog must be more than nothing")
	case l.FirstDelay <= 0 || l.MaxDelay < l.FirstDelay:
		return fmt.Errorf("delays from %s to %s: the first must be more than nothing and at most the longest", l.FirstDelay, l.MaxDelay)
	case l.WatchdogWithin >= l.HealthyAfter:
		return fmt.Errorf("a host that hangs as soon as it is ready would be healthy after %s, and be found stuck after %s only: its failures would be forgotten each time and the limit of %d never be reached",
			l.HealthyAfter, l.WatchdogWithin, l.MaxFailures)
	case l.Reach() > maxReach:
		return fmt.Errorf("a host that never works would be given up after %s; the longest is %s", l.Reach(), maxReach)
	}
	return nil
}

// Reach is the longest that a host which never becomes healthy can be tried before it is given up, what it takes to be
// killed left out.
func (l Limits) Reach() time.Duration {
	// The worst one uses up its time to be ready and then just fails to be healthy.
	total := time.Duration(0)
	for n := 1; n <= max(l.MaxFailures, l.MaxTrials); n++ {
		total += l.ReadyWithin + l.HealthyAfter + Delay(n, l, 0)
		if total > 100*maxReach {
			break
		}
	}
	return total
}

// ParseLimits reads changes to def, "ready=20s,healthy=10s,watchdog=5s,failures=3,trials=2,delay=100ms,max-delay=1s", and
// checks what comes out.
func ParseLimits(s string, def Limits) (Limits, error) {
	l := def
	for _, kv := range strings.Split(s, ",") {
		name, value, ok := strings.Cut(kv, "=")
		if !ok {
			return def, fmt.Errorf("%.40q is not NAME=VALUE", kv)
		}
		var err error
		switch name {
		case "failures":
			l.MaxFailures, err = strconv.Atoi(value)
		case "trials":
			l.MaxTrials, err = strconv.Atoi(value)
		case "ready":
			l.ReadyWithin, err = time.ParseDuration(value)
		case "healthy":
			l.HealthyAfter, err = time.ParseDuration(value)
		case "watchdog":
			l.WatchdogWithin, err = time.ParseDuration(value)
		case "delay":
			l.FirstDelay, err = time.ParseDuration(value)
		case "max-delay":
			l.MaxDelay, err = time.ParseDuration(value)
		default:
			err = errors.New("it is unknown; failures, trials, ready, healthy, watchdog, delay and max-delay are known")
		}
		if err != nil {
			return def, fmt.Errorf("%.40q: %w", kv, err)
		}
	}
	if err := l.Check(); err != nil {
		return def, err
	}
	return l, nil
}
