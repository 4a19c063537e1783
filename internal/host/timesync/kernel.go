package timesync

import (
	"time"

	"golang.org/x/sys/unix"
)

// Kernel is the machine's own clock (CLOCK_REALTIME).
type Kernel struct{}

// Now implements Clock, without the monotonic part: what is moved is the wall clock.
func (Kernel) Now() time.Time { return time.Now().Round(0) }

// Step implements Clock.
func (k Kernel) Step(by time.Duration) error {
	ts := unix.NsecToTimespec(k.Now().Add(by).UnixNano())
	if err := unix.ClockSettime(unix.CLOCK_REALTIME, &ts); err != nil {
		return err
	}
	return confirm()
}

// Slew implements Clock: the kernel makes seconds longer or shorter by at most 500 millionths.
func (Kernel) Slew(by time.Duration) error {
	const adjOffsetSingleshot = 0x8001 // linux/timex.h
	if _, err := unix.Adjtimex(&unix.Timex{Modes: adjOffsetSingleshot, Offset: by.Microseconds()}); err != nil {
		return err
	}
	return confirm()
}

// confirm tells the kernel that the clock is right: it then writes it to the hardware clock every eleven minutes, so that
// the next boot starts with it.
func confirm() error {
	const status, maxError, estError = 0x0010, 0x0004, 0x0008 // ADJ_STATUS, ADJ_MAXERROR, ADJ_ESTERROR
	_, err := unix.Adjtimex(&unix.Timex{Modes: status | maxError | estError, Status: 0})
	return err
}
