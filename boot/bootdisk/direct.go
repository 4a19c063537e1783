package bootdisk

import (
	"fmt"
	"io"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// directAlign is what addresses, offsets and lengths of direct reads are multiples of; it fits 512-byte and 4096-byte sectors.
const directAlign = 4096

// bounceSize is how much is read at a time where the caller's buffer does not fit, in bytes.
const bounceSize = 256 << 10

// Direct reads a block device past the page cache. A whole root goes through here once at every boot: from the page
// cache that would be ten times slower in an emulated machine (the copy, not the disk, is what costs) and push
// everything else out of a small one's memory.
type Direct struct {
	f *os.File

	mu     sync.Mutex
	bounce []byte
}

// OpenDirect opens a block device for reading.
func OpenDirect(path string) (*Direct, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return &Direct{f: os.NewFile(uintptr(fd), path)}, nil
}

// ReadAt implements io.ReaderAt for any offset and length; aligned ones go straight into p.
func (d *Direct) ReadAt(p []byte, off int64) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if aligned(p, off) {
		return d.f.ReadAt(p, off)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.bounce == nil {
		b := make([]byte, bounceSize+directAlign)
		skip := -uintptr(unsafe.Pointer(&b[0])) & (directAlign - 1)
		d.bounce = b[skip : skip+bounceSize]
	}
	done := 0
	for done < len(p) {
		at := off + int64(done)
		start := at &^ (directAlign - 1)
		want := min((at-start+int64(len(p)-done)+directAlign-1)&^(directAlign-1), bounceSize)
		n, err := d.f.ReadAt(d.bounce[:want], start)
		if int64(n) <= at-start {
			if err == nil {
				err = io.ErrUnexpectedEOF
			}
			return done, err
		}
		done += copy(p[done:], d.bounce[at-start:n])
		if err != nil && done < len(p) {
			return done, err
		}
	}
	return done, nil
}

func aligned(p []byte, off int64) bool {
	return uintptr(unsafe.Pointer(&p[0]))%directAlign == 0 && off%directAlign == 0 && len(p)%directAlign == 0
}

// Close closes the device.
func (d *Direct) Close() error { return d.f.Close() }
