package supervise

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"kingpost/internal/imagetest"
	"kingpost/internal/mesh"
	"kingpost/internal/mesh/artifact"
	"kingpost/internal/mesh/hostapi"
)

// testStore serves artifacts as a store does, and can break off.
type testStore struct {
	mu      sync.Mutex
	objects map[string][]byte // by digest
	types   map[string]string
	down    bool
	cut     string // the blob that breaks off in the middle, and takes the store with it
	got     []string
	server  *httptest.Server
}

func newTestStore(t *testing.T, n *node) *testStore {
	t.Helper()
	s := &testStore{objects: map[string][]byte{}, types: map[string]string{}}
	s.server = httptest.NewServer(s)
	t.Cleanup(s.server.Close)
	n.stop()
	n.cfg.Store = func() (http.RoundTripper, string, error) {
		return &http.Transport{DisableKeepAlives: true}, s.server.URL, nil
	}
	n.start()
	return s
}

func (s *testStore) add(t *testing.T, a *artifact.Artifact) string {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.objects[string(a.Desc.Digest)], s.types[string(a.Desc.Digest)] = a.Manifest, a.Desc.MediaType
	for _, b := range a.Blobs {
		rc, err := b.Open(context.Background())
		must(t, err)
		content, err := io.ReadAll(rc)
		must(t, err)
		s.objects[string(b.Digest)] = content
	}
	return string(a.Desc.Digest)
}

func (s *testStore) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	digest := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	s.mu.Lock()
	b, down, cut := s.objects[digest], s.down, s.cut == digest
	s.got = append(s.got, strings.TrimSpace(digest+" "+r.Header.Get("Range")))
	if cut {
		s.down, s.cut = true, ""
	}
	s.mu.Unlock()
	switch {
	case down:
		http.Error(w, "not yet", http.StatusServiceUnavailable)
	case b == nil:
		http.NotFound(w, r)
	case cut:
		w.Header().Set("Content-Length", fmt.Sprint(len(b)))
		_, _ = w.Write(b[:len(b)/2])
		panic(http.ErrAbortHandler)
	default:
		if t := s.types[digest]; t != "" {
			w.Header().Set("Content-Type", t)
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(b))
	}
}

func (s *testStore) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func (s *testStore) requests(digest string) (out []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.got {
		if strings.HasPrefix(g, digest) {
			out = append(out, g)
		}
	}
	return out
}

func (n *node) image(t *testing.T, name string, layers ...[]imagetest.Entry) *artifact.Artifact {
	t.Helper()
	a, err := imagetest.New(name, runtime.GOARCH, ocispec.ImageConfig{Entrypoint: []string{"/bin/demo"}}, layers...)
	must(t, err)
	return a
}

// base is a first layer with the program.
func base(t *testing.T, more ...imagetest.Entry) []imagetest.Entry {
	t.Helper()
	program, err := os.ReadFile(demoProgram(t))
	must(t, err)
	return append([]imagetest.Entry{{Name: "bin", Type: tar.TypeDir}, {Name: "bin/demo", Mode: 0o755, Content: program}}, more...)
}

func text(name, content string) imagetest.Entry {
	return imagetest.Entry{Name: name, Content: []byte(content)}
}

// cap_net_raw=ep as a file has it (capabilities(7), struct vfs_cap_data of version 2).
const netRaw = "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"

// TestManyLayers: an image of 127 layers with everything in it that layers may do to each other.
func TestManyLayers(t *testing.T) {
	n := newNode(t)
	st := newTestStore(t, n)
	dir := func(name string) imagetest.Entry { return imagetest.Entry{Name: name, Type: tar.TypeDir} }
	layers := [][]imagetest.Entry{
		base(t, dir("private"), dir("private/etc"), imagetest.Entry{Name: "etc", Type: tar.TypeSymlink, Link: "/private/etc"}, text("etc/low", "low"),
			dir("data"), text("data/a", "a of 0"), text("data/b", "b of 0"), text("data/c", "c of 0"), dir("data/d"), text("data/d/deep", "deep of 0"),
			dir("opaque"), text("opaque/x", "x of 0"), dir("opaque/sub"), text("opaque/sub/y", "y of 0")),
		{text("etc/high", "high"), imagetest.Whiteout("data", "b"), {Name: "data/link", Type: tar.TypeLink, Link: "data/a"}, imagetest.Whiteout("data", "d")},
		{imagetest.Opaque("opaque"), text("opaque/z", "z of 2"), {Name: "bin/su", Mode: 0o4755, Content: []byte("su")},
			{Name: "bin/cap", Mode: 0o755, Content: []byte("cap"), Xattrs: map[string]string{"security.capability": netRaw, "user.note": "noted"}},
			{Name: "owned", UID: 1234, Mode: 0o640, Content: []byte("owned")}},
		{dir("data/c"), text("data/c/now", "a folder"), text("data/b", "b of 3"), imagetest.Whiteout("opaque", "z")},
		{dir("data/d"), text("data/d/new", "new of 4"), text("data/a", "a of 4"), {Name: "etc/linked", Type: tar.TypeLink, Link: "etc/low"}},
	}
	for i := len(layers); i < 127; i++ {
		layers = append(layers, []imagetest.Entry{text(fmt.Sprintf("layers/%d", i), fmt.Sprint(i)), text("last", fmt.Sprint(i))})
	}
	d := n.container("a", "look")
	d.Source = mesh.SourceStore
	d.Digest = st.add(t, n.image(t, "demo", layers...))
	other := d
	other.ID = "b"
	other.Digest = st.add(t, n.image(t, "demo", append(slices.Clone(layers[:126]), []imagetest.Entry{text("last", "other")})...))
	n.declare(d, other)
	n.settled()

	root := filepath.Join(n.cfg.Run, "instances", "m.a", "oci", "rootfs")
	for name, want := range map[string]string{
		"private/etc/low": "low", "private/etc/high": "high", "private/etc/linked": "low", "data/a": "a of 4", "data/link": "a of 0", "data/b": "b of 3",
		"data/c/now": "a folder", "data/d/new": "new of 4", "layers/126": "126", "layers/5": "5", "last": "126", "owned": "owned",
	} {
		if b, err := os.ReadFile(filepath.Join(root, name)); err != nil || string(b) != want {
			t.Errorf("%s is %q, %v; wanted %q", name, b, err, want)
		}
	}
	for _, name := range []string{"data/d/deep", "opaque/x", "opaque/sub", "opaque/z"} {
		if exists(filepath.Join(root, name)) {
			t.Errorf("%s is there, and was removed", name)
		}
	}
	if to, err := os.Readlink(filepath.Join(root, "etc")); err != nil || to != "/private/etc" {
		t.Errorf("/etc is %q, %v", to, err)
	}
	if s, err := os.Stat(filepath.Join(root, "bin/su")); err != nil || s.Mode()&os.ModeSetuid == 0 {
		t.Errorf("the setuid file: %v, %v", s, err)
	}
	if s, err := os.Stat(filepath.Join(root, "owned")); err != nil {
		t.Error(err)
	} else if uid, _ := ownerOf(s); uid != 1234 {
		t.Errorf("its owner is %d", uid)
	}
	buf := make([]byte, 100)
	for attr, want := range map[string]string{"security.capability": netRaw, "user.note": "noted"} {
		if m, err := unix.Getxattr(filepath.Join(root, "bin/cap"), attr, buf); err != nil || string(buf[:max(m, 0)]) != want {
			t.Errorf("%s: %q, %v", attr, buf[:max(m, 0)], err)
		}
	}
	if b, err := os.ReadFile(filepath.Join(n.cfg.Run, "instances", "m.b", "oci", "rootfs", "last")); err != nil || string(b) != "other" {
		t.Errorf("the last layer of the other image: %q, %v", b, err)
	}
	layerDirs := func() int {
		es, err := os.ReadDir(n.s.content.layersDir(mesh.SourceStore))
		must(t, err)
		return len(es)
	}
	if got := layerDirs(); got != 128 {
		t.Errorf("two images of 127 layers, of which 126 are the same, have %d on disk", got)
	}
	n.declare(other)
	n.settled()
	if removed := n.s.content.collect(n.s.kept()); removed != 1 {
		t.Errorf("%d images are collected", removed)
	}
	if got := layerDirs(); got != 127 {
		t.Errorf("after one image went %d layers are on disk", got)
	}

	// A layer that was damaged is fetched again, alone.
	n.declare()
	n.settled()
	m, err := artifact.ParseManifest(st.objects[other.Digest])
	must(t, err)
	damaged := filepath.Join(n.s.content.layer(mesh.SourceStore, chains(m.Layers)[40]), "files/last")
	if err := os.WriteFile(damaged, []byte("else"), 0o644); err != nil && !errors.Is(err, unix.EPERM) {
		t.Fatal(err)
	}
	st.set(func() { st.got = nil })
	n.declare(other)
	n.settled()
	if b, err := os.ReadFile(damaged); err != nil || string(b) != "40" {
		t.Errorf("the damaged layer: %q, %v", b, err)
	}
	if got := st.requests(string(m.Layers[39].Digest)); len(got) != 0 {
		t.Errorf("a whole layer was fetched again: %v", got)
	}
}

// noise does not compress.
func noise(size int) []byte {
	b := make([]byte, size)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(b)
	return b
}

// TestFetchResumed: a pull that was cut in the middle goes on there, with the next host too.
func TestFetchResumed(t *testing.T) {
	n := newNode(t)
	st := newTestStore(t, n)
	a := n.image(t, "demo", base(t), []imagetest.Entry{{Name: "big", Content: noise(4 << 20)}})
	d := n.container("a", "look")
	d.Source, d.Digest = mesh.SourceStore, st.add(t, a)
	big := string(a.Blobs[2].Digest)
	st.set(func() { st.cut = big })
	n.declare(d)
	r := n.until("m/a", "cut", func(r hostapi.ResourceStatus) bool {
		return strings.Contains(r.Reason, "bytes of sha256:") || strings.Contains(r.Reason, "503")
	})
	t.Log(r.Reason)
	n.stop()
	st.set(func() { st.down, st.got = false, nil })
	n.start()
	n.settled()
	if got := st.requests(big); len(got) != 1 || !strings.Contains(got[0], fmt.Sprintf("bytes=%d-", a.Blobs[2].Size/2)) {
		t.Errorf("asked for %v, wanted the second half of %d bytes", got, a.Blobs[2].Size)
	}
	if es, _ := os.ReadDir(n.s.content.partsDir()); len(es) != 0 {
		t.Errorf("left: %v", es)
	}

	// What a power cut has made zeros of is found out, and fetched whole.
	n.declare()
	n.settled()
	n.s.content.collect(n.s.kept())
	part := filepath.Join(n.s.content.partsDir(), strings.Replace(big, ":", "-", 1))
	must(t, os.WriteFile(part, make([]byte, a.Blobs[2].Size-100), 0o600))
	n.declare(d)
	n.settled()
}

// TestStoreNotListening: a store that does not listen yet is asked again, and the reason shown.
func TestStoreNotListening(t *testing.T) {
	n := newNode(t)
	st := newTestStore(t, n)
	n.stop()
	addr := st.server.Listener.Addr().String()
	var listening atomic.Bool
	n.cfg.Store = func() (http.RoundTripper, string, error) {
		if !listening.Load() {
			return &http.Transport{DisableKeepAlives: true}, "http://127.0.0.1:9", nil // discard: nobody listens there
		}
		return &http.Transport{DisableKeepAlives: true}, "http://" + addr, nil
	}
	n.start()
	d := n.container("a", "look")
	d.Source, d.Digest = mesh.SourceStore, st.add(t, n.image(t, "demo", base(t)))
	n.declare(d)
	r := n.state("m/a", "fetching")
	if !strings.Contains(r.Reason, "connection refused") {
		t.Errorf("the reason is %q", r.Reason)
	}
	listening.Store(true)
	n.settled()
}

// TestNoRoom: what is fetched leaves room on the data partition, and says so.
func TestNoRoom(t *testing.T) {
	n := newNode(t)
	st := newTestStore(t, n)
	n.stop()
	n.cfg.MinFree = 1 << 60
	n.start()
	d := n.container("a", "look")
	d.Source, d.Digest = mesh.SourceStore, st.add(t, n.image(t, "demo", base(t)))
	n.declare(d)
	if r := n.state("m/a", "fetching"); !strings.Contains(r.Reason, "are kept free") {
		t.Errorf("the reason is %q", r.Reason)
	}
	n.stop()
	n.cfg.MinFree = 0
	n.start()
	n.settled()
}
