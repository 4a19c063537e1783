package builderd

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/artifact"
	"kingpost/internal/mesh/verbs"
)

func testStore(t testing.TB) *artifact.Client {
	t.Helper()
	srv := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(srv.Close)
	return &artifact.Client{HTTP: srv.Client(), Base: srv.URL}
}

func openTest(t testing.TB, dir string, store Store) *Builder {
	t.Helper()
	b, err := Open(dir, store, func() time.Time { return time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC) })
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func helloParams() *verbs.BuildParams {
	return &verbs.BuildParams{Name: "hello", Version: "1.0", Arch: "amd64", Files: []verbs.BuildFile{
		{Path: "share/text", Content: []byte("hello\n")},
		{Path: "bin/hello", Executable: true, Content: []byte("#!/bin/sh\n")},
	}}
}

// pushTar puts a blob into the store's input repository with the two requests that any client makes.
func pushTar(t testing.TB, store *artifact.Client, entries ...tar.Header) (digest string, size int64) {
	t.Helper()
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, h := range entries {
		body := ""
		if h.Typeflag == 0 || h.Typeflag == tar.TypeReg {
			body = "#!/bin/of/" + h.Name
			h.Size = int64(len(body))
		}
		if err := tw.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(tw, body); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	digest = artifact.DigestOf(buf.Bytes())
	req, err := http.NewRequest("POST", store.Base+"/v2/"+verbs.BuildInputRepository+"/blobs/uploads/?digest="+digest, bytes.NewReader(buf.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := store.HTTP.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusCreated {
		t.Fatal(resp.Status)
	}
	return digest, int64(buf.Len())
}

func TestBuild(t *testing.T) {
	store, dir := testStore(t), t.TempDir()
	b := openTest(t, dir, store)
	rec, err := b.Build(t.Context(), "ann", helloParams())
	if err != nil {
		t.Fatal(err)
	}
	// What stands in the store is a bundle that a host can unpack and check.
	out := t.TempDir()
	ref := mesh.Ref{Kind: mesh.ArtifactBundle, Name: "hello"}
	cfg, err := artifact.UnpackBundle(t.Context(), store, ref, rec.Digest, out, artifact.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if err := artifact.CheckFiles(out, cfg); err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(filepath.Join(out, "bin/hello")); err != nil || fi.Mode().Perm() != 0o755 {
		t.Fatalf("%v, %v", fi, err)
	}
	if desc, err := store.Resolve(t.Context(), ref, "1.0-amd64"); err != nil || string(desc.Digest) != rec.Digest {
		t.Fatalf("%v, %v", desc, err)
	}

	// The same files, at another time and in another order, are the same bundle; other files are refused.
	again := openTest(t, t.TempDir(), store)
	again.now = time.Now
	p := helloParams()
	p.Files[0], p.Files[1] = p.Files[1], p.Files[0]
	if rec2, err := again.Build(t.Context(), "bob", p); err != nil || rec2.Digest != rec.Digest {
		t.Fatalf("%+v, %v", rec2, err)
	}
	p.Files[0].Content = []byte("#!/bin/another\n")
	var ce *mesh.CallError
	if _, err := b.Build(t.Context(), "ann", p); !errors.As(err, &ce) || ce.Code != mesh.CodeConflict {
		t.Fatalf("a version was given another content: %v", err)
	}
	p.Version = "1.1"
	if rec, err := b.Build(t.Context(), "ann", p); err != nil || rec.Number != 2 {
		t.Fatalf("%+v, %v", rec, err)
	}
	if got := openTest(t, dir, store).log.newest("hello"); len(got) != 2 || got[0].Version != "1.1" || got[1].By != "ann" {
		t.Fatalf("after a restart the builds are %+v", got)
	}
	if left, err := filepath.Glob(filepath.Join(dir, workDir)); err != nil || left != nil {
		t.Fatalf("a build left %v", left)
	}
}

func TestBuildFromBlob(t *testing.T) {
	store := testStore(t)
	b := openTest(t, t.TempDir(), store)
	digest, size := pushTar(t, store,
		tar.Header{Name: "bin/", Typeflag: tar.TypeDir, Mode: 0o755},
		tar.Header{Name: "bin/hello", Mode: 0o755},
		tar.Header{Name: "bin/hi", Typeflag: tar.TypeSymlink, Linkname: "hello"},
		tar.Header{Name: "share/a", Mode: 0o600},
	)
	rec, err := b.Build(t.Context(), "ann", &verbs.BuildParams{Name: "hello", Version: "1", Arch: "arm64", Blob: digest, BlobSize: size, Command: "bin/hi"})
	if err != nil {
		t.Fatal(err)
	}
	if rec.Files != 3 {
		t.Fatalf("%+v", rec)
	}
}

// failing is a store whose push breaks.
type failing struct{ *artifact.Client }

func (failing) Push(context.Context, *artifact.Artifact, ...artifact.PushOption) error {
	return errors.New("the store is full")
}

func TestBuildRefused(t *testing.T) {
	store := testStore(t)
	outside, outsideSize := pushTar(t, store, tar.Header{Name: "bin/hello", Mode: 0o755}, tar.Header{Name: "../evil", Mode: 0o644})
	device, deviceSize := pushTar(t, store, tar.Header{Name: "bin/hello", Typeflag: tar.TypeChar, Mode: 0o755})
	link, linkSize := pushTar(t, store, tar.Header{Name: "bin/hello", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"})
	unpushed := "sha256:" + strings.Repeat("0", 64)
	blob := func(digest string, size int64) func(*verbs.BuildParams) {
		return func(p *verbs.BuildParams) { p.Files, p.Blob, p.BlobSize = nil, digest, size }
	}
	for name, change := range map[string]func(p *verbs.BuildParams){
		"name":           func(p *verbs.BuildParams) { p.Name = "Hello" },
		"version":        func(p *verbs.BuildParams) { p.Version = "1/2" },
		"no version":     func(p *verbs.BuildParams) { p.Version = "" },
		"arch":           func(p *verbs.BuildParams) { p.Arch = "amd-64" },
		"nothing":        func(p *verbs.BuildParams) { p.Files = nil },
		"both":           func(p *verbs.BuildParams) { p.Blob = unpushed },
		"no command":     func(p *verbs.BuildParams) { p.Name = "other" },
		"not executable": func(p *verbs.BuildParams) { p.Command = "share/text" },
		"no program":     func(p *verbs.BuildParams) { p.Files[1].Content = []byte("hello\n") },
		"cut program":    func(p *verbs.BuildParams) { p.Files[1].Content = []byte("\x7fELF\x02\x01\x01") },
		"traversal":      func(p *verbs.BuildParams) { p.Files[0].Path = "../text" },
		"absolute":       func(p *verbs.BuildParams) { p.Files[0].Path = "/text" },
		"not clean":      func(p *verbs.BuildParams) { p.Files[0].Path = "share//text" },
		"twice":          func(p *verbs.BuildParams) { p.Files[0].Path = p.Files[1].Path },
		"file as folder": func(p *verbs.BuildParams) { p.Files[0].Path = "bin/hello/x" },
		"too large": func(p *verbs.BuildParams) {
			p.Files[0].Content = make([]byte, verbs.MaxBuildInline+1)
		},
		"blob not pushed":  blob(unpushed, 100),
		"blob of no size":  blob(outside, 0),
		"blob too large":   blob(outside, maxBlob+1),
		"blob traverses":   blob(outside, outsideSize),
		"blob is a device": blob(device, deviceSize),
		"blob links out":   blob(link, linkSize),
		"blob cut":         blob(link, linkSize-512),
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			b := openTest(t, dir, store)
			p := helloParams()
			change(p)
			if rec, err := b.Build(t.Context(), "ann", p); err == nil {
				t.Fatalf("built: %+v", rec)
			} else {
				t.Log(err)
			}
			if len(b.log.newest("")) != 0 {
				t.Error("a refused build is recorded")
			}
			if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
				t.Errorf("a refused build left %v, %v", entries, err)
			}
		})
	}
	b := openTest(t, t.TempDir(), failing{store})
	if _, err := b.Build(t.Context(), "ann", helloParams()); err == nil || len(b.log.newest("")) != 0 {
		t.Fatalf("a build that was not stored is recorded: %v", err)
	}
}

func FuzzBuildParams(f *testing.F) {
	good, err := json.Marshal(helloParams())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"name":"a","version":"1","arch":"amd64","files":[{"path":"bin/a","content":"!!"}]}`))
	f.Add([]byte(`{"blob":"sha256:00","blobSize":-1}`))
	srv := openTest(f, f.TempDir(), testStore(f)).Server("home", nil)
	ann := mesh.Identity{Mesh: "home", Role: mesh.RoleOperator, Name: "ann"}
	f.Fuzz(func(t *testing.T, params []byte) {
		resp := srv.Call(t.Context(), ann, verbs.Build, mesh.CallRequest{Probe: true, Params: params})
		if resp.Error != nil && resp.Error.Code != mesh.CodeBadParams {
			t.Fatalf("%+v", resp.Error)
		}
	})
}
