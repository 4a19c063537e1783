package pid1

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"time"
	"unsafe"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

// watchdogTime is what the kernel's watchdog is set to, watchdogFeed how often it is fed.
const (
	watchdogTime = 60 // seconds
	watchdogFeed = 15 * time.Second
)

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
	f, err := os.OpenFile("/dev/watchdog", os.O_WRONLY, 0)
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

// inputEvent is struct input_event of Linux on 64-bit machines, in bytes.
const inputEvent = 24

// Numbers of input-event-codes.h.
const (
	evKey    = 1
	keyPower = 116
)

// watchButtons sends on pressed when a power button is pressed. Its devices appear with their drivers, so it looks again.
func watchButtons(ctx context.Context, pressed chan<- string, log logrus.FieldLogger) {
	known := map[string]bool{}
	for pause := time.Second; ; pause = min(2*pause, time.Minute) {
		names, err := filepath.Glob("/dev/input/event*")
		if err != nil {
			return
		}
		for _, n := range names {
			if known[n] {
				continue
			}
			known[n] = true
			f, err := os.OpenFile(n, os.O_RDONLY|unix.O_NONBLOCK, 0)
			if err != nil {
				continue
			}
			if !hasKey(f, keyPower) {
				f.Close()
				continue
			}
			log.WithField("device", n).Info("power button")
			go readButton(ctx, f, pressed)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// hasKey asks a device whether it has a key, by EVIOCGBIT(EV_KEY, 96).
func hasKey(f *os.File, key int) bool {
	var bits [96]byte
	const eviocgbit = 2<<30 | len(bits)<<16 | 'E'<<8 | (0x20 + evKey)
	rc, err := f.SyscallConn()
	if err != nil {
		return false
	}
	var e unix.Errno
	if err := rc.Control(func(fd uintptr) {
		_, _, e = unix.Syscall(unix.SYS_IOCTL, fd, uintptr(eviocgbit), uintptr(unsafe.Pointer(&bits[0])))
	}); err != nil || e != 0 {
		return false
	}
	return bits[key/8]&(1<<(key%8)) != 0
}

func readButton(ctx context.Context, f *os.File, pressed chan<- string) {
	stop := context.AfterFunc(ctx, func() { f.Close() })
	defer stop()
	buf := make([]byte, 16*inputEvent)
	for {
		n, err := f.Read(buf)
		if err != nil {
			f.Close()
			return
		}
		for b := buf[:n]; len(b) >= inputEvent; b = b[inputEvent:] {
			typ := binary.NativeEndian.Uint16(b[16:])
			code := binary.NativeEndian.Uint16(b[18:])
			value := binary.NativeEndian.Uint32(b[20:])
			if typ == evKey && code == keyPower && value == 1 {
				select {
				case pressed <- f.Name():
				default:
				}
			}
		}
	}
}
