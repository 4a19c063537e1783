package writelog

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// record builds a log of entries over 512-byte sectors, as QEMU does.
func record(counted int, entries ...Entry) []byte {
	b := make([]byte, 512)
	binary.LittleEndian.PutUint64(b, magic)
	binary.LittleEndian.PutUint64(b[8:], version)
	binary.LittleEndian.PutUint64(b[16:], uint64(counted))
	binary.LittleEndian.PutUint32(b[24:], 512)
	for i, e := range entries {
		head := make([]byte, 512)
		binary.LittleEndian.PutUint64(head, uint64(e.Offset/512))
		binary.LittleEndian.PutUint64(head[8:], uint64(e.Size/512))
		binary.LittleEndian.PutUint64(head[16:], e.Flags)
		b = append(b, head...)
		if e.Flags&Discard == 0 {
			b = append(b, bytes.Repeat([]byte{byte(i + 1)}, int(e.Size))...)
		}
	}
	return b
}

type memory []byte

func (m memory) WriteAt(p []byte, at int64) (int, error) { return copy(m[at:], p), nil }

var flush = Entry{Flags: Flush}

func TestCut(t *testing.T) {
	b := record(3,
		Entry{Offset: 0, Size: 1024}, Entry{Offset: 1024, Size: 512}, flush,
		Entry{Offset: 0, Size: 512}, Entry{Offset: 2048, Size: 4096}, Entry{Offset: 1024, Size: 512, Flags: FUA})
	l, err := Read(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	if len(l.Entries) != 6 {
		t.Fatalf("%d entries, wanted 6: those behind the last flush count as well", len(l.Entries))
	}
	t.Run("up to a flush nothing is lost", func(t *testing.T) {
		disk := make(memory, 8192)
		r, err := l.Cut(disk, 3, 1)
		if err != nil || r.Safe != 3 || r.Lost != 0 {
			t.Fatal(r, err)
		}
		if disk[0] != 1 || disk[1023] != 1 || disk[1024] != 2 || disk[1536] != 0 {
			t.Error("the safe writes are not all there")
		}
	})
	t.Run("after it some is, a sector is whole, and FUA stays", func(t *testing.T) {
		lost, torn := 0, 0
		for seed := range uint64(50) {
			disk := make(memory, 8192)
			r, err := l.Cut(disk, 6, seed)
			if err != nil {
				t.Fatal(err)
			}
			lost, torn = lost+r.Lost, torn+r.Torn
			if disk[1024] != 6 {
				t.Fatalf("seed %d: the FUA write is lost", seed)
			}
			for s := 0; s < len(disk); s += 512 {
				if !bytes.Equal(disk[s:s+512], bytes.Repeat(disk[s:s+1], 512)) {
					t.Fatalf("seed %d: the sector at %d is torn", seed, s)
				}
			}
		}
		if lost == 0 || torn == 0 {
			t.Errorf("in 50 cuts %d writes lost, %d torn; wanted some of each", lost, torn)
		}
	})
	t.Run("the same seed cuts the same", func(t *testing.T) {
		a, b := make(memory, 8192), make(memory, 8192)
		l.Cut(a, 6, 7)
		l.Cut(b, 6, 7)
		if !bytes.Equal(a, b) {
			t.Error("two cuts with one seed differ")
		}
	})
	if n := l.At(l.Entries[3].end); n != 4 {
		t.Errorf("At the end of entry 4: %d", n)
	}
}

func TestReadRefuses(t *testing.T) {
	good := record(1, Entry{Size: 512})
	for name, b := range map[string][]byte{
		"empty":           nil,
		"other magic":     append([]byte{1}, good[1:]...),
		"counted not had": record(2, Entry{Size: 512}),
		"cut short":       good[:len(good)-1],
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Read(bytes.NewReader(b), int64(len(b))); err == nil {
				t.Error("it was read")
			}
		})
	}
}

// TestQEMU reads what QEMU itself records.
func TestQEMU(t *testing.T) {
	if _, err := exec.LookPath("qemu-io"); err != nil {
		t.Fatal("needs the Debian package qemu-utils, which make test installs")
	}
	dir := t.TempDir()
	disk, log := filepath.Join(dir, "disk"), filepath.Join(dir, "log")
	for _, p := range []string{disk, log} {
		if err := os.WriteFile(p, make([]byte, 1<<20), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Truncate(log, 0); err != nil {
		t.Fatal(err)
	}
	opts := fmt.Sprintf("driver=blklogwrites,file.driver=file,file.filename=%s,log.driver=file,log.filename=%s", disk, log)
	out, err := exec.Command("qemu-io", "--image-opts", opts,
		"-c", "write -P 1 0 4k", "-c", "flush", "-c", "write -P 2 4k 8k", "-c", "write -z 0 1k", "-c", "discard 64k 64k", "-c", "flush").CombinedOutput()
	if err != nil {
		t.Fatalf("qemu-io: %v: %s", err, out)
	}
	b, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	l, err := Read(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	replayed := make(memory, 1<<20)
	r, err := l.Cut(replayed, len(l.Entries), 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(r, l.Entries)
	want, err := os.ReadFile(disk)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(want, replayed) {
		t.Error("the replayed disk is not the one that QEMU wrote")
	}
}

func FuzzRead(f *testing.F) {
	f.Add(record(2, Entry{Size: 512}, flush))
	f.Add(record(1, Entry{Offset: 512, Size: 1 << 20, Flags: Discard}))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := Read(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			return
		}
		for _, e := range l.Entries {
			if e.Offset < 0 || e.Size < 0 || e.end > int64(len(b)) {
				t.Fatalf("entry %+v of a log of %d bytes", e, len(b))
			}
		}
	})
}
