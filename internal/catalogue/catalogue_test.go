package catalogue

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	"pgregory.net/rapid"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/artifact"
	"kingpost/internal/mesh/verbs"
)

// testStore is a real registry in this process, and a client of it.
func testStore(t testing.TB) (*artifact.Client, func()) {
	t.Helper()
	srv := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(srv.Close)
	return &artifact.Client{HTTP: srv.Client(), Base: srv.URL}, srv.Close
}

func pushModule(t testing.TB, c *artifact.Client, name, version string) string {
	t.Helper()
	text := `{"module":"` + name + `","version":"` + version + `","resources":[]}`
	a, err := artifact.NewModule(name, artifact.Origin{Version: version}, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Push(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	return string(a.Desc.Digest)
}

func pushBundle(t testing.TB, c *artifact.Client, name, version, arch string) string {
	t.Helper()
	content := name + version + arch
	var layer strings.Builder
	l, err := artifact.PackLayer(t.Context(), &layer, []artifact.File{{Path: "bin/" + name, Mode: 0o755, Size: int64(len(content)), Open: func() (io.ReadCloser, error) {
		return io.NopCloser(strings.NewReader(content)), nil
	}}}, time.Unix(0, 0))
	if err != nil {
		t.Fatal(err)
	}
	a, err := artifact.NewBundle(name, artifact.Origin{Version: version, Arch: arch, Created: time.Unix(0, 0)}, l, func(context.Context) (io.ReadCloser, error) {
		return io.NopCloser(strings.NewReader(layer.String())), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Push(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	return string(a.Desc.Digest)
}

// clock is a time that a test moves.
type clock struct{ at time.Time }

func (c *clock) now() time.Time { return c.at }

func TestCatalogue(t *testing.T) {
	store, closeStore := testStore(t)
	clk := &clock{time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)}
	dir := t.TempDir()
	c, err := Open(dir, store, clk.now)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	if res, err := c.List(ctx, &verbs.ListParams{}); err != nil || len(res.Artifacts) != 0 {
		t.Fatalf("an empty store: %+v, %v", res, err)
	}
	pushBundle(t, store, "tool", "0.9.0", "amd64")
	pushBundle(t, store, "tool", "0.10.0-rc-1", "amd64")
	newest := pushBundle(t, store, "tool", "0.10.0", "amd64")
	arm := pushBundle(t, store, "tool", "0.11.0", "arm64")
	mod := pushModule(t, store, "web", "1.2")
	clk.at = clk.at.Add(time.Minute)

	res, err := c.List(ctx, &verbs.ListParams{})
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, a := range res.Artifacts {
		if a.Size < 100 {
			t.Errorf("%s has %d bytes", a.Ref, a.Size)
		}
		lines = append(lines, a.String()+" "+a.Version+" "+a.Arch)
	}
	want := "bundle/tool 0.10.0 amd64\nbundle/tool 0.10.0-rc-1 amd64\nbundle/tool 0.11.0 arm64\nbundle/tool 0.9.0 amd64\nmodule/web 1.2 "
	if got := strings.Join(lines, "\n"); got != want {
		t.Fatalf("listed:\n%s\nwant:\n%s", got, want)
	}
	if res, err := c.List(ctx, &verbs.ListParams{Kind: mesh.ArtifactModule}); err != nil || len(res.Artifacts) != 1 {
		t.Fatalf("modules: %+v, %v", res, err)
	}

	for name, tt := range map[string]struct {
		p    verbs.ResolveParams
		want string // a digest, or a code
	}{
		"highest":       {verbs.ResolveParams{Kind: "bundle", Name: "tool", Arch: "amd64"}, newest},
		"other arch":    {verbs.ResolveParams{Kind: "bundle", Name: "tool", Arch: "arm64"}, arm},
		"module":        {verbs.ResolveParams{Kind: "module", Name: "web"}, mod},
		"version":       {verbs.ResolveParams{Kind: "bundle", Name: "tool", Arch: "amd64", Version: "0.10.0"}, newest},
		"no such arch":  {verbs.ResolveParams{Kind: "bundle", Name: "tool", Arch: "riscv64"}, mesh.CodeNotFound},
		"no such name":  {verbs.ResolveParams{Kind: "bundle", Name: "toll", Arch: "amd64"}, mesh.CodeNotFound},
		"no such image": {verbs.ResolveParams{Kind: "image", Name: "tool", Arch: "amd64"}, mesh.CodeNotFound},
		"no such one":   {verbs.ResolveParams{Kind: "bundle", Name: "tool", Arch: "amd64", Version: "7"}, mesh.CodeNotFound},
	} {
		res, err := c.Resolve(ctx, &tt.p)
		var ce *mesh.CallError
		if errors.As(err, &ce) {
			if ce.Code != tt.want {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err != nil || res.Digest != tt.want {
			t.Errorf("%s: %+v, %v", name, res, err)
		}
	}

	show, err := c.Show(ctx, &verbs.ShowParams{Kind: "module", Name: "web", Tag: "1.2"})
	if err != nil || show.Digest != mod || show.Manifest == nil || show.Manifest.Module != "web" {
		t.Fatalf("show: %+v, %v", show, err)
	}
	if show, err := c.Show(ctx, &verbs.ShowParams{Kind: "bundle", Name: "tool", Digest: newest}); err != nil || len(show.Layers) != 1 {
		t.Fatalf("show by digest: %+v, %v", show, err)
	}
	if _, err := c.Show(ctx, &verbs.ShowParams{Kind: "module", Name: "web", Tag: "9"}); err == nil {
		t.Fatal("a tag that is not there is shown")
	}

	// Without the store the index is what there was; resolving says no.
	closeStore()
	clk.at = clk.at.Add(time.Minute)
	again, err := Open(dir, store, clk.now)
	if err != nil {
		t.Fatal(err)
	}
	old, err := again.List(ctx, &verbs.ListParams{})
	if err != nil || len(old.Artifacts) != 5 || old.Stale == "" {
		t.Fatalf("without the store: %+v, %v", old, err)
	}
	var ce *mesh.CallError
	if _, err := again.Resolve(ctx, &verbs.ResolveParams{Kind: "module", Name: "web"}); !errors.As(err, &ce) || ce.Code != mesh.CodeUnavailable {
		t.Fatalf("resolved without the store: %v", err)
	}
}

func TestDamagedIndexIsMadeAnew(t *testing.T) {
	store, _ := testStore(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, indexFile), []byte("{half"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Open(dir, store, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	pushModule(t, store, "web", "1")
	if res, err := c.List(t.Context(), &verbs.ListParams{}); err != nil || len(res.Artifacts) != 1 {
		t.Fatalf("%+v, %v", res, err)
	}
	data, err := os.ReadFile(filepath.Join(dir, indexFile))
	if err != nil || !json.Valid(data) {
		t.Fatalf("%q, %v", data, err)
	}
}

// vanishing loses every artifact between listing and reading.
type vanishing struct{ Store }

func (vanishing) Manifest(context.Context, mesh.Ref, string) ([]byte, error) {
	return nil, fs.ErrNotExist
}

func TestWhatGoesWhileReading(t *testing.T) {
	store, _ := testStore(t)
	pushModule(t, store, "web", "1")
	c, err := Open(t.TempDir(), vanishing{store}, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	if res, err := c.List(t.Context(), &verbs.ListParams{}); err != nil || len(res.Artifacts) != 0 {
		t.Fatalf("%+v, %v", res, err)
	}
}

func TestCompareVersions(t *testing.T) {
	for _, order := range [][]string{
		{"1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta", "1.0.0-beta.2", "1.0.0-beta.11", "1.0.0-rc.1", "1.0.0"}, // semver 2.0.0, section 11
		{"0.9", "0.10", "1", "1.0.1", "v2", "10"},
		{"1.2.3", "1.2.4", "1.2.10", "1.2.10.1"},
	} {
		for i := range order {
			for j := range order {
				got := compareVersions(order[i], order[j])
				if want := i - j; got < 0 != (want < 0) || got > 0 != (want > 0) {
					t.Errorf("%s and %s compare as %d", order[i], order[j], got)
				}
			}
		}
	}
}

// TestVersionsAreOrdered looks for versions that no sorting could put in order.
func TestVersionsAreOrdered(t *testing.T) {
	gen := rapid.StringMatching(`v?[0-9]{1,3}(\.[0-9a-b]{0,3}){0,3}(-[0-9a-b.]{0,5})?(\+[0-9a-b]{0,2})?`)
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := gen.Draw(t, "a"), gen.Draw(t, "b"), gen.Draw(t, "c")
		if compareVersions(a, b) != -compareVersions(b, a) {
			t.Fatalf("%q and %q", a, b)
		}
		if compareVersions(a, b) <= 0 && compareVersions(b, c) <= 0 && compareVersions(a, c) > 0 {
			t.Fatalf("%q <= %q <= %q, but not the first and last", a, b, c)
		}
	})
}
