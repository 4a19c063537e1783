package builder

import (
	"strings"
	"testing"
)

const goodLock = `kind: node-lock
suite: trixie
kernel: linux-image
go: go1.26.8
modules:
  go.sum: sha256:1
debs:
  amd64:
    - package: linux-image-6.12.1-amd64
      version: 1:6.12.1-1
      arch: amd64
      sha256: 390ecdcef9bbb753f51bb6d8f696bdae2f1dbedde7239c49ccb2512f137a8933
      size: 5
      for: kernel
    - package: runc
      version: 1.1.15
      arch: amd64
      sha256: 390ecdcef9bbb753f51bb6d8f696bdae2f1dbedde7239c49ccb2512f137a8933
      size: 5
      for: program
`

func TestLockRefuses(t *testing.T) {
	for _, c := range []struct{ name, old, new, want string }{
		{"unknown key", "suite:", "suit:", "unknown field"},
		{"duplicate key", "go: go1.26.8", "suite: sid", "already defined"},
		{"other kind", "node-lock", "lock", "node-lock"},
		{"no sha256", "sha256: 390ecdce", "sha256: zz0ecdce", "not pinned"},
		{"short sha256", "7239c49ccb2512f137a8933", "", "not pinned"},
		{"no version", "version: 1.1.15", "version: ''", "not pinned"},
		{"no size", "size: 5", "size: 0", "not pinned"},
		{"a path as name", "package: runc", "package: ../runc", "no package"},
		{"unknown use", "for: program", "for: fun", "unknown"},
	} {
		t.Run(c.name, func(t *testing.T) {
			raw := strings.Replace(goodLock, c.old, c.new, 1)
			if raw == goodLock {
				t.Fatal("nothing was changed")
			}
			_, err := parseLock("node.lock", []byte(raw))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q in it", err, c.want)
			}
		})
	}
}

func TestLockMatches(t *testing.T) {
	base := Recipe{Debian: Debian{Suite: "trixie", Kernel: "linux-image"}, Programs: []Program{{"runc"}}}
	for _, c := range []struct {
		name   string
		arch   string
		change func(*Recipe)
		want   string
	}{
		{"same", "amd64", func(*Recipe) {}, ""},
		{"other suite", "amd64", func(r *Recipe) { r.Debian.Suite = "sid" }, "suite"},
		{"other kernel", "amd64", func(r *Recipe) { r.Debian.Kernel = "linux-image-cloud" }, "kernel"},
		{"one program more", "amd64", func(r *Recipe) { r.Programs = []Program{{"runc"}, {"crun"}} }, "crun"},
		{"firmware", "amd64", func(r *Recipe) { r.Debian.Firmware = []string{"firmware-realtek"} }, "firmware-realtek"},
		{"other architecture", "arm64", func(*Recipe) {}, "arm64"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, err := parseLock("node.lock", []byte(goodLock))
			if err != nil {
				t.Fatal(err)
			}
			r := base
			c.change(&r)
			err = l.matches(&r, c.arch)
			switch {
			case c.want == "" && err != nil:
				t.Error(err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("got %v, want %q in it", err, c.want)
			}
		})
	}
}

func TestLockToolchain(t *testing.T) {
	l := &Lock{Go: "go1.26.8", Modules: map[string]string{"go.sum": "sha256:1", "x/go.sum": "sha256:2"}}
	for _, c := range []struct {
		name, version string
		sums          map[string]string
		want          string
	}{
		{"same", "go1.26.8", map[string]string{"go.sum": "sha256:1"}, ""},
		{"other go", "go1.27.0", map[string]string{"go.sum": "sha256:1"}, "go1.27.0"},
		{"changed modules", "go1.26.8", map[string]string{"go.sum": "sha256:3"}, "go.sum has changed"},
		{"new module", "go1.26.8", map[string]string{"y/go.sum": "sha256:3"}, "does not know y/go.sum"},
	} {
		err := l.checkToolchain(c.version, c.sums, "relock")
		if (err == nil) != (c.want == "") || (err != nil && !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

func TestFileName(t *testing.T) {
	d := LockedDeb{Package: "x", Version: "1:2.3-4", Arch: "all"}
	if got := d.FileName(); got != "x_1%3a2.3-4_all.deb" {
		t.Error(got)
	}
}

func FuzzLock(f *testing.F) {
	f.Add([]byte(goodLock))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := parseLock("x.lock", b)
		if err != nil {
			return
		}
		if _, err := l.Render(); err != nil {
			t.Error(err)
		}
		for _, debs := range l.Debs {
			for _, d := range debs {
				if strings.Contains(d.FileName(), "/") {
					t.Errorf("accepted %q", d.FileName())
				}
			}
		}
	})
}
