package pid1

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// The watchdog is fed only while launcher and reaper are alive, and a machine that was suspended is not punished for it.
func TestVitals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var v vitals
		v.begin()
		// look is the main loop for a while; alive are the parts that do their work meanwhile.
		look := func(d time.Duration, alive ...*pulse) string {
			for end := time.Now().Add(d); time.Now().Before(end); {
				time.Sleep(watchdogFeed)
				for _, p := range alive {
					p.beat()
				}
				if why := v.stalled(); why != "" {
					return why
				}
			}
			return ""
		}
		if why := look(24*time.Hour, &v.launcher, &v.reaper); why != "" {
			t.Errorf("all are alive, and it says %q", why)
		}
		start := time.Now()
		if why := look(time.Hour, &v.reaper); !strings.Contains(why, "launcher") || time.Since(start) > 2*stallAfter {
			t.Errorf("after %s without the launcher it says %q", time.Since(start), why)
		}
		if why := look(time.Hour, &v.launcher); !strings.Contains(why, "reaping") {
			t.Errorf("without the reaper it says %q", why)
		}
		v.reaper.beat()
		v.launcher.beat()
		v.stalled()
		time.Sleep(time.Hour) // suspended
		if why := v.stalled(); why != "" {
			t.Errorf("after an hour of standing still as a whole it says %q", why)
		}
		if why := look(time.Hour, &v.launcher, &v.reaper); why != "" {
			t.Errorf("awake again it says %q", why)
		}
	})
}
