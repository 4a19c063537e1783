package pid1

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kingpost/boot/launcher"
)

func TestFloor(t *testing.T) {
	day := func(s string) time.Time {
		v, err := time.Parse(time.DateOnly, s)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	for name, tt := range map[string]struct {
		now        time.Time
		date, last string
		want       time.Time
		text       string
	}{
		"right":                     {day("2027-01-01"), "2026-12-01", "1796083200", day("2027-01-01"), ""},
		"no battery, first boot":    {day("1970-01-01"), "2026-12-01", "", day("2026-12-01"), "the release's date"},
		"no battery, later":         {day("1970-01-01"), "2026-12-01", "1798761600\n", day("2027-01-01"), "the last time on disk"},
		"disk older than release":   {day("1970-01-01"), "2026-12-01", "1000", day("2026-12-01"), "the release's date"},
		"rubbish on disk":           {day("1970-01-01"), "2026-12-01", "\x00\x00", day("2026-12-01"), "the release's date"},
		"disk says the far future":  {day("1970-01-01"), "2026-12-01", "99999999999", day("2026-12-01"), "the release's date"},
		"release without a date":    {day("1970-01-02"), "", "", day("1970-01-02"), ""},
		"number that is out of all": {day("1970-01-02"), "", "99999999999999999999999", day("1970-01-02"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, text := floor(tt.now, tt.date, tt.last)
			if !got.Equal(tt.want) || (text == "") != (tt.text == "") || !strings.HasSuffix(text, tt.text) {
				t.Errorf("got %s, %q", got, text)
			}
		})
	}
}

func TestExt4Size(t *testing.T) {
	sb := make([]byte, 2048)
	b := sb[1024:]
	binary.LittleEndian.PutUint32(b[0x04:], 16384)
	binary.LittleEndian.PutUint32(b[0x18:], 2)
	binary.LittleEndian.PutUint16(b[0x38:], 0xef53)
	binary.LittleEndian.PutUint32(b[0x60:], 0x80)
	binary.LittleEndian.PutUint32(b[0x150:], 1)
	blocks, size, err := ext4Size(bytes.NewReader(sb))
	if err != nil || blocks != 1<<32+16384 || size != 4096 {
		t.Errorf("got %d blocks of %d, %v", blocks, size, err)
	}
	binary.LittleEndian.PutUint32(b[0x18:], 77)
	if _, _, err := ext4Size(bytes.NewReader(sb)); err == nil {
		t.Error("a block of 2^87 bytes is taken")
	}
	if _, _, err := ext4Size(bytes.NewReader(make([]byte, 2048))); err == nil {
		t.Error("zeros are taken for ext4")
	}
	if _, _, err := ext4Size(bytes.NewReader(nil)); err == nil {
		t.Error("nothing is taken for ext4")
	}
}

// TestExt4SizeOfMke2fs lets somebody else's tool say what a file system is.
func TestExt4SizeOfMke2fs(t *testing.T) {
	mke2fs, err := exec.LookPath("mke2fs")
	if err != nil {
		t.Fatal("mke2fs is not installed; make test installs it (package e2fsprogs)")
	}
	p := filepath.Join(t.TempDir(), "fs")
	if err := os.WriteFile(p, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(p, 64<<20); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(mke2fs, "-q", "-t", "ext4", "-b", "4096", p).CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	f, err := os.Open(p)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if blocks, size, err := ext4Size(f); err != nil || blocks != 64<<20/4096 || size != 4096 {
		t.Errorf("got %d blocks of %d, %v", blocks, size, err)
	}
}

func TestMountsBelow(t *testing.T) {
	const info = `22 1 254:0 / / ro - erofs /dev/dm-0 ro
23 22 254:4 / /var rw - ext4 /dev/vda4 rw
24 23 0:30 / /var/lib/kingpost/volumes/a\040b rw - tmpfs x rw
25 22 254:1 / /boot ro - vfat /dev/vda1 ro
26 22 0:31 / /variety rw - tmpfs x rw
rubbish`
	want := []string{"/var/lib/kingpost/volumes/a b", "/boot", "/var"}
	if d := cmp.Diff(want, mountsBelow(info, "/var", "/boot")); d != "" {
		t.Error(d)
	}
}

func TestBoundedFile(t *testing.T) {
	p := filepath.Join(t.TempDir(), "log")
	b := &boundedFile{path: p, max: 1000}
	defer b.Close()
	line := bytes.Repeat([]byte("x"), 99)
	for range 1000 {
		if _, err := b.Write(append(line, '\n')); err != nil {
			t.Fatal(err)
		}
	}
	total := int64(0)
	for _, n := range []string{p, p + ".old"} {
		st, err := os.Stat(n)
		if err != nil {
			t.Fatal(err)
		}
		total += st.Size()
	}
	if total > 2000 || total < 1000 {
		t.Errorf("%d bytes are kept", total)
	}
	// A folder that is not there loses lines and nothing else.
	gone := &boundedFile{path: filepath.Join(t.TempDir(), "no", "log"), max: 10}
	if n, err := gone.Write([]byte("x")); n != 1 || err != nil {
		t.Errorf("got %d, %v", n, err)
	}
}

func TestLastWords(t *testing.T) {
	var w lastWords
	for _, l := range []string{"level=info msg=up", "panic: runtime error: nil map", "", "goroutine 1 [running]:", "exit status 2"} {
		w.add(l)
	}
	if w.String() != "panic: runtime error: nil map" {
		t.Errorf("got %q", w)
	}
	w = lastWords{}
	w.add("cannot listen")
	if w.String() != "cannot listen" {
		t.Errorf("got %q", w)
	}
}

func TestVerify(t *testing.T) {
	p := filepath.Join(t.TempDir(), "mesh-host")
	if err := os.WriteFile(p, []byte("abc"), 0o700); err != nil {
		t.Fatal(err)
	}
	const abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
	if err := verify(launcher.Host{Path: p, SHA256: abc}); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(p, []byte("abd"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := verify(launcher.Host{Path: p, SHA256: abc}); !errors.Is(err, launcher.ErrDamaged) {
		t.Error("a changed program is taken")
	}
	for name, path := range map[string]string{"absent": p + "x", "a folder": filepath.Dir(p)} {
		if err := verify(launcher.Host{Path: path, SHA256: abc}); !errors.Is(err, launcher.ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzMountinfo(f *testing.F) {
	f.Add(`24 23 0:30 / /var/a\040b rw - tmpfs x rw`)
	f.Fuzz(func(t *testing.T, s string) {
		for _, m := range mountsBelow(s, "/var") {
			if !strings.HasPrefix(m, "/var") {
				t.Errorf("%q is not below /var", m)
			}
		}
	})
}
