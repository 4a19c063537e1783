package fat32

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var testTime = time.Date(2026, 12, 1, 12, 30, 2, 0, time.UTC)

func options(size int64, sectorSize int) Options {
	return Options{Size: size, SectorSize: sectorSize, VolumeID: 0x4b505354, Label: "KINGPOST", Time: testTime}
}

func sample() []File {
	f := []File{
		{"EFI/BOOT/BOOTX64.EFI", bytes.Repeat([]byte("boot"), 30_000)},
		{"EFI/kingpost/" + strings.Repeat("0123456789abcdef", 4) + ".efi", bytes.Repeat([]byte{7}, 1<<20+1)},
		{"loader/loader.conf", []byte("timeout 0\n")},
		{"loader/entries/0.1.0+3.conf", []byte("title Kingpost\n")},
		{"node.yaml", []byte("hostname: alpha\n")},
		{"empty", nil},
		{"Ünïcode name with spaces.text", []byte("x")},
		{strings.Repeat("l", 255), []byte("longest")},
	}
	for i := range 300 {
		f = append(f, File{fmt.Sprintf("many/some-file-%03d.conf", i), []byte{byte(i)}})
	}
	return f
}

// image makes a formatted file.
func image(t testing.TB, o Options, files []File) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "esp.img"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := f.Truncate(o.Size); err != nil {
		t.Fatal(err)
	}
	if err := Format(f, o, files); err != nil {
		t.Fatal(err)
	}
	return f
}

// fsck lets dosfstools judge.
func fsck(t *testing.T, f *os.File) {
	t.Helper()
	if _, err := exec.LookPath("fsck.vfat"); err != nil {
		t.Error("fsck.vfat is not installed; make test installs its package, dosfstools")
		return
	}
	out, err := exec.Command("fsck.vfat", "-n", "-v", f.Name()).CombinedOutput()
	if err != nil {
		t.Fatalf("fsck.vfat: %v\n%s", err, out)
	}
	for _, bad := range []string{"differences", "wrong", "not set", "Orphan", "orphan", "Reclaim", "dirty", "uninit", "doesn't", "invalid"} {
		if strings.Contains(string(out), bad) {
			t.Fatalf("fsck.vfat complains:\n%s", out)
		}
	}
}

func open(t testing.TB, f Device) *FS {
	t.Helper()
	v, err := Open(f)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestFormat(t *testing.T) {
	for _, c := range []struct {
		name string
		size int64
		s    int
	}{
		{"512.smallest", MinSize(512), 512},
		{"512.512MiB", 512 << 20, 512},
		{"512.crooked", 300<<20 + 777, 512},
		{"4kn.smallest", MinSize(4096), 4096},
		{"4kn.512MiB", 512 << 20, 4096},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := image(t, options(c.size, c.s), sample())
			fsck(t, f)
			v := open(t, f)
			for _, want := range sample() {
				got, err := v.ReadFile(want.Path, 4<<20)
				if err != nil || !bytes.Equal(got, want.Data) {
					t.Errorf("%s: %d bytes, %v", want.Path, len(got), err)
				}
			}
			list, err := v.List("EFI")
			if err != nil || fmt.Sprint(list) != "[{BOOT 0 true} {kingpost 0 true}]" {
				t.Errorf("EFI lists %v, %v", list, err)
			}
			if list, err := v.List("many"); err != nil || len(list) != 300 {
				t.Errorf("many lists %d, %v", len(list), err)
			}
		})
	}
}

func TestMtoolsReadTheFiles(t *testing.T) {
	if _, err := exec.LookPath("mtype"); err != nil {
		t.Fatal("mtype is not installed; make test installs its package, mtools")
	}
	f := image(t, options(64<<20, 512), sample())
	for _, want := range sample()[:8] {
		cmd := exec.Command("mtype", "-i", f.Name(), "::/"+want.Path)
		cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8")
		out, err := cmd.Output()
		if err != nil || !bytes.Equal(out, want.Data) {
			t.Errorf("%s: %d bytes, %v", want.Path, len(out), err)
		}
	}
	out, err := exec.Command("minfo", "-i", f.Name(), "::").CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("4B505354")) {
		t.Errorf("minfo: %v\n%s", err, out)
	}
}

func TestFormatIsRepeatable(t *testing.T) {
	files := sample()
	a, err := os.ReadFile(image(t, options(64<<20, 512), files).Name())
	if err != nil {
		t.Fatal(err)
	}
	files[0], files[5] = files[5], files[0]
	b, err := os.ReadFile(image(t, options(64<<20, 512), files).Name())
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a, b) {
		t.Error("the same files in another order give other bytes")
	}
}

func TestChangeFiles(t *testing.T) {
	f := image(t, options(MinSize(512), 512), sample())
	v := open(t, f)
	steps := []struct {
		name string
		do   func() error
	}{
		{"replace by a longer one", func() error { return v.WriteFile("node.yaml", bytes.Repeat([]byte("y"), 9000), testTime) }},
		{"replace by a shorter one", func() error { return v.WriteFile("NODE.YAML", []byte("hostname: beta\n"), testTime) }},
		{"replace by an empty one", func() error { return v.WriteFile("loader/loader.conf", nil, testTime) }},
		{"fill an empty one", func() error { return v.WriteFile("empty", []byte("full"), testTime) }},
		{"a new one", func() error { return v.WriteFile("loader/entries/0.2.0+3.conf", []byte("t"), testTime) }},
		{"a new one in new folders", func() error { return v.WriteFile("a/b c/d.e.f", []byte("deep"), testTime) }},
		{"remove", func() error { return v.Remove("many/some-file-100.conf") }},
		{"into the gap", func() error { return v.WriteFile("many/some-file-xxx.conf", []byte("gap"), testTime) }},
		{"remove an empty one", func() error { return v.Remove("loader/loader.conf") }},
	}
	for _, s := range steps {
		if err := s.do(); err != nil {
			t.Fatalf("%s: %v", s.name, err)
		}
		t.Run(s.name, func(t *testing.T) { fsck(t, f) })
	}
	v = open(t, f)
	for p, want := range map[string]string{"node.yaml": "hostname: beta\n", "empty": "full", "a/b c/d.e.f": "deep", "many/some-file-xxx.conf": "gap", "many/some-file-101.conf": "e"} {
		if got, err := v.ReadFile(p, 1000); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", p, got, err)
		}
	}
	for _, p := range []string{"many/some-file-100.conf", "loader/loader.conf"} {
		if _, err := v.ReadFile(p, 1000); !errors.Is(err, ErrNotFound) {
			t.Errorf("%s: %v", p, err)
		}
	}
}

func TestRefusals(t *testing.T) {
	f := image(t, options(MinSize(512), 512), sample())
	before, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	v := open(t, f)
	for name, do := range map[string]func() error{
		"bad character":  func() error { return v.WriteFile("a:b", nil, testTime) },
		"trailing dot":   func() error { return v.WriteFile("a.", nil, testTime) },
		"no name":        func() error { return v.WriteFile("/", nil, testTime) },
		"long name":      func() error { return v.WriteFile(strings.Repeat("n", 256), nil, testTime) },
		"over a folder":  func() error { return v.WriteFile("EFI", nil, testTime) },
		"below a file":   func() error { return v.WriteFile("node.yaml/x", nil, testTime) },
		"too much":       func() error { return v.WriteFile("x", make([]byte, 40<<20), testTime) },
		"remove nothing": func() error { return v.Remove("nothing") },
		"remove folder":  func() error { return v.Remove("EFI") },
		"read a folder":  func() error { _, err := v.ReadFile("EFI", 1); return err },
		"over the limit": func() error { _, err := v.ReadFile("node.yaml", 3); return err },
		"list a file":    func() error { _, err := v.List("node.yaml"); return err },
		"read only":      func() error { return open(t, ReadOnly(f)).WriteFile("x", []byte("x"), testTime) },
		"small disk":     func() error { return Format(f, options(16<<20, 512), nil) },
		"sector size":    func() error { return Format(f, options(64<<20, 1024), nil) },
		"label": func() error {
			o := options(64<<20, 512)
			o.Label = "lower"
			return Format(f, o, nil)
		},
	} {
		if err := do(); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	after, err := os.ReadFile(f.Name())
	if err != nil || !bytes.Equal(before, after) {
		t.Error("a refused change changed something")
	}
	if err := Format(f, options(64<<20, 512), []File{{"a/B", nil}, {"a/b", nil}}); err == nil {
		t.Error("two files of one name: accepted")
	}
}

func TestDamagedChainsEnd(t *testing.T) {
	f := image(t, options(MinSize(512), 512), sample())
	v := open(t, f)
	e, err := v.lookup("EFI/BOOT/BOOTX64.EFI")
	if err != nil {
		t.Fatal(err)
	}
	for name, next := range map[string]uint32{"circle": e.first, "free": 0, "outside": v.clusters + firstData, "bad": badCluster} {
		v.fat[e.first+5] = next
		if _, err := v.ReadFile("EFI/BOOT/BOOTX64.EFI", 1<<20); err == nil || !strings.Contains(err.Error(), "damaged") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// sparse is a device of zeros with something at its start, for the fuzzer.
type sparse struct{ head []byte }

func (s sparse) ReadAt(p []byte, off int64) (int, error) {
	clear(p)
	if off < int64(len(s.head)) {
		copy(p, s.head[off:])
	}
	return len(p), nil
}

func (s sparse) WriteAt(p []byte, off int64) (int, error) { return len(p), nil }

func FuzzOpen(f *testing.F) {
	img := image(f, options(MinSize(512), 512), sample()[:4])
	boot := make([]byte, 512)
	if _, err := img.ReadAt(boot, 0); err != nil {
		f.Fatal(err)
	}
	v := open(f, img)
	root := make([]byte, 512)
	if _, err := img.ReadAt(root, v.dataStart); err != nil {
		f.Fatal(err)
	}
	fat := make([]byte, 64)
	if _, err := img.ReadAt(fat, v.fatStart); err != nil {
		f.Fatal(err)
	}
	f.Add(boot, fat, root, "EFI/BOOT")
	f.Fuzz(func(t *testing.T, boot, fat, root []byte, p string) {
		g, err := parseBoot(append(boot[:min(len(boot), 512)], make([]byte, 512-min(len(boot), 512))...))
		if err != nil || g.dataStart > 4<<20 {
			return
		}
		head := make([]byte, g.dataStart+int64(len(root)))
		copy(head, boot)
		copy(head[g.fatStart:], fat)
		copy(head[g.dataStart:], root)
		v, err := Open(sparse{head})
		if err != nil {
			return
		}
		_, _ = v.List(p)
		if r, err := v.OpenFile(p); err == nil {
			_, _ = io.CopyN(io.Discard, r, 1<<20)
		}
		_ = v.WriteFile(p, []byte("x"), testTime)
		_ = v.Remove(p)
	})
}
