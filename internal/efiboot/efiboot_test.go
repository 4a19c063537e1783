package efiboot

import (
	"encoding/binary"
	"os"
	"slices"
	"testing"

	"kingpost/internal/gpt"
)

func entry(guid byte) Entry {
	return Entry{Label: "Kingpost", Partition: gpt.Partition{Number: 1, GUID: gpt.GUID{guid}, Start: 1 << 20, Size: 128 << 20}, Sector: 512, Loader: `\EFI\BOOT\BOOTX64.EFI`}
}

func order(t *testing.T, dir string) (out []uint16) {
	t.Helper()
	b, err := read(dir, "BootOrder")
	if err != nil {
		t.Fatal(err)
	}
	for ; len(b) > 1; b = b[2:] {
		out = append(out, binary.LittleEndian.Uint16(b))
	}
	return out
}

// What a firmware has is kept, in its order, behind the new entry; entries of earlier installations go.
func TestSet(t *testing.T) {
	dir := t.TempDir()
	foreign := entry(9)
	foreign.Label = "Windows"
	for n, e := range map[uint16]Entry{0: foreign, 1: entry(1), 2: entry(2), 4: entry(3)} {
		if err := write(dir, name(n), e.option()); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(path(dir, "Boot0005"), []byte("\x07\x00\x00\x00cut"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := write(dir, "BootOrder", []byte{2, 0, 0, 0, 1, 0, 4, 0, 5, 0, 8, 0}); err != nil {
		t.Fatal(err)
	}
	got, err := Set(dir, entry(2), gpt.GUID{1}, gpt.GUID{9})
	if err != nil || got != "Boot0001" {
		t.Fatalf("%s, %v", got, err)
	}
	if o := order(t, dir); !slices.Equal(o, []uint16{1, 0, 4, 5}) {
		t.Errorf("the order is %v", o)
	}
	if b, err := read(dir, "BootNext"); err != nil || !slices.Equal(b, []byte{1, 0}) {
		t.Errorf("next is %v, %v", b, err)
	}
	b, err := read(dir, "Boot0001")
	if err != nil {
		t.Fatal(err)
	}
	if label, guid := parseOption(b); label != "Kingpost" || guid != (gpt.GUID{2}) {
		t.Errorf("%s, %s", label, guid)
	}
	if again, err := Set(dir, entry(2)); err != nil || again != got || len(order(t, dir)) != 4 {
		t.Errorf("set again: %s, %v, %v", again, err, order(t, dir))
	}
}

func TestSetOnNothing(t *testing.T) {
	dir := t.TempDir()
	if got, err := Set(dir, entry(1)); err != nil || got != "Boot0000" {
		t.Errorf("%s, %v", got, err)
	}
	if _, err := Set(dir+"/absent", entry(1)); err == nil {
		t.Error("there is no firmware, and nothing said so")
	}
}

func FuzzParseOption(f *testing.F) {
	f.Add(entry(1).option())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) { parseOption(b) })
}
