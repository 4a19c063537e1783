package faultdisk

import (
	"bytes"
	"errors"
	"testing"
)

func TestDiskKeepsWhatIsWritten(t *testing.T) {
	d := New(100_000, 512)
	want := make([]byte, 100_000)
	for i, w := range []struct{ off, n int }{{0, 10}, {4090, 20}, {99_999, 1}, {5000, 20_000}, {0, 100_000}, {8192, 4096}} {
		b := bytes.Repeat([]byte{byte(i + 1)}, w.n)
		copy(want[w.off:], b)
		if _, err := d.WriteAt(b, int64(w.off)); err != nil {
			t.Fatal(err)
		}
	}
	clear(want[100:70_000])
	if err := d.Zero(100, 70_000-100); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 100_000)
	if _, err := d.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
		t.Errorf("other bytes, %v", err)
	}
	if _, err := d.WriteAt(got, 1); err == nil {
		t.Error("a write over the end is taken")
	}
}

func TestSumIsOfTheContent(t *testing.T) {
	a, b := New(1<<20, 512), New(1<<20, 512)
	if _, err := a.WriteAt([]byte("x"), 77_777); err != nil {
		t.Fatal(err)
	}
	if a.Sum() == b.Sum() {
		t.Error("other content, same sum")
	}
	c := a.Clone()
	if err := c.Zero(70_000, 10_000); err != nil {
		t.Fatal(err)
	}
	if c.Sum() != b.Sum() || a.Sum() == b.Sum() {
		t.Error("a clone is not what it was made of, or not apart from it")
	}
}

// Every state between two flushes is one of the writes' parts, and a flush is never undone.
func TestStates(t *testing.T) {
	d := New(64<<10, 512)
	r, err := d.Record(func() error {
		for _, w := range []struct {
			off int64
			n   int
		}{{0, 1024}, {4096, 512}, {-1, 0}, {8192, 2048}} {
			if w.off < 0 {
				if err := d.Sync(); err != nil {
					return err
				}
				continue
			}
			if _, err := d.WriteAt(bytes.Repeat([]byte{1}, w.n), w.off); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil || len(r.Ops) != 4 {
		t.Fatal(r, err)
	}
	n, loose := 0, 0
	err = r.States(Options{Tears: 4, Orders: 50}, func(s State) error {
		n++
		b := make([]byte, 64<<10)
		if _, err := s.Disk.ReadAt(b, 0); err != nil {
			return err
		}
		if b[8192] == 1 && (b[0] != 1 || b[1023] != 1 || b[4096] != 1) {
			t.Errorf("%s: what was flushed is gone", s.What)
		}
		if b[0] == 0 && b[4096] == 1 {
			loose++
		}
		return nil
	})
	// Before the flush: nothing, half or all of the first, each with and without the second; after it a quarter, a half,
	// three quarters and all of the third.
	if err != nil || n != 6+4 || loose != 1 {
		t.Errorf("%d states, %d out of order, %v", n, loose, err)
	}
	stop := errors.New("stop")
	if err := r.States(Options{}, func(State) error { return stop }); err != stop {
		t.Error(err)
	}
}

func TestFail(t *testing.T) {
	d := New(4096, 512)
	broken := errors.New("broken")
	d.Fail = func(n int, op Op) error {
		if n == 1 && op.Kind == Write {
			return broken
		}
		return nil
	}
	if _, err := d.ReadAt(make([]byte, 1), 0); err != nil {
		t.Error(err)
	}
	if _, err := d.WriteAt([]byte{1}, 0); err != broken {
		t.Error(err)
	}
	if d.Sum() != 0 {
		t.Error("a write that failed has changed something")
	}
}
