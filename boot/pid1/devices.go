package pid1

import (
	"context"
	"encoding/binary"
	"os"
	"path/filepath"
	"time"
	"unsafe"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

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
