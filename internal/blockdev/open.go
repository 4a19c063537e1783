package blockdev

import (
	"errors"
	"fmt"
	"io"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrBusy is wrapped where the kernel does not give a disk to one alone: something holds it.
var ErrBusy = errors.New("something holds it")

// Target is a disk that was opened for writing, for this program alone: while it is open nobody can mount it or any of its
// partitions.
type Target struct{ medium }

// Open opens a disk. One that is held is ErrBusy.
func Open(path string) (*Target, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_DIRECT|unix.O_EXCL|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.EBUSY):
		return nil, fmt.Errorf("open %s: %w: %w", path, ErrBusy, err)
	case errors.Is(err, unix.ENOMEDIUM):
		return nil, fmt.Errorf("open %s: there is no medium in it", path)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return nil, fmt.Errorf("open %s: %w; writing to disks needs root", path, err)
	case err != nil:
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	t := &Target{medium{f: os.NewFile(uintptr(fd), path), path: path}}
	if err := t.measure(); err != nil {
		return nil, fmt.Errorf("open %s: %w", path, errors.Join(err, t.f.Close()))
	}
	return t, nil
}

func (t *Target) measure() error {
	st, err := t.f.Stat()
	if err != nil {
		return err
	}
	if st.Mode()&os.ModeDevice == 0 || st.Mode()&os.ModeCharDevice != 0 {
		return errors.New("it is no block device")
	}
	fd := int(t.f.Fd())
	if t.sector, err = unix.IoctlGetInt(fd, unix.BLKSSZGET); err != nil {
		return fmt.Errorf("its sector size: %w", err)
	}
	if t.size, err = t.f.Seek(0, io.SeekEnd); err != nil {
		return fmt.Errorf("its size: %w", err)
	}
	t.align = int64(t.sector)
	return nil
}

// Zero makes n bytes at off read as zeros. Longer places are left to the disk, which can do it without being sent the zeros.
func (t *Target) Zero(off, n int64) error {
	s := int64(t.sector)
	from, to := (off+s-1)/s*s, (off+n)/s*s
	if to-from < 128<<10 {
		return t.writeZeros(off, n)
	}
	if err := t.writeZeros(off, from-off); err != nil {
		return err
	}
	for at := from; at < to; at += zeroCall {
		arg := [2]uint64{uint64(at), uint64(min(zeroCall, to-at))}
		if _, _, e := unix.Syscall(unix.SYS_IOCTL, t.f.Fd(), unix.BLKZEROOUT, uintptr(unsafe.Pointer(&arg))); e != 0 {
			if e != unix.EOPNOTSUPP && e != unix.ENOTTY && e != unix.EINVAL {
				return fmt.Errorf("zero %d bytes at %d: %w", arg[1], arg[0], e)
			}
			if err := t.writeZeros(at, to-at); err != nil {
				return err
			}
			break
		}
	}
	return t.writeZeros(to, off+n-to)
}

// Reread has the kernel read the partition table anew.
func (t *Target) Reread() error {
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, t.f.Fd(), unix.BLKRRPART, 0); e != 0 {
		return fmt.Errorf("have the kernel read the partition table of %s: %w", t.path, e)
	}
	return nil
}

// Close lets the disk go.
func (t *Target) Close() error { return t.f.Close() }

// File is a regular file as a target.
type File struct {
	medium
	fresh bool // it was empty, so it reads as zeros where nothing was written
}

// OpenFile opens a file as a target of at least size bytes, made where it does not exist. A larger one keeps its size.
func OpenFile(path string, size int64) (*File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the target: %w", err)
	}
	t := &File{medium: medium{f: f, path: path, sector: 512}}
	if err := t.prepare(size); err != nil {
		return nil, fmt.Errorf("open %s: %w", path, errors.Join(err, f.Close()))
	}
	return t, nil
}

func (t *File) prepare(size int64) error {
	st, err := t.f.Stat()
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() {
		return errors.New("it is no regular file")
	}
	if held, err := locked(t.f); err == nil && held {
		return fmt.Errorf("%w: another program has locked it, as a virtual machine does with its disk", ErrBusy)
	}
	t.fresh, t.size = st.Size() == 0, max(st.Size(), size)
	if st.Size() < size {
		if err := t.f.Truncate(size); err != nil {
			return noSpace(err, t.path)
		}
	}
	if t.size%memoryAlign != 0 {
		return nil // through the page cache: direct writes would make it longer
	}
	if direct, err := os.OpenFile(t.path, os.O_RDWR|unix.O_DIRECT, 0); err == nil {
		old := t.f
		t.f, t.align = direct, memoryAlign
		return old.Close()
	}
	return nil // a file system without direct I/O
}

// locked reports whether another program has a lock on the file (fcntl(2), open file description locks).
func locked(f *os.File) (bool, error) {
	l := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &l); err != nil {
		return false, err
	}
	return l.Type != unix.F_UNLCK, nil
}

// WriteAt implements io.WriterAt.
func (t *File) WriteAt(p []byte, off int64) (int, error) {
	n, err := t.medium.WriteAt(p, off)
	return n, noSpace(err, t.path)
}

// Zero makes n bytes at off read as zeros, by a hole where the file system has them.
func (t *File) Zero(off, n int64) error {
	if t.fresh {
		if at, err := t.NextData(off); err == nil && at >= off+n {
			return nil
		}
	}
	err := unix.Fallocate(int(t.f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = t.writeZeros(off, n)
	}
	return noSpace(err, t.path)
}

// NextData is the first byte from off on that is in no hole; the file's size where there is none.
func (t *File) NextData(off int64) (int64, error) {
	at, err := unix.Seek(int(t.f.Fd()), off, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) {
		return t.size, nil
	}
	return at, err
}

// Close closes the file.
func (t *File) Close() error { return t.f.Close() }
