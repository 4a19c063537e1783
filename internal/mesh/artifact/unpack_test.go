package artifact

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/klauspost/compress/zstd"

	"kingpost/internal/mesh"
)

func mustHash(t testing.TB, s string) v1.Hash {
	t.Helper()
	h, err := v1.NewHash(s)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

type entry struct {
	typ     byte
	name    string
	link    string
	content string
	mode    int64
	pax     map[string]string
}

func file(name, content string) entry { return entry{typ: tar.TypeReg, name: name, content: content} }
func link(name, to string) entry      { return entry{typ: tar.TypeSymlink, name: name, link: to} }
func folder(name string) entry        { return entry{typ: tar.TypeDir, name: name, mode: 0o755} }

func tarOf(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		if e.mode == 0 {
			e.mode = 0o644
		}
		h := &tar.Header{Typeflag: e.typ, Name: e.name, Linkname: e.link, Mode: e.mode, Size: int64(len(e.content)), PAXRecords: e.pax,
			Uid: os.Geteuid(), Gid: os.Getegid()}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		io.WriteString(w, e.content)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// sparseTar holds files of so many bytes that are all holes but the last 512 (PAX format 0.1 of GNU tar), which archives
// made by Go never do.
func sparseTar(t testing.TB, sizes ...int64) []byte {
	t.Helper()
	var out []byte
	for i, size := range sizes {
		records := ""
		for _, r := range []string{"numblocks=1", fmt.Sprintf("map=%d,512", size-512), fmt.Sprintf("size=%d", size)} {
			r = " GNU.sparse." + r + "\n"
			records += strconv.Itoa(len(r)+2) + r
		}
		head := tarOf(t, file("pax", records))[:1024]
		head[156] = tar.TypeXHeader
		copy(head[148:156], "        ")
		sum := 0
		for _, c := range head[:512] {
			sum += int(c)
		}
		copy(head[148:156], fmt.Sprintf("%06o\x00 ", sum))
		out = append(append(out, head...), tarOf(t, file("zeros"+strconv.Itoa(i), strings.Repeat("x", 512)))[:1024]...)
	}
	return append(out, make([]byte, 1024)...)
}

// TestUnpackSparse: a sparse file counts with the bytes that come out, in bundles and images.
func TestUnpackSparse(t *testing.T) {
	var limitErr *LimitError
	if err := UnpackImageLayer(t.Context(), bytes.NewReader(sparseTar(t, 1<<30)), t.TempDir(), Limits{}); !errors.As(err, &limitErr) {
		t.Errorf("an image: %v", err)
	}
	dir := t.TempDir()
	if err := Unpack(t.Context(), bytes.NewReader(sparseTar(t, 4096)), dir, Limits{}); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "zeros0"))
	if want := strings.Repeat("\x00", 4096-512) + strings.Repeat("x", 512); err != nil || string(b) != want {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}

func TestPackRefuses(t *testing.T) {
	text := func(p string) File {
		return File{Path: p, Mode: 0o644, Size: 1, Open: func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("x")), nil }}
	}
	to := func(p, target string) File { return File{Path: p, Link: target} }
	longest := strings.Repeat("n", 255)
	for name, c := range map[string]struct {
		files []File
		ok    bool
	}{
		"longest name":      {[]File{text("d/" + longest)}, true},
		"traversal":         {[]File{text("../evil")}, false},
		"absolute":          {[]File{text("/evil")}, false},
		"not clean":         {[]File{text("a//b")}, false},
		"too long a name":   {[]File{text("d/" + longest + "n")}, false},
		"not UTF-8":         {[]File{text("a\xff")}, false},
		"twice":             {[]File{text("a"), text("a")}, false},
		"absolute link":     {[]File{to("l", "/etc")}, false},
		"leaving link":      {[]File{to("l", "../etc")}, false},
		"link not UTF-8":    {[]File{to("l", "\xff")}, false},
		"through a link":    {[]File{text("d/a"), to("l", "d"), text("l/b")}, false},
		"file as a folder":  {[]File{text("a"), text("a/b")}, false},
		"setuid":            {[]File{{Path: "su", Mode: 0o4755, Size: 1, Open: text("x").Open}}, false},
		"shorter than said": {[]File{{Path: "a", Mode: 0o644, Size: 2, Open: text("x").Open}}, false},
	} {
		var layer bytes.Buffer
		l, err := PackLayer(t.Context(), &layer, c.files, time.Unix(1e9, 0))
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil {
			continue
		}
		dir := t.TempDir()
		if err := errors.Join(Unpack(t.Context(), &layer, dir, Limits{}), CheckFiles(dir, &mesh.BundleConfig{Files: l.Files})); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func zstdOf(t testing.TB, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := zstd.NewWriter(&out)
	if err != nil {
		t.Fatal(err)
	}
	w.Write(b)
	w.Close()
	return out.Bytes()
}

func TestUnpackRefuses(t *testing.T) {
	bomb := zstdOf(t, tarOf(t, file("zeros", strings.Repeat("\x00", 64<<20))))
	whole := zstdOf(t, tarOf(t, file("a", strings.Repeat("text ", 10000))))
	var entryErr *EntryError
	var limitErr *LimitError
	for _, c := range []struct {
		name  string
		layer []byte
		lim   Limits
		want  any
	}{
		{"traversal", tarOf(t, file("../../evil", "x")), Limits{}, &entryErr},
		{"traversal inside", tarOf(t, file("a/../../evil", "x")), Limits{}, &entryErr},
		{"absolute path", tarOf(t, file("/evil", "x")), Limits{}, &entryErr},
		{"absolute link", tarOf(t, link("l", "/etc")), Limits{}, &entryErr},
		{"leaving link", tarOf(t, link("a/l", "../../etc")), Limits{}, &entryErr},
		{"hidden leaving link", tarOf(t, link("l", "x/../../etc")), Limits{}, &entryErr},
		{"through a link", tarOf(t, link("l", "."), file("l/../../evil", "x")), Limits{}, &entryErr},
		{"through a link inside", tarOf(t, folder("d/"), link("l", "d"), file("l/x", "x")), Limits{}, &entryErr},
		{"folder through a link", tarOf(t, folder("d/"), link("l", "d"), folder("l/x/")), Limits{}, &entryErr},
		{"long name", tarOf(t, file("d/"+strings.Repeat("n", 256), "x")), Limits{}, &entryErr},
		{"hard link out", tarOf(t, entry{typ: tar.TypeLink, name: "b", link: "../../evil"}), Limits{}, &entryErr},
		{"sparse bytes", sparseTar(t, 1<<30), Limits{Bytes: 1 << 20}, &limitErr},
		{"sparse ratio", sparseTar(t, 1<<30), Limits{}, &limitErr},
		{"sparse, many", sparseTar(t, 8<<20, 8<<20, 8<<20, 8<<20), Limits{}, &limitErr},
		{"garbage behind the archive", append(tarOf(t, file("a", "x")), "garbage"...), Limits{}, nil},
		{"garbage behind zstd", append(zstdOf(t, tarOf(t, file("a", "x"))), "garbage"...), Limits{}, nil},
		{"garbage in zstd", zstdOf(t, append(tarOf(t, file("a", "x")), "garbage"...)), Limits{}, nil},
		{"a second archive", append(tarOf(t, file("a", "x")), tarOf(t, file("b", "x"))...), Limits{}, nil},
		{"device", tarOf(t, entry{typ: tar.TypeChar, name: "null"}), Limits{}, &entryErr},
		{"fifo", tarOf(t, entry{typ: tar.TypeFifo, name: "f"}), Limits{}, &entryErr},
		{"hard link", tarOf(t, file("a", "x"), entry{typ: tar.TypeLink, name: "b", link: "a"}), Limits{}, &entryErr},
		{"same file twice", tarOf(t, file("a", "x"), file("a", "y")), Limits{}, nil},
		{"file over link", tarOf(t, link("a", "b"), file("a", "y")), Limits{}, nil},
		{"ratio", bomb, Limits{}, &limitErr},
		{"bytes", bomb, Limits{Bytes: 1 << 20}, &limitErr},
		{"entries", tarOf(t, file("a", ""), file("b", ""), file("c", "")), Limits{Entries: 2}, &limitErr},
		{"truncated", whole[:len(whole)/2], Limits{}, nil},
		{"truncated tar", tarOf(t, file("a", strings.Repeat("x", 5000)))[:3000], Limits{}, nil},
		{"noise", []byte("\x28\xb5\x2f\xfd nothing that is zstd"), Limits{}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			outer := t.TempDir()
			err := Unpack(t.Context(), bytes.NewReader(c.layer), filepath.Join(outer, "in", "dir"), c.lim)
			if err == nil {
				t.Fatal("unpacked")
			}
			t.Log(err)
			if c.want != nil && !errors.As(err, c.want) {
				t.Errorf("error %T %v", err, err)
			}
			if _, err := os.Stat(filepath.Join(outer, "evil")); err == nil {
				t.Error("a file was written outside")
			}
		})
	}
}

func TestUnpackChecksDigest(t *testing.T) {
	layer := zstdOf(t, tarOf(t, file("a", "content")))
	r := VerifyReader(io.NopCloser(bytes.NewReader(layer)), DigestOf([]byte("other")), int64(len(layer)))
	var wrong *DigestError
	if err := Unpack(t.Context(), r, t.TempDir(), Limits{}); !errors.As(err, &wrong) {
		t.Errorf("got %v", err)
	}
}

func TestUnpackCompressions(t *testing.T) {
	plain := tarOf(t, folder("d/"), entry{typ: tar.TypeReg, name: "./d/run", content: "x", mode: 0o6775}, link("d/l", "../d/run"))
	var gz bytes.Buffer
	w := gzip.NewWriter(&gz)
	w.Write(plain)
	w.Close()
	for name, layer := range map[string][]byte{"plain": plain, "gzip": gz.Bytes(), "zstd": zstdOf(t, plain)} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := Unpack(t.Context(), bytes.NewReader(layer), dir, Limits{}); err != nil {
				t.Fatal(err)
			}
			st, err := os.Stat(filepath.Join(dir, "d/l"))
			if err != nil || st.Mode() != 0o755 {
				t.Errorf("%v, %v: setuid bits are not taken into a bundle", st, err)
			}
		})
	}
}

// listing is a tree as text: mode, name, and content or link target.
func listing(t testing.TB, dir string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		st, err := os.Lstat(p)
		if err != nil {
			return err
		}
		line := st.Mode().String() + " " + rel
		switch {
		case st.Mode()&fs.ModeSymlink != 0:
			to, _ := os.Readlink(p)
			line += " -> " + to
		case st.Mode().IsRegular():
			b, _ := os.ReadFile(p)
			line += " " + string(b)
		}
		out = append(out, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestUnpackImageLayers(t *testing.T) {
	dir := t.TempDir()
	layers := [][]byte{
		tarOf(t, folder("usr/"), folder("usr/lib/"), file("usr/lib/a", "1"), file("usr/lib/b", "1"), link("lib", "/usr/lib"), link("up", "../../.."),
			file("gone", "1"), file("etc/conf", "1"), file("etc/sub/deep", "1"),
			entry{typ: tar.TypeReg, name: "su", content: "s", mode: 0o4755},
			entry{typ: tar.TypeLink, name: "hard", link: "/usr/lib/a"},
			entry{typ: tar.TypeChar, name: "dev/null"}),
		tarOf(t, file("etc/new", "2"), file("etc/.wh..wh..opq", ""), file(".wh.gone", ""), file("lib/c", "2"), file("up/d", "2"),
			entry{typ: tar.TypeDir, name: "usr/lib/", mode: 0o555}, link("usr/lib/b", "a")),
	}
	for _, l := range layers {
		if err := UnpackImageLayer(t.Context(), bytes.NewReader(zstdOf(t, l)), dir, Limits{}); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{
		"-rw-r--r-- d 2", "drwxr-xr-x dev", "drwxr-xr-x etc", "-rw-r--r-- etc/new 2", "-rw-r--r-- hard 1", "Lrwxrwxrwx lib -> /usr/lib",
		"urwxr-xr-x su s", "Lrwxrwxrwx up -> ../../..", "drwxr-xr-x usr", "dr-xr-xr-x usr/lib", "-rw-r--r-- usr/lib/a 1",
		"Lrwxrwxrwx usr/lib/b -> a", "-rw-r--r-- usr/lib/c 2",
	}
	if d := cmp.Diff(want, listing(t, dir)); d != "" {
		t.Error(d)
	}
	a, _ := os.Stat(filepath.Join(dir, "usr/lib/a"))
	h, _ := os.Stat(filepath.Join(dir, "hard"))
	if !os.SameFile(a, h) {
		t.Error("the hard link became a copy")
	}
	os.Chmod(filepath.Join(dir, "usr/lib"), 0o755)
}

func FuzzUnpack(f *testing.F) {
	f.Add(tarOf(f, file("a", "x"), link("b", "a"), folder("c/")))
	f.Add(zstdOf(f, tarOf(f, file("../a", "x"))))
	f.Add(tarOf(f, link("up", "/"), file("up/.wh.etc", "")))
	f.Fuzz(func(t *testing.T, layer []byte) {
		outer := t.TempDir()
		lim := Limits{Bytes: 1 << 20, Entries: 100}
		Unpack(t.Context(), bytes.NewReader(layer), filepath.Join(outer, "bundle"), lim)
		UnpackImageLayer(t.Context(), bytes.NewReader(layer), filepath.Join(outer, "image"), lim)
		names, err := os.ReadDir(outer)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range names {
			if n.Name() != "bundle" && n.Name() != "image" {
				t.Errorf("%s was written outside", n.Name())
			}
		}
	})
}

func FuzzLayoutIndex(f *testing.F) {
	f.Add([]byte(`{"imageLayoutVersion":"1.0.0"}`), []byte(`{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a","size":2,"annotations":{"org.opencontainers.image.ref.name":"bundle/x:1"}}]}`))
	f.Fuzz(func(t *testing.T, marker, index []byte) {
		entries, err := parseIndex(marker, index)
		if err != nil {
			return
		}
		for _, e := range entries {
			if CheckDigest(e.Digest) != nil || e.Ref.Name == "" {
				t.Errorf("accepted %+v", e)
			}
		}
	})
}

func FuzzManifest(f *testing.F) {
	f.Add([]byte(`{"schemaVersion":2,"config":{"digest":"sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a","size":2},"layers":[]}`))
	f.Add([]byte(`{"architecture":"amd64","files":[{"path":"bin/x","mode":493}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := ParseManifest(b); err == nil && CheckDigest(string(m.Config.Digest)) != nil {
			t.Errorf("accepted %+v", m)
		}
		if cfg, err := ParseBundleConfig(b); err == nil {
			for _, file := range cfg.Files {
				if checkBundlePath(file.Path) != nil {
					t.Errorf("accepted %q", file.Path)
				}
			}
		}
	})
}
