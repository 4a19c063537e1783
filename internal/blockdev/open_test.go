package blockdev

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// target is what both kinds have.
type target interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	Zero(off, n int64) error
	Sync() error
	Size() int64
}

// exercise writes, zeroes and reads at any place and compares with memory.
func exercise(t *testing.T, d target) {
	t.Helper()
	rnd := rand.New(rand.NewPCG(1, 2))
	want := make([]byte, d.Size())
	if _, err := d.ReadAt(want, 0); err != nil && err != io.EOF {
		t.Fatal(err)
	}
	for i := range 80 {
		n := 1 + rnd.Int64N(300_000)
		if i%3 == 0 {
			n = 1 + rnd.Int64N(600)
		}
		off := rnd.Int64N(d.Size() - n + 1)
		if i%4 == 0 {
			off, n = off/4096*4096, max(n/4096*4096, 512)
		}
		if i%2 == 0 {
			b := buffer(n)
			for j := range b {
				b[j] = byte(rnd.Uint32())
			}
			copy(want[off:], b)
			if _, err := d.WriteAt(b, off); err != nil {
				t.Fatalf("write %d at %d: %v", n, off, err)
			}
		} else {
			clear(want[off : off+n])
			if err := d.Zero(off, n); err != nil {
				t.Fatalf("zero %d at %d: %v", n, off, err)
			}
		}
		if i%10 == 0 {
			if err := d.Sync(); err != nil {
				t.Fatal(err)
			}
		}
		got := make([]byte, n)
		if _, err := d.ReadAt(got, off); err != nil || !bytes.Equal(got, want[off:off+n]) {
			t.Fatalf("read back %d at %d: other bytes, %v", n, off, err)
		}
	}
	got := make([]byte, d.Size())
	if _, err := d.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the whole: other bytes, %v", err)
	}
	if _, err := d.WriteAt([]byte{1}, d.Size()); err == nil {
		t.Error("a write over the end is taken")
	}
	if n, err := d.ReadAt(make([]byte, 10), d.Size()-4); n != 4 || err != io.EOF {
		t.Errorf("a read over the end: %d, %v", n, err)
	}
}

func TestFile(t *testing.T) {
	for name, size := range map[string]int64{"direct": 4 << 20, "crooked": 4<<20 + 2048} {
		for _, old := range []bool{false, true} {
			t.Run(name+"/"+strconv.FormatBool(old), func(t *testing.T) {
				p := filepath.Join(t.TempDir(), "disk")
				if old {
					if err := os.WriteFile(p, bytes.Repeat([]byte("old!"), 1<<20), 0o644); err != nil {
						t.Fatal(err)
					}
				}
				f, err := OpenFile(p, size)
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				exercise(t, f)
			})
		}
	}
}

func TestFileOfAnotherIsRefused(t *testing.T) {
	p := filepath.Join(t.TempDir(), "disk")
	other, err := os.Create(p)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	lock := unix.Flock_t{Type: unix.F_RDLCK, Start: 100, Len: 1} // as QEMU locks an image
	rd, err := os.Open(p)
	if err != nil {
		t.Fatal(err)
	}
	defer rd.Close()
	if err := unix.FcntlFlock(rd.Fd(), unix.F_OFD_SETLK, &lock); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenFile(p, 1<<20); !errors.Is(err, ErrBusy) {
		t.Errorf("got %v", err)
	}
	if _, err := OpenFile(t.TempDir(), 1<<20); err == nil {
		t.Error("a folder is taken")
	}
}

func TestFullFileSystemSaysSo(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("needs root, for a small file system: %v", err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	f, err := OpenFile(filepath.Join(dir, "disk"), 8<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	_, err = f.WriteAt(bytes.Repeat([]byte("x"), 4<<20), 0)
	if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "free some space") {
		t.Errorf("got %v", err)
	}
}

// loop makes a loop device of a file; it goes with the test.
func loop(t *testing.T, size int64, sector int) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), "backing")
	if err := os.WriteFile(p, bytes.Repeat([]byte("old!"), int(size/4)), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("/usr/sbin/losetup", "-f", "--show", "--sector-size", strconv.Itoa(sector), p).CombinedOutput()
	if err != nil {
		t.Skipf("no loop devices here (root and the kernel's loop driver): %v: %s", err, out)
	}
	dev := strings.TrimSpace(string(out))
	t.Cleanup(func() {
		if out, err := exec.Command("/usr/sbin/losetup", "-d", dev).CombinedOutput(); err != nil {
			t.Errorf("losetup -d %s: %v: %s", dev, err, out)
		}
	})
	return dev
}

func TestBlockDevice(t *testing.T) {
	for _, sector := range []int{512, 4096} {
		t.Run(strconv.Itoa(sector), func(t *testing.T) {
			dev := loop(t, 8<<20, sector)
			d, err := Open(dev)
			if err != nil {
				t.Fatal(err)
			}
			if d.SectorSize() != sector || d.Size() != 8<<20 {
				t.Errorf("sectors of %d, size %d", d.SectorSize(), d.Size())
			}
			if _, err := Open(dev); !errors.Is(err, ErrBusy) {
				t.Errorf("opened twice: %v", err)
			}
			exercise(t, d)
			if err := d.Zero(0, d.Size()); err != nil {
				t.Error(err)
			}
			got := make([]byte, d.Size())
			if _, err := d.ReadAt(got, 0); err != nil || !bytes.Equal(got, make([]byte, d.Size())) {
				t.Errorf("zeroed whole: %v", err)
			}
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	if _, err := Open("/dev/null"); err == nil {
		t.Error("/dev/null is taken for a disk")
	}
}

// The inventory of this very machine, with a disk that is really mounted.
func TestUsesOfAMountedDisk(t *testing.T) {
	dev := loop(t, 8<<20, 512)
	name := filepath.Base(dev)
	v := System()
	d, err := v.Disk(name)
	if err != nil || d.Size != 8<<20 || d.Bus != "virtual" {
		t.Fatalf("%+v, %v", d, err)
	}
	if uses, err := v.Uses(d); err != nil || len(uses) != 0 {
		t.Errorf("a free disk: %v, %v", uses, err)
	}
	if out, err := exec.Command("/usr/sbin/mkfs.ext4", "-q", "-F", dev).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	dir := t.TempDir()
	if err := unix.Mount(dev, dir, "ext4", 0, ""); err != nil {
		t.Skipf("cannot mount here: %v", err)
	}
	defer func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
		for range 100 { // the kernel lets go a moment later
			if f, err := os.OpenFile(dev, os.O_RDWR|unix.O_EXCL, 0); err == nil {
				f.Close()
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	}()
	uses, err := v.Uses(d)
	if err != nil || len(uses) != 1 || uses[0].What != "mounted on "+dir {
		t.Errorf("a mounted disk: %v, %v", uses, err)
	}
	if _, err := Open(dev); !errors.Is(err, ErrBusy) {
		t.Errorf("the kernel gives a mounted disk: %v", err)
	}
}
