package pid1

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

// watchdogTime is what the kernel's watchdog is set to, watchdogFeed how often it is fed.
const (
	watchdogTime = 60 // seconds
	watchdogFeed = 15 * time.Second
)

// watchdogDevice is the first watchdog that the kernel has.
const watchdogDevice = "/dev/watchdog"

// softDog is the kernel's own watchdog: a timer that restarts the machine. It helps against a PID 1 or a host that stands
// still, not against a kernel that does.
const softDog = "softdog"

// watchdog is the kernel's watchdog device: a node whose PID 1 stands still is reset.
type watchdog struct {
	f   *os.File
	off bool // it was refused once; asking every few seconds would only fill the log
}

// feed feeds the device, and takes it first where it has appeared: its driver comes late.
func (w *watchdog) feed(log logrus.FieldLogger) {
	if w.f == nil && !w.off {
		w.open(log)
	}
	if w.f != nil {
		_, _ = w.f.Write([]byte{0})
	}
}

func (w *watchdog) open(log logrus.FieldLogger) {
	f, err := os.OpenFile(watchdogDevice, os.O_WRONLY, 0)
	if err != nil {
		if !errors.Is(err, os.ErrNotExist) {
			log.WithError(err).Warn("the watchdog is not used")
			w.off = true
		}
		return
	}
	w.f = f
	log.Info("the watchdog is fed")
	// A device that keeps its own time is fed all the same.
	if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.WDIOC_SETTIMEOUT, watchdogTime); err != nil {
		log.WithError(err).Info("the watchdog keeps its own time")
	}
}

// soften loads the kernel's own watchdog on a machine that has no other, once all drivers are there.
func (m *modules) soften(ctx context.Context) {
	if _, err := os.Stat(watchdogDevice); err == nil || m.l == nil {
		return
	}
	if err := m.l.Load(ctx, softDog); err != nil {
		m.p.warn("this machine has no watchdog, and the kernel's own is not there either: %v", err)
		return
	}
	m.p.log.Info("this machine has no watchdog: the kernel's own takes its place")
}
