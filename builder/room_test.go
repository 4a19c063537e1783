package builder

import (
	"strings"
	"testing"

	"kingpost/internal/fat32"
)

func TestSlotRoom(t *testing.T) {
	r := &Recipe{Slots: Slots{Root: 100 << 20}}
	for name, c := range map[string]struct {
		size, percent int64
		err           string
	}{
		"half":          {50 << 20, 50, ""},
		"full":          {100 << 20, 100, ""},
		"a byte":        {1, 1, ""},
		"a block more":  {100<<20 + 4096, 0, "needs 100.0 MiB, a slot has 100MiB"},
		"twice as much": {200 << 20, 0, "needs 200.0 MiB"},
	} {
		room, err := slotRoom(r, c.size)
		switch {
		case c.err != "":
			if err == nil || !strings.Contains(err.Error(), c.err) || !strings.Contains(err.Error(), "slots.root") {
				t.Errorf("%s: got %v", name, err)
			}
		case err != nil || room.Percent() != c.percent || room.More != 1:
			t.Errorf("%s: got %+v (%d%%), %v", name, room, room.Percent(), err)
		}
	}
}

// TestESPRoom has as many releases fit as are said to, and one more not.
func TestESPRoom(t *testing.T) {
	b := &bootFiles{uki: make([]byte, 14<<20+5)}
	files := func(n int64) []fat32.File {
		var out []fat32.File
		for i := range n {
			out = append(out, fat32.File{Path: "EFI/kingpost/" + strings.Repeat("abcdef01", 8) + string(rune('a'+i)) + ".efi", Data: b.uki},
				fat32.File{Path: "loader/entries/0." + string(rune('a'+i)) + ".conf", Data: []byte("x")})
		}
		return out
	}
	for _, size := range []Size{40 << 20, 128 << 20, 512 << 20} {
		r := &Recipe{Slots: Slots{ESP: size}}
		room, err := espRoom(r, b, files(1))
		if err != nil {
			t.Fatal(err)
		}
		for more, fits := range map[int64]bool{room.More: true, room.More + 1: false} {
			u, err := fat32.Room(int64(size), 512, files(1+more))
			if err != nil {
				t.Fatal(err)
			}
			if (u.Used <= u.Size) != fits {
				t.Errorf("%s: %d more releases are said to fit; %d more need %d of %d bytes", size, room.More, more, u.Used, u.Size)
			}
		}
	}
	for size, want := range map[Size]string{34 << 20: "the next one beside it", 20 << 20: "too few for FAT32"} {
		_, err := espRoom(&Recipe{Slots: Slots{ESP: size}}, b, files(2))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "slots.esp") {
			t.Errorf("%s: got %v", size, err)
		}
	}
}
