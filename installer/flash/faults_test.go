package flash

import (
	"errors"
	"flag"
	"testing"

	"kingpost/internal/faultdisk"
	"kingpost/internal/release"
)

var (
	faultOrders = flag.Int("fault-orders", 2, "legal reorderings that are tried at each operation of a flash")
	faultTears  = flag.Int("fault-tears", 4, "tears that are tried of each large write of a flash")
	faultRerun  = flag.Int("fault-rerun", 60, "of how many states one is flashed again, and cut again")
)

// outcome is what a disk starts: "old", "new" or "nothing"; anything else is a mix.
func outcome(t *testing.T, d *faultdisk.Disk, before, after *madeUp) (string, error) {
	b, err := release.FindBoot(t.Context(), d, d.Size(), release.DepthWhole)
	switch {
	case errors.Is(err, release.ErrNotBootable):
		return "nothing", nil
	case err != nil:
		return "", err
	case before != nil && b.Cmdline.RootHash == before.root:
		return "old", nil
	case b.Cmdline.RootHash == after.root:
		return "new", nil
	}
	return "", errors.New("it starts something else")
}

// TestFaults cuts a flash after every write, tears each of them, reorders what was not flushed, and has the boot's own code
// say what such a disk starts: the old release, the new one or nothing. A sample is flashed again, which must end in
// exactly the same disk, and is cut once more in the middle of that.
func TestFaults(t *testing.T) {
	before, after := makeImage(t, "0.1.0", smallESP), makeImage(t, "0.2.0", smallESP)
	for name, start := range map[string]func(*testing.T) (*faultdisk.Disk, *madeUp){
		"over an old release": func(t *testing.T) (*faultdisk.Disk, *madeUp) {
			d := faultdisk.New(after.disk.Size()+6<<20, 512)
			if _, err := Run(t.Context(), before.input(t, d)); err != nil {
				t.Fatal(err)
			}
			return d, before
		},
		"over an old release of the same size": func(t *testing.T) (*faultdisk.Disk, *madeUp) {
			d := faultdisk.New(after.disk.Size(), 512)
			if _, err := Run(t.Context(), before.input(t, d)); err != nil {
				t.Fatal(err)
			}
			return d, before
		},
		"over something else": func(t *testing.T) (*faultdisk.Disk, *madeUp) { return after.dirty(t, 1<<20+512, 512), nil },
	} {
		t.Run(name, func(t *testing.T) {
			d, old := start(t)
			rec, err := d.Record(func() error { _, err := Run(t.Context(), after.input(t, d)); return err })
			if err != nil {
				t.Fatal(err)
			}
			want := d.Sum()
			states, metadata, again := 0, 0, 0
			seen := map[string]int{}
			err = rec.States(faultdisk.Options{Tears: *faultTears, Orders: *faultOrders, Seed: 1}, func(s faultdisk.State) error {
				states++
				if s.Metadata {
					metadata++
				}
				what, err := outcome(t, s.Disk, old, after)
				if err != nil {
					t.Errorf("%s: a mix: %v", s.What, err)
					return nil
				}
				seen[what]++
				if states%*faultRerun == 0 {
					again += rerun(t, s, old, after, want)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("fault states: %d distinct (%d of metadata), and %d of a second cut: %v", states, metadata, again, seen)
			if seen["new"] == 0 || seen["nothing"] == 0 || (old != nil) != (seen["old"] > 0) {
				t.Errorf("not every outcome was seen: %v", seen)
			}
		})
	}
}

// rerun flashes a state again, checks that it ends as a flash that nothing cut, cuts that once more at a few places, and
// flashes these again. It returns how many states of a second cut were tried.
func rerun(t *testing.T, s faultdisk.State, old, after *madeUp, want uint64) int {
	d := s.Disk
	rec, err := d.Record(func() error { _, err := Run(t.Context(), after.input(t, d)); return err })
	if err != nil {
		t.Errorf("%s, flashed again: %v", s.What, err)
		return 0
	}
	if d.Sum() != want {
		t.Errorf("%s, flashed again: another disk than without the cut", s.What)
	}
	n, all := 0, 0
	err = rec.States(faultdisk.Options{Seed: 2}, func(second faultdisk.State) error {
		if all++; all%17 != 0 {
			return nil
		}
		n++
		if _, err := outcome(t, second.Disk, old, after); err != nil {
			t.Errorf("%s, then %s: a mix: %v", s.What, second.What, err)
		}
		if all%(17*8) != 0 {
			return nil
		}
		if _, err := Run(t.Context(), after.input(t, second.Disk)); err != nil || second.Disk.Sum() != want {
			t.Errorf("%s, then %s, flashed again: %v", s.What, second.What, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	return n
}
