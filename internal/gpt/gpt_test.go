package gpt

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// memory is a disk in memory.
type memory []byte

func (m memory) ReadAt(p []byte, off int64) (int, error) { return bytes.NewReader(m).ReadAt(p, off) }

func (m memory) WriteAt(p []byte, off int64) (int, error) {
	if off < 0 || off+int64(len(p)) > int64(len(m)) {
		return 0, fmt.Errorf("write of %d bytes at %d is outside", len(p), off)
	}
	return copy(m[off:], p), nil
}

func table(sectorSize int, size int64) *Table {
	return &Table{SectorSize: sectorSize, Size: size, DiskGUID: MustGUID("11111111-2222-3333-4444-555555555555"), Partitions: []Partition{
		{Number: 1, Name: "first", Type: MustGUID("c12a7328-f81f-11d2-ba4b-00a0c93ec93b"), GUID: MustGUID("aaaaaaaa-0000-0000-0000-000000000001"), Start: Align, Size: Align},
		{Number: 3, Name: "zweite ü", Type: MustGUID("0fc63daf-8483-4772-8e79-3d69d8477de4"), GUID: MustGUID("aaaaaaaa-0000-0000-0000-000000000002"), Start: 2 * Align, Size: Align, Attributes: 1 << 60},
	}}
}

func disk(t testing.TB, sectorSize int, size int64) memory {
	t.Helper()
	m := make(memory, size)
	if err := Write(m, table(sectorSize, size)); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestReadGivesWhatWasWritten(t *testing.T) {
	for _, s := range []int{512, 4096} {
		for _, ask := range []int{0, s} {
			m := disk(t, s, 8*Align)
			got, err := Read(m, int64(len(m)), ask)
			if err != nil || !reflect.DeepEqual(got, table(s, 8*Align)) {
				t.Errorf("sector size %d: %+v, %v", s, got, err)
			}
		}
	}
}

func TestToolsFindNoFault(t *testing.T) {
	m := disk(t, 512, 8*Align)
	p := filepath.Join(t.TempDir(), "disk.img")
	if err := os.WriteFile(p, m, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tool := range [][]string{{"sgdisk", "-v"}, {"sfdisk", "--verify"}} {
		if _, err := exec.LookPath(tool[0]); err != nil {
			t.Errorf("%s is not installed; make test installs it (packages gdisk, fdisk)", tool[0])
			continue
		}
		out, err := exec.Command(tool[0], append(tool[1:], p)...).CombinedOutput()
		if err != nil || !bytes.Contains(out, []byte("No problems found")) && !bytes.Contains(out, []byte("No errors detected")) {
			t.Errorf("%s: %v\n%s", tool[0], err, out)
		}
	}
}

func TestReadFallsBackToTheBackup(t *testing.T) {
	for _, s := range []int{512, 4096} {
		m := disk(t, s, 8*Align)
		clear(m[:3*s])
		got, err := Read(m, int64(len(m)), 0)
		if err != nil || !got.FromBackup || got.SectorSize != s || len(got.Partitions) != 2 {
			t.Errorf("sector size %d: %+v, %v", s, got, err)
		}
	}
}

func TestEveryFlippedByteOfATableIsNoticed(t *testing.T) {
	m := disk(t, 512, 8*Align)
	for at := 512; at < 512+headerSize; at++ {
		m[at] ^= 4
		if got, err := Read(m, int64(len(m)), 512); err != nil || !got.FromBackup {
			t.Errorf("byte %d of the primary header: %v", at-512, err)
		}
		m[at] ^= 4
	}
	for at := 1024; at < 1024+entryCount*entrySize; at += 61 {
		m[at] ^= 4
		if got, err := Read(m, int64(len(m)), 512); err != nil || !got.FromBackup {
			t.Errorf("byte %d of the primary entries: %v", at-1024, err)
		}
		m[at] ^= 4
	}
}

func TestReadRefuses(t *testing.T) {
	m := disk(t, 512, 8*Align)
	for name, c := range map[string]struct {
		m    memory
		size int64
		s    int
	}{
		"zeros":              {make(memory, Align), Align, 0},
		"nothing":            {nil, 0, 0},
		"one sector":         {make(memory, 512), 512, 0},
		"crooked sectors":    {m, int64(len(m)), 1000},
		"cut short":          {m[:4*Align], 4 * Align, 0},
		"wrong sector size":  {m, int64(len(m)), 4096},
		"said to be smaller": {m, 4 * Align, 0},
	} {
		if got, err := Read(c.m, c.size, c.s); err == nil || c.s != 1000 && !errors.Is(err, ErrNoTable) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

func TestWriteRefuses(t *testing.T) {
	for name, edit := range map[string]func(*Table){
		"over each other":   func(t *Table) { t.Partitions[1].Start -= 512 },
		"one number twice":  func(t *Table) { t.Partitions[1].Number = 1 },
		"number too high":   func(t *Table) { t.Partitions[1].Number = 129 },
		"over the header":   func(t *Table) { t.Partitions[0].Start = 512 },
		"over the backup":   func(t *Table) { t.Partitions[1].Size = 6 * Align },
		"half a sector":     func(t *Table) { t.Partitions[1].Size = 700 },
		"empty":             func(t *Table) { t.Partitions[1].Size = 0 },
		"no type":           func(t *Table) { t.Partitions[1].Type = GUID{} },
		"long name":         func(t *Table) { t.Partitions[1].Name = strings.Repeat("n", 37) },
		"no sector size":    func(t *Table) { t.SectorSize = 0 },
		"tiny disk":         func(t *Table) { t.Size = 4096 },
		"crooked disk size": func(t *Table) { t.Size -= 5 },
	} {
		tab := table(512, 8*Align)
		edit(tab)
		m := make(memory, 8*Align)
		if err := Write(m, tab); err == nil {
			t.Errorf("%s: accepted", name)
		}
		if !bytes.Equal(m, make(memory, len(m))) {
			t.Errorf("%s: something was written", name)
		}
	}
}

func TestGrow(t *testing.T) {
	for _, s := range []int{512, 4096} {
		for _, size := range []int64{8 * Align, 8*Align + int64(s), 9 * Align, 32*Align + 12345} {
			t.Run(fmt.Sprintf("%d.to%d", s, size), func(t *testing.T) {
				m := append(disk(t, s, 8*Align), make(memory, size-8*Align)...)
				copy(m, "boot code")
				got, err := Grow(m, size, s, nil)
				if err != nil {
					t.Fatal(err)
				}
				again, err := Read(m, size, s)
				if err != nil || !reflect.DeepEqual(got, again) {
					t.Fatalf("Grow returned %+v, read back is %+v, %v", got, again, err)
				}
				last := got.Partitions[1]
				if got.Size != size/int64(s)*int64(s) || last.Start != 2*Align || (last.Start+last.Size)%Align != 0 || size-last.Start-last.Size > 2*Align {
					t.Errorf("got %+v", got)
				}
				if string(m[:9]) != "boot code" {
					t.Error("the boot code is lost")
				}
				clear(m[s : 3*s])
				if b, err := Read(m, size, s); err != nil || !b.FromBackup || b.Size != got.Size {
					t.Errorf("the backup is %+v, %v", b, err)
				}
				if r, err := Grow(m, size, s, nil); err != nil || r.FromBackup {
					t.Errorf("the primary is not made anew: %+v, %v", r, err)
				}
				if r, err := Grow(onlyReader{m}, size, s, nil); err != nil || !reflect.DeepEqual(r, got) {
					t.Errorf("growing again: %+v, %v", r, err)
				}
				p := filepath.Join(t.TempDir(), "disk.img")
				if _, err := exec.LookPath("sgdisk"); err == nil && s == 512 {
					if err := os.WriteFile(p, m, 0o600); err != nil {
						t.Fatal(err)
					}
					if out, err := exec.Command("sgdisk", "-v", p).CombinedOutput(); err != nil || !bytes.Contains(out, []byte("No problems found")) && size%512 == 0 {
						t.Errorf("sgdisk: %v\n%s", err, out)
					}
				}
			})
		}
	}
}

type onlyReader struct{ io.ReaderAt }

func (onlyReader) WriteAt([]byte, int64) (int, error) { return 0, errors.New("it was written to") }

// TestGrowCutAnywhere cuts the power after each write: at every moment there is a valid table with both partitions.
func TestGrowCutAnywhere(t *testing.T) {
	const size = 32 * Align
	for cut := 0; ; cut++ {
		m := append(disk(t, 512, 8*Align), make(memory, size-8*Align)...)
		w := &cutter{memory: m, left: cut}
		_, err := Grow(w, size, 512, nil)
		got, rerr := Read(m, size, 512)
		if rerr != nil || len(got.Partitions) != 2 {
			t.Fatalf("cut after %d writes: %v", cut, rerr)
		}
		if err == nil {
			return
		}
		if got, err := Grow(m, size, 512, nil); err != nil || got.Size != size {
			t.Fatalf("cut after %d writes, then grown again: %+v, %v", cut, got, err)
		}
	}
}

type cutter struct {
	memory
	left int
}

func (c *cutter) WriteAt(p []byte, off int64) (int, error) {
	if c.left--; c.left < 0 {
		return 0, errors.New("power cut")
	}
	return c.memory.WriteAt(p, off)
}

func TestGUID(t *testing.T) {
	const s = "c12a7328-f81f-11d2-ba4b-00a0c93ec93b"
	g, err := ParseGUID(strings.ToUpper(s))
	if err != nil || g.String() != s || g[0] != 0x28 {
		t.Errorf("%v, %v", g, err)
	}
	for _, bad := range []string{"", "c12a7328", s[:35], s + "0", "c12a7328f81f-11d2-ba4b-00a0c93ec93b-", "x12a7328-f81f-11d2-ba4b-00a0c93ec93b"} {
		if _, err := ParseGUID(bad); err == nil {
			t.Errorf("%q: accepted", bad)
		}
	}
}

func FuzzRead(f *testing.F) {
	m := disk(f, 512, 3*Align+64<<10)
	f.Add([]byte(m[512:2048]), []byte(m[1024:1024+512]))
	f.Fuzz(func(t *testing.T, header, entries []byte) {
		d := make(memory, 64<<10)
		copy(d[512:], header)
		copy(d[1024:], entries)
		fix(d, 512)
		if tab, err := Read(d, int64(len(d)), 0); err == nil {
			for _, p := range tab.Partitions {
				if p.Start < 0 || p.Size <= 0 || p.Start+p.Size > int64(len(d)) {
					t.Errorf("%+v", p)
				}
			}
		}
	})
}

// fix makes a header's checksums right, so that the fuzzer gets behind them.
func fix(d memory, at int) {
	le := binary.LittleEndian
	h := d[at:]
	if first, n := le.Uint64(h[72:]), le.Uint32(h[80:])*le.Uint32(h[84:]); first < 128 && n < 32<<10 && int(first)*512+int(n) <= len(d) {
		le.PutUint32(h[88:], crc32.ChecksumIEEE(d[first*512:first*512+uint64(n)]))
	}
	le.PutUint32(h[16:], 0)
	if n := le.Uint32(h[12:]); n >= headerSize && n <= 512 {
		le.PutUint32(h[16:], crc32.ChecksumIEEE(h[:n]))
	}
}
