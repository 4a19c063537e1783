package artifact

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"kingpost/internal/mesh"
)

var when = time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)

func memFile(p, content string, mode uint32) File {
	return File{Path: p, Mode: mode, Size: int64(len(content)), Open: func() (io.ReadCloser, error) {
		return io.NopCloser(strings.NewReader(content)), nil
	}}
}

// pair packs files as a bundle and an image over one layer.
func pair(t testing.TB, name string, files ...File) []*Artifact {
	t.Helper()
	var b bytes.Buffer
	l, err := PackLayer(t.Context(), &b, files, when)
	if err != nil {
		t.Fatal(err)
	}
	open := func(context.Context) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil }
	o := Origin{Version: "0.1.0", Arch: "amd64", Created: when}
	bundle, err := NewBundle(name, o, l, open)
	if err != nil {
		t.Fatal(err)
	}
	image, err := NewImage(name, o, ImageConfig{Entrypoint: []string{"/bin/" + name}}, l, open)
	if err != nil {
		t.Fatal(err)
	}
	module, err := NewModule(name, o, []byte(`{"module":"`+name+`"}`))
	if err != nil {
		t.Fatal(err)
	}
	return []*Artifact{bundle, image, module}
}

func someLayout(t testing.TB) (string, *Layout) {
	t.Helper()
	dir := t.TempDir()
	w, err := NewLayoutWriter(dir)
	if err != nil {
		t.Fatal(err)
	}
	big := make([]byte, 300_000)
	rand.Read(big)
	for _, a := range pair(t, "demo", memFile("bin/demo", "#!program\n", 0o755), memFile("share/doc/x", string(big), 0o644), File{Path: "bin/alias", Link: "demo"}) {
		if err := w.Add(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	l, err := OpenLayout(os.DirFS(dir))
	if err != nil {
		t.Fatal(err)
	}
	return dir, l
}

func TestPackLayerIsReproducible(t *testing.T) {
	files := []File{memFile("bin/x", "x", 0o755), memFile("a", strings.Repeat("y", 100_000), 0o644)}
	var one, two bytes.Buffer
	l1, err := PackLayer(t.Context(), &one, files, when)
	if err != nil {
		t.Fatal(err)
	}
	l2, err := PackLayer(t.Context(), &two, []File{files[1], files[0]}, when)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(one.Bytes(), two.Bytes()) {
		t.Error("the order in which files are given changes the bytes")
	}
	if d := cmp.Diff(l1, l2); d != "" {
		t.Error(d)
	}
}

func TestPackLayerRefuses(t *testing.T) {
	for name, files := range map[string][]File{
		"traversal":     {memFile("../x", "", 0o644)},
		"absolute":      {memFile("/x", "", 0o644)},
		"unclean":       {memFile("a//b", "", 0o644)},
		"setuid":        {memFile("a", "", 0o4755)},
		"twice":         {memFile("a", "", 0o644), memFile("a", "", 0o644)},
		"absolute link": {{Path: "a", Link: "/etc/passwd"}},
		"leaving link":  {{Path: "a/b", Link: "x/../../../c"}},
		"wrong size":    {{Path: "a", Mode: 0o644, Size: 3, Open: func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("12")), nil }}},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := PackLayer(t.Context(), io.Discard, files, when); err == nil {
				t.Error("packed")
			}
		})
	}
}

func TestLayout(t *testing.T) {
	dir, l := someLayout(t)
	var last int64
	if err := l.Verify(t.Context(), func(done, total int64) { last = total - done }); err != nil || last != 0 {
		t.Fatalf("Verify: %v, %d bytes left", err, last)
	}
	var names []string
	for _, e := range l.Entries() {
		names = append(names, e.String()+" "+e.Arch)
	}
	if d := cmp.Diff([]string{"bundle/demo:0.1.0-amd64 amd64", "image/demo:0.1.0-amd64 amd64", "module/demo:0.1.0 "}, names); d != "" {
		t.Error(d)
	}
	// A stock library must find the image in it whole.
	e, err := l.Find(mesh.Ref{Kind: mesh.ArtifactImage, Name: "demo"}, "amd64")
	if err != nil {
		t.Fatal(err)
	}
	p, err := layout.FromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	idx, err := p.ImageIndex()
	if err != nil {
		t.Fatal(err)
	}
	img, err := idx.Image(mustHash(t, e.Digest))
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Image(img, validate.Fast); err != nil {
		t.Error(err)
	}
	layers, err := img.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers, %v", len(layers), err)
	}
	plain, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	h := sha256.New()
	io.Copy(h, plain)
	if cf, err := img.ConfigFile(); err != nil || cf.RootFS.DiffIDs[0].String() != digestString(h) {
		t.Errorf("diff ID %s, %v", digestString(h), err)
	}
	raw, err := ReadModule(t.Context(), l, mesh.Ref{}, l.Entries()[2].Digest)
	if err != nil || string(raw) != `{"module":"demo"}` {
		t.Errorf("ReadModule: %q, %v", raw, err)
	}
	if d := cmp.Diff(mesh.Digests{"bundle/demo": {"amd64": l.Entries()[0].Digest}, "image/demo": {"amd64": e.Digest}}, l.Digests()); d != "" {
		t.Error(d)
	}
}

func TestLayoutDamaged(t *testing.T) {
	damage := func(what string, f func(dir string, blobs []string)) {
		t.Run(what, func(t *testing.T) {
			dir, _ := someLayout(t)
			blobs, err := filepath.Glob(filepath.Join(dir, "blobs/sha256/*"))
			if err != nil {
				t.Fatal(err)
			}
			f(dir, blobs)
			l, err := OpenLayout(os.DirFS(dir))
			if err == nil {
				err = l.Verify(t.Context(), nil)
			}
			if err == nil {
				t.Fatal("found whole")
			}
			t.Log(err)
		})
	}
	damage("flipped byte", func(_ string, blobs []string) {
		for _, b := range blobs {
			raw, _ := os.ReadFile(b)
			if len(raw) > 100_000 {
				raw[5000] ^= 1
				os.WriteFile(b, raw, 0o644)
			}
		}
	})
	damage("missing blob", func(_ string, blobs []string) { os.Remove(blobs[0]) })
	damage("truncated blob", func(_ string, blobs []string) { os.Truncate(blobs[1], 3) })
	damage("stray file", func(dir string, _ []string) { os.WriteFile(filepath.Join(dir, "blobs/sha256/x"), nil, 0o644) })
	damage("no index", func(dir string, _ []string) { os.Remove(filepath.Join(dir, "index.json")) })
	damage("huge index", func(dir string, _ []string) {
		os.WriteFile(filepath.Join(dir, "index.json"), bytes.Repeat([]byte(" "), MaxManifest+1), 0o644)
	})
}

// brokenStore cuts the first bodies of blobs short.
type brokenStore struct {
	http.Handler
	cuts int
}

func (b *brokenStore) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if b.cuts > 0 && r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
		b.cuts--
		w = &cutWriter{w, 100_000}
	}
	b.Handler.ServeHTTP(w, r)
}

type cutWriter struct {
	http.ResponseWriter
	left int
}

func (c *cutWriter) Write(p []byte) (int, error) {
	if c.left < len(p) {
		c.ResponseWriter.Write(p[:c.left])
		panic(http.ErrAbortHandler)
	}
	c.left -= len(p)
	return c.ResponseWriter.Write(p)
}

func TestClient(t *testing.T) {
	store := &brokenStore{Handler: registry.New(registry.Logger(log.New(io.Discard, "", 0)))}
	srv := httptest.NewServer(store)
	defer srv.Close()
	c := &Client{HTTP: srv.Client(), Base: srv.URL}
	if err := c.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, l := someLayout(t)
	bundle := mesh.Ref{Kind: mesh.ArtifactBundle, Name: "demo"}
	for range 2 { // the second time finds everything there
		for _, e := range l.Entries() {
			if err := c.Copy(t.Context(), l, e.Ref, e.Tag, e.Digest, MountFrom(bundle)); err != nil {
				t.Fatal(err)
			}
		}
	}
	store.cuts = 2
	for _, e := range l.Entries() {
		d, err := c.Resolve(t.Context(), e.Ref, e.Tag)
		if err != nil || string(d.Digest) != e.Digest {
			t.Errorf("Resolve %s: %s, %v", e, d.Digest, err)
		}
		if err := Check(t.Context(), c, e.Ref, e.Digest, map[string]bool{}); err != nil {
			t.Error(err)
		}
	}
	dir := filepath.Join(t.TempDir(), "b")
	cfg, err := UnpackBundle(t.Context(), c, bundle, l.Entries()[0].Digest, dir, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if len(cfg.Files) != 3 || CheckFiles(dir, cfg) != nil {
		t.Errorf("unpacked %v", cfg.Files)
	}
	if _, err := c.Resolve(t.Context(), bundle, "nowhere"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing tag gives %v", err)
	}
	tags, err := c.Tags(t.Context(), bundle)
	if err != nil || len(tags) != 1 {
		t.Errorf("Tags: %v, %v", tags, err)
	}
	refs, err := c.Repositories(t.Context())
	if err != nil || len(refs) != 3 {
		t.Errorf("Repositories: %v, %v", refs, err)
	}
}

// TestClientLies has a store that gives other bytes than were asked for.
func TestClientLies(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, `{"schemaVersion":2}`) }))
	defer srv.Close()
	c := &Client{HTTP: srv.Client(), Base: srv.URL}
	ref := mesh.Ref{Kind: mesh.ArtifactBundle, Name: "demo"}
	want := DigestOf([]byte("something else"))
	var wrong *DigestError
	if _, err := c.Manifest(t.Context(), ref, want); !errors.As(err, &wrong) {
		t.Errorf("Manifest: %v", err)
	}
	rc, err := c.Blob(t.Context(), ref, want, 19)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(rc); !errors.As(err, &wrong) {
		t.Errorf("Blob: %v", err)
	}
}

func TestCheckFiles(t *testing.T) {
	_, l := someLayout(t)
	for name, f := range map[string]func(dir string) error{
		"changed":    func(d string) error { return os.WriteFile(filepath.Join(d, "bin/demo"), []byte("#!progrbm\n"), 0o755) },
		"other mode": func(d string) error { return os.Chmod(filepath.Join(d, "bin/demo"), 0o777) },
		"missing":    func(d string) error { return os.Remove(filepath.Join(d, "bin/demo")) },
		"added":      func(d string) error { return os.WriteFile(filepath.Join(d, "bin/more"), nil, 0o755) },
		"link turned": func(d string) error {
			os.Remove(filepath.Join(d, "bin/alias"))
			return os.Symlink("/bin/sh", filepath.Join(d, "bin/alias"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			cfg, err := UnpackBundle(t.Context(), l, mesh.Ref{}, l.Entries()[0].Digest, dir, Limits{})
			if err != nil {
				t.Fatal(err)
			}
			if err := f(dir); err != nil {
				t.Fatal(err)
			}
			if err := CheckFiles(dir, cfg); err == nil {
				t.Error("found whole")
			}
		})
	}
}
