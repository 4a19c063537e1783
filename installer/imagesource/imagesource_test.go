package imagesource

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/klauspost/compress/zstd"
	"go.uber.org/goleak"

	"kingpost/installer/diskwrite"
	"kingpost/internal/blockmap"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testSize = 9<<20 + 4096

// content is an image with data, holes and zeros.
func content() []byte {
	b := make([]byte, testSize)
	rnd := rand.NewChaCha8([32]byte{1})
	for _, s := range [][2]int{{0, 3000}, {2 << 20, 3<<20 + 5}, {7<<20 + 9, 7<<20 + 70_000}, {testSize - 10, testSize}} {
		rnd.Read(b[s[0]:s[1]])
	}
	return b
}

// sparse writes b with holes.
func sparse(t *testing.T, name string, b []byte) {
	t.Helper()
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(int64(len(b))); err != nil {
		t.Fatal(err)
	}
	if err := blockmap.Split(b, func(from, to int) error { _, err := f.WriteAt(b[from:to], int64(from)); return err }, nil); err != nil {
		t.Fatal(err)
	}
}

func compress(t *testing.T, b []byte) []byte {
	t.Helper()
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	return z.EncodeAll(b, nil)
}

// all reads an image whole, and checks that its blocks come in order and as they should.
func all(t *testing.T, s diskwrite.Source) ([]byte, error) {
	t.Helper()
	var out []byte
	buf := make([]byte, diskwrite.Piece)
	for {
		b, err := s.Next(t.Context(), buf)
		if err == io.EOF {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		if b.Off != int64(len(out)) || len(out)%diskwrite.Piece != 0 {
			t.Fatalf("a block at %d, after %d bytes", b.Off, len(out))
		}
		out = append(append(out, b.Data...), make([]byte, b.Zeros)...)
	}
}

// build puts an image into a folder with everything that vouches for it.
func build(t *testing.T, b []byte) string {
	t.Helper()
	dir := t.TempDir()
	sparse(t, filepath.Join(dir, "disk.img"), b)
	m, err := blockmap.Make(t.Context(), bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	list := map[string]any{"files": []map[string]any{
		{"name": "disk.img", "size": len(b), "sha256": fmt.Sprintf("%x", sha256.Sum256(b))},
		{"name": "disk.img.bmap", "sha256": fmt.Sprintf("%x", sha256.Sum256(m.Encode()))},
	}}
	text, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"disk.img.bmap": m.Encode(), "release.json": text, "disk.img.zst": compress(t, b)} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestOpenFile(t *testing.T) {
	b := content()
	dir := build(t, b)
	for name, c := range map[string]struct {
		path string
		size int64
	}{
		"raw":    {filepath.Join(dir, "disk.img"), testSize},
		"folder": {dir, testSize},
		"zstd":   {filepath.Join(dir, "disk.img.zst"), -1},
	} {
		t.Run(name, func(t *testing.T) {
			i, err := Open(t.Context(), c.path, Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer i.Close()
			got, err := all(t, i)
			if err != nil || !bytes.Equal(got, b) || i.Size != c.size || (i.Reader != nil) != (c.size > 0) {
				t.Errorf("%d bytes, size %d, %v", len(got), i.Size, err)
			}
			if v := i.Vouched; v.By != "release.json" || v.Map == nil || v.Map.Size != testSize || v.Digest != fmt.Sprintf("%x", sha256.Sum256(b)) {
				t.Errorf("vouched %+v", v)
			}
		})
	}
}

func TestVouching(t *testing.T) {
	b := content()
	for name, c := range map[string]struct {
		edit func(dir string)
		want string // error, or By
		bad  bool
	}{
		"whole":             {func(string) {}, "release.json", false},
		"nothing beside it": {func(d string) { os.Remove(d + "/release.json"); os.Remove(d + "/disk.img.bmap") }, "", false},
		"a map alone":       {func(d string) { os.Remove(d + "/release.json") }, "disk.img.bmap", false},
		"a list alone":      {func(d string) { os.Remove(d + "/disk.img.bmap") }, "release.json", false},
		"another build's map": {func(d string) {
			m, _ := blockmap.Make(context.Background(), bytes.NewReader(b[:1<<20]), 1<<20)
			os.WriteFile(d+"/disk.img.bmap", m.Encode(), 0o644)
		}, "of different builds", true},
		"a damaged map":           {func(d string) { os.WriteFile(d+"/disk.img.bmap", []byte("<bmap"), 0o644) }, "fetch it again", true},
		"somebody's release.json": {func(d string) { os.WriteFile(d+"/release.json", []byte("[]"), 0o644) }, "disk.img.bmap", false},
		"a digest that is none": {func(d string) {
			os.WriteFile(d+"/release.json", []byte(`{"files":[{"name":"disk.img","sha256":"x"}]}`), 0o644)
		}, "SHA-256", true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := build(t, b)
			c.edit(dir)
			i, err := Open(t.Context(), dir, Options{})
			if c.bad {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("got %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer i.Close()
			if i.Vouched.By != c.want {
				t.Errorf("vouched by %q", i.Vouched.By)
			}
		})
	}
}

func TestBrokenFiles(t *testing.T) {
	dir := t.TempDir()
	z := compress(t, content())
	flipped := bytes.Clone(z)
	flipped[len(flipped)/2] ^= 1
	for name, b := range map[string][]byte{"cut.zst": z[:len(z)/2], "flipped.zst": flipped, "head.zst": z[:5]} {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, b, 0o644); err != nil {
			t.Fatal(err)
		}
		i, err := Open(t.Context(), p, Options{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got, err := all(t, i); !errors.Is(err, diskwrite.ErrSource) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
		i.Close()
	}
	pipe := filepath.Join(dir, "pipe") // that nobody writes to: it must not be waited for
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{filepath.Join(dir, "absent"), dir, pipe, "/dev/zero"} {
		if _, err := Open(t.Context(), p, Options{}); err == nil {
			t.Errorf("%s was opened", p)
		}
	}
}

// server serves b with the faults that a test asks for.
type server struct {
	b        []byte
	ranges   bool
	etag     string
	length   bool
	breakAt  int64 // each answer ends after so many bytes; 0 never
	statuses []int // of the first answers
	after    func(n int64, s *server)
	requests atomic.Int64
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/disk.img" {
		http.NotFound(w, r)
		return
	}
	n := s.requests.Add(1)
	if s.after != nil {
		s.after(n, s)
	}
	if int(n) <= len(s.statuses) && s.statuses[n-1] != 200 {
		w.WriteHeader(s.statuses[n-1])
		return
	}
	from := int64(0)
	if s.etag != "" {
		w.Header().Set("ETag", s.etag)
	}
	if h := r.Header.Get("Range"); h != "" && s.ranges && (r.Header.Get("If-Range") == "" || r.Header.Get("If-Range") == s.etag) {
		fmt.Sscanf(h, "bytes=%d-", &from)
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(s.b)-1, len(s.b)))
	}
	if s.length {
		w.Header().Set("Content-Length", fmt.Sprint(int64(len(s.b))-from))
	}
	if from > 0 {
		w.WriteHeader(http.StatusPartialContent)
	}
	b := s.b[from:]
	if s.breakAt > 0 && int64(len(b)) > s.breakAt {
		w.Write(b[:s.breakAt])
		panic(http.ErrAbortHandler)
	}
	w.Write(b)
}

func TestHTTP(t *testing.T) {
	b := content()
	other := bytes.Clone(b)
	other[100] ^= 1
	for name, c := range map[string]struct {
		s    *server
		want string // of the error; empty for none
		asks int64
	}{
		"plain":                  {&server{b: b, length: true}, "", 1},
		"without a length":       {&server{b: b}, "", 1},
		"zstd":                   {&server{b: compress(t, b), length: true, ranges: true, breakAt: 300_000}, "", 4},
		"breaks, with ranges":    {&server{b: b, length: true, ranges: true, etag: `"1"`, breakAt: 4 << 20}, "", 3},
		"breaks, without ranges": {&server{b: b, length: true, etag: `"1"`, after: func(n int64, s *server) { s.breakAt = n * 4 << 20 }}, "", 3},
		"breaks, weak tag":       {&server{b: b, length: true, ranges: true, etag: `W/"1"`, breakAt: 4 << 20}, "", 3},
		"503 at first":           {&server{b: b, length: true, statuses: []int{503, 429}}, "", 3},
		"404":                    {&server{b: b, statuses: []int{404}}, "404", 1},
		"always 500":             {&server{b: b, statuses: []int{500, 500, 500, 500, 500, 500, 500}}, "6 tries in a row", 6},
		"changed, with ranges":   {&server{b: b, length: true, ranges: true, etag: `"1"`, breakAt: 4 << 20, after: func(n int64, s *server) { s.etag = fmt.Sprintf("\"%d\"", n) }}, "has changed", 2},
		"changed, no tag, no ranges": {&server{b: b, length: true, breakAt: 4 << 20, after: func(n int64, s *server) {
			if n > 1 {
				s.b, s.breakAt = other, 0
			}
		}}, "has changed", 2},
		"became shorter": {&server{b: b, length: true, ranges: true, breakAt: 4 << 20, after: func(n int64, s *server) {
			if n > 1 {
				s.b = s.b[:8<<20]
			}
		}}, "has changed", 2},
		"breaks for good": {&server{b: b, length: true, ranges: true, after: func(n int64, s *server) {
			if s.breakAt = 4 << 20; n > 1 {
				s.statuses = []int{200, 503, 503, 503, 503, 503, 503, 503}
			}
		}}, "tries in a row", 6},
	} {
		t.Run(name, func(t *testing.T) {
			s := c.s
			srv := httptest.NewServer(s)
			defer srv.Close()
			got, err := fetch(t, srv.URL+"/disk.img")
			if c.want == "" && (err != nil || !bytes.Equal(got, b)) || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
			if n := s.requests.Load(); n != c.asks {
				t.Errorf("%d requests, want %d", n, c.asks)
			}
		})
	}
}

// fetch reads a URL as Open does, with short pauses.
func fetch(t *testing.T, url string) ([]byte, error) {
	t.Helper()
	i, err := openURL(t.Context(), url, Options{Warn: t.Logf}, 1)
	if err != nil {
		return nil, err
	}
	defer i.Close()
	return all(t, i)
}

func TestHTTPVouches(t *testing.T) {
	b := content()
	srv := httptest.NewServer(http.FileServer(http.Dir(build(t, b))))
	defer srv.Close()
	for _, name := range []string{"disk.img", "disk.img.zst"} {
		i, err := Open(t.Context(), srv.URL+"/"+name+"?token=1", Options{})
		if err != nil {
			t.Fatal(err)
		}
		got, err := all(t, i)
		if err != nil || !bytes.Equal(got, b) || i.Vouched.By != "release.json" || i.Vouched.Map == nil {
			t.Errorf("%s: %d bytes, vouched by %q, %v", name, len(got), i.Vouched.By, err)
		}
		i.Close()
	}
}

func TestHTTPIsInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Write([]byte("some bytes"))
		w.(http.Flusher).Flush()
		cancel()
		<-r.Context().Done()
	}))
	defer srv.Close()
	i, err := Open(ctx, srv.URL+"/disk.img", Options{})
	if err == nil {
		_, err = i.Next(ctx, make([]byte, diskwrite.Piece))
		i.Close()
	}
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func FuzzContentRange(f *testing.F) {
	f.Add("bytes 0-1/2")
	f.Add("bytes 5-9/*")
	f.Fuzz(func(t *testing.T, s string) {
		if from, total, err := parseContentRange(s); err == nil && (from < 0 || total >= 0 && from >= total) {
			t.Errorf("%q: from %d of %d", s, from, total)
		}
	})
}

func FuzzVouch(f *testing.F) {
	f.Add([]byte(`{"files":[{"name":"disk.img","sha256":"00"}]}`), []byte("<bmap/>"))
	f.Fuzz(func(t *testing.T, list, m []byte) {
		v, err := vouch("disk.img", func(file string, _ int64) ([]byte, error) {
			if file == releaseFile {
				return list, nil
			}
			return m, nil
		})
		if err == nil && v.Digest != "" && len(v.Digest) != 64 {
			t.Errorf("%+v", v)
		}
	})
}
