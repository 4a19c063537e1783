package blockdev

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// memoryAlign is what direct I/O wants of an address; it fits all sector sizes.
const memoryAlign = 4096

// zeroChunk is how much is written, or zeroed by one call, at once, in bytes: a call on a slow disk cannot be interrupted.
const (
	zeroWrite = 1 << 20
	zeroCall  = 64 << 20
)

// medium is an open disk or file: reads come from the medium and not from the page cache.
type medium struct {
	f      *os.File
	path   string
	size   int64
	sector int
	// align is what offsets and lengths of direct I/O are multiples of; 0 where there is none, and the page cache is
	// told to forget before each read.
	align int64

	// small is held while a part of a block is read, changed and written.
	small sync.Mutex
}

// Size is in bytes.
func (m *medium) Size() int64 { return m.size }

// SectorSize is in bytes.
func (m *medium) SectorSize() int { return m.sector }

// Path is what was opened.
func (m *medium) Path() string { return m.path }

// Sync returns when everything that was written is on the medium.
func (m *medium) Sync() error { return m.f.Sync() }

func buffer(n int64) []byte {
	b := make([]byte, n+memoryAlign)
	skip := int64(-uintptr(unsafe.Pointer(&b[0])) & (memoryAlign - 1))
	return b[skip : skip+n : skip+n]
}

func (m *medium) aligned(p []byte, off int64) bool {
	return off%m.align == 0 && int64(len(p))%m.align == 0 && uintptr(unsafe.Pointer(&p[0]))%memoryAlign == 0
}

// bounds are the blocks around n bytes at off.
func (m *medium) bounds(off, n int64) (from, to int64) {
	from = off / m.align * m.align
	return from, min((off+n+m.align-1)/m.align*m.align, m.size)
}

// ReadAt implements io.ReaderAt.
func (m *medium) ReadAt(p []byte, off int64) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if off < 0 || off >= m.size {
		return 0, io.EOF
	}
	if m.align == 0 {
		// Dropping what is clean is enough: everything was synced before it is read back.
		_ = unix.Fadvise(int(m.f.Fd()), off, int64(len(p)), unix.FADV_DONTNEED)
		return m.f.ReadAt(p, off)
	}
	if m.aligned(p, off) && off+int64(len(p)) <= m.size {
		return m.f.ReadAt(p, off)
	}
	want := min(int64(len(p)), m.size-off)
	from, to := m.bounds(off, want)
	b := buffer(to - from)
	if _, err := m.f.ReadAt(b, from); err != nil {
		return 0, err
	}
	n := copy(p[:want], b[off-from:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// WriteAt implements io.WriterAt.
func (m *medium) WriteAt(p []byte, off int64) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if off < 0 || off+int64(len(p)) > m.size {
		return 0, fmt.Errorf("write of %d bytes at %d is outside %s of %d bytes", len(p), off, m.path, m.size)
	}
	if m.align == 0 || m.aligned(p, off) {
		return m.f.WriteAt(p, off)
	}
	m.small.Lock()
	defer m.small.Unlock()
	from, to := m.bounds(off, int64(len(p)))
	b := buffer(to - from)
	if from != off || to != off+int64(len(p)) {
		if _, err := m.f.ReadAt(b, from); err != nil {
			return 0, fmt.Errorf("read what lies around it: %w", err)
		}
	}
	copy(b[off-from:], p)
	if _, err := m.f.WriteAt(b, from); err != nil {
		return 0, err
	}
	return len(p), nil
}

// writeZeros writes zeros as data.
func (m *medium) writeZeros(off, n int64) error {
	b := buffer(min(n, zeroWrite))
	for n > 0 {
		k := min(n, int64(len(b)))
		if _, err := m.WriteAt(b[:k], off); err != nil {
			return err
		}
		off, n = off+k, n-k
	}
	return nil
}

// noSpace adds to ENOSPC what it was that is full.
func noSpace(err error, path string) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("%w: the file system that %s is on is full; free some space", err, path)
	}
	return err
}
