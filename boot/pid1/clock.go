package pid1

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"kingpost/internal/atomicfile"
	"kingpost/internal/mesh"
)

// clockFile holds the last known time, in seconds since 1970. It is what the clock is raised to, and no floor: a clock that
// stood in the future has written it, and time servers may say better. Their word is in mesh.PathClockSynced.
const clockFile = stateDir + "/clock"

// clockEvery is how often the time is kept.
const clockEvery = 10 * time.Minute

// clock raises a clock that stands before the release's date or before the last time that is on disk. A machine without a
// battery would otherwise take every certificate for one from the future.
func (p *pid1) clock() {
	var last []string
	for _, f := range []string{clockFile, mesh.PathClockSynced} {
		if b, err := os.ReadFile(f); err == nil {
			last = append(last, string(b))
		}
	}
	now := time.Now()
	to, text := floor(now, p.info.Release.Date, last...)
	if text == "" {
		return
	}
	tv := unix.NsecToTimeval(to.UnixNano())
	if err := unix.Settimeofday(&tv); err != nil {
		p.warn("the clock stands at %s and cannot be set: %v", now.UTC().Format(time.DateOnly), err)
		return
	}
	p.info.Clock = text
	p.log.Warn("clock " + text)
}

// maxClock is the latest time that is believed of the disk.
var maxClock = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)

// floor is the least that the clock may show: the later of the release's date and the last time on disk. The text is
// empty when now is not before it. What cannot be read counts as not there.
func floor(now time.Time, date string, last ...string) (time.Time, string) {
	least := time.Time{}
	from := "the release's date"
	if t, err := time.Parse(time.DateOnly, date); err == nil {
		least = t
	}
	for _, l := range last {
		if sec, err := strconv.ParseInt(strings.TrimSpace(l), 10, 64); err == nil {
			if t := time.Unix(sec, 0).UTC(); t.After(least) && t.Before(maxClock) {
				least, from = t, "the last time on disk"
			}
		}
	}
	if !now.Before(least) {
		return now, ""
	}
	const form = "2006-01-02 15:04"
	return least, fmt.Sprintf("raised from %s to %s, %s", now.UTC().Format(form), least.Format(form), from)
}

// saveClock keeps the time for a next boot without a clock.
func saveClock(now time.Time, log logrus.FieldLogger) {
	if err := atomicfile.Write(clockFile, []byte(strconv.FormatInt(now.Unix(), 10)+"\n"), 0o600); err != nil {
		log.WithError(err).Warn("keep the time on disk")
	}
}
