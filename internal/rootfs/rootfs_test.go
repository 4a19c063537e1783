package rootfs

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/erofs/go-erofs"
)

var testTime = time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)

func options() Options { return Options{UUID: [16]byte{1, 2, 3, 15: 9}, Time: testTime} }

// sample is a tree with a bit of everything: sizes around the block, deep folders, many names, owners, bits, attributes.
func sample(t *testing.T, spool Spool) *Tree {
	t.Helper()
	tr := New(spool)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(tr.AddDir("usr/bin", 0o755))
	must(tr.AddSymlink("bin", "usr/bin"))
	for _, n := range []int{0, 1, 4095, 4096, 4097, 8192, 100_001} {
		must(tr.AddBytes(fmt.Sprintf("sizes/%d", n), 0o644, bytes.Repeat([]byte{byte(n)}, n)))
	}
	for i := range 700 {
		must(tr.AddBytes(fmt.Sprintf("many/a-rather-long-name-that-fills-blocks-%04d", i), 0o600, []byte("x")))
	}
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	add := func(h tar.Header, data string) {
		h.Size = int64(len(data))
		must(w.WriteHeader(&h))
		_, err := io.WriteString(w, data)
		must(err)
	}
	add(tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755}, "")
	add(tar.Header{Name: "./bin/", Typeflag: tar.TypeDir, Mode: 0o755}, "")
	add(tar.Header{Name: "./bin/su", Typeflag: tar.TypeReg, Mode: 0o4755}, "su")
	add(tar.Header{Name: "./bin/su2", Typeflag: tar.TypeLink, Linkname: "./bin/su"}, "")
	add(tar.Header{Name: "./bin/ping", Typeflag: tar.TypeReg, Mode: 0o755, Uid: 70000, Gid: 7, Format: tar.FormatPAX,
		PAXRecords: map[string]string{"SCHILY.xattr.security.capability": "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"}}, "ping")
	add(tar.Header{Name: "./usr/share/doc/x", Typeflag: tar.TypeReg, Mode: 0o644}, "dropped")
	must(w.Close())
	must(tr.AddTar(context.Background(), &buf, func(h *tar.Header) (string, bool) {
		return h.Name, !strings.HasPrefix(h.Name, "./usr/share/doc/")
	}))
	return tr
}

func write(t *testing.T, tr *Tree, name string) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), name)
	f, err := os.Create(p)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n, err := WriteEROFS(context.Background(), f, tr, options())
	if err != nil {
		t.Fatal(err)
	}
	if st, _ := f.Stat(); st.Size() != n || n%BlockSize != 0 {
		t.Fatalf("size is said to be %d, the file has %d bytes", n, st.Size())
	}
	return p
}

func TestImageIsSoundForFsck(t *testing.T) {
	spool, err := os.Create(filepath.Join(t.TempDir(), "spool"))
	if err != nil {
		t.Fatal(err)
	}
	defer spool.Close()
	for name, sp := range map[string]Spool{"memory": nil, "spool": spool} {
		t.Run(name, func(t *testing.T) {
			p := write(t, sample(t, sp), "root.img")
			if _, err := exec.LookPath("fsck.erofs"); err != nil {
				t.Fatal("fsck.erofs is not installed; make test installs its package, erofs-utils")
			}
			out, err := exec.Command("fsck.erofs", "--extract", p).CombinedOutput()
			if err != nil {
				t.Fatalf("fsck.erofs: %v\n%s", err, out)
			}
			if bytes.Contains(out, []byte("<W>")) || bytes.Contains(out, []byte("<E>")) {
				t.Fatalf("fsck.erofs complains:\n%s", out)
			}
		})
	}
}

func TestImageHoldsWhatWasAdded(t *testing.T) {
	f, err := os.Open(write(t, sample(t, nil), "root.img"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	img, err := erofs.Open(f)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := fs.ReadFile(img, "sizes/4097"); err != nil || len(b) != 4097 || b[4096] != 1 {
		t.Errorf("sizes/4097: %d bytes, %v", len(b), err)
	}
	for _, c := range []struct {
		path     string
		mode     fs.FileMode
		uid, gid uint32
		xattr    bool
	}{
		{"usr/bin/su", fs.ModeSetuid | 0o755, 0, 0, false},
		{"usr/bin/su2", fs.ModeSetuid | 0o755, 0, 0, false},
		{"usr/bin/ping", 0o755, 70000, 7, true},
		{"usr/bin", fs.ModeDir | 0o755, 0, 0, false},
	} {
		st, err := fs.Stat(img, c.path)
		if err != nil {
			t.Errorf("%s: %v", c.path, err)
			continue
		}
		sys := st.Sys().(*erofs.Stat)
		if sys.Mode != c.mode || sys.UID != c.uid || sys.GID != c.gid || (sys.Xattrs["security.capability"] != "") != c.xattr {
			t.Errorf("%s: mode %v owner %d:%d xattrs %v", c.path, sys.Mode, sys.UID, sys.GID, sys.Xattrs)
		}
		if !st.ModTime().Equal(testTime) {
			t.Errorf("%s: time %v", c.path, st.ModTime())
		}
	}
	if _, err := fs.Stat(img, "usr/share/doc/x"); err == nil {
		t.Error("a filtered file is in the image")
	}
}

func TestImageIsRepeatable(t *testing.T) {
	var sums [2][32]byte
	for i := range sums {
		b, err := os.ReadFile(write(t, sample(t, nil), "root.img"))
		if err != nil {
			t.Fatal(err)
		}
		sums[i] = sha256.Sum256(b)
	}
	if sums[0] != sums[1] {
		t.Error("two images of the same tree differ")
	}
}

func TestAddRefuses(t *testing.T) {
	for name, add := range map[string]func(*Tree) error{
		"dotdot":             func(tr *Tree) error { return tr.AddBytes("a/../../b", 0o644, nil) },
		"zero byte":          func(tr *Tree) error { return tr.AddBytes("a\x00b", 0o644, nil) },
		"long name":          func(tr *Tree) error { return tr.AddBytes(strings.Repeat("n", 256), 0o644, nil) },
		"file under file":    func(tr *Tree) error { return tr.AddBytes("file/x", 0o644, nil) },
		"file over dir":      func(tr *Tree) error { return tr.AddBytes("dir", 0o644, nil) },
		"dir over file":      func(tr *Tree) error { return tr.AddDir("file", 0o755) },
		"link loop":          func(tr *Tree) error { return tr.AddBytes("loop/x", 0o644, nil) },
		"device":             func(tr *Tree) error { return tr.Add(Entry{Path: "null", Mode: fs.ModeDevice}) },
		"link to nowhere":    func(tr *Tree) error { return tr.AddSymlink("l", "") },
		"root as a file":     func(tr *Tree) error { return tr.AddBytes("/", 0o644, nil) },
		"symlinks in folder": func(tr *Tree) error { return tr.AddFS("x", fstest.MapFS{"l": {Mode: fs.ModeSymlink}}) },
	} {
		t.Run(name, func(t *testing.T) {
			tr := New(nil)
			if err := tr.AddBytes("file", 0o644, nil); err != nil {
				t.Fatal(err)
			}
			if err := tr.AddDir("dir", 0o755); err != nil {
				t.Fatal(err)
			}
			if err := tr.AddSymlink("loop", "loop"); err != nil {
				t.Fatal(err)
			}
			if err := add(tr); err == nil {
				t.Error("accepted")
			}
		})
	}
}

func TestContentOfAnotherLengthIsRefused(t *testing.T) {
	for name, said := range map[string]int64{"shorter": 6000, "longer": 4000} {
		t.Run(name, func(t *testing.T) {
			tr := New(nil)
			if err := tr.AddFile("f", 0o644, said, openBytes(make([]byte, 5000))); err != nil {
				t.Fatal(err)
			}
			f, err := os.Create(filepath.Join(t.TempDir(), "root.img"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := WriteEROFS(context.Background(), f, tr, options()); err == nil || !strings.Contains(err.Error(), "f ") {
				t.Errorf("error is %v", err)
			}
		})
	}
}

func TestEntriesAreSortedParentsFirst(t *testing.T) {
	tr := New(nil)
	for _, p := range []string{"a-b/x", "a/b", "a", "b"} {
		if p == "a" {
			continue
		}
		if err := tr.AddBytes(p, 0o644, nil); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for _, e := range tr.Entries() {
		got = append(got, e.Path)
	}
	if s := strings.Join(got, " "); s != ". a a/b a-b a-b/x b" {
		t.Errorf("order is %q", s)
	}
}
