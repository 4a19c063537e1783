package successor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"

	"kingpost/internal/mesh"
)

func digest(n int) string { return fmt.Sprintf("sha256:%064x", n) }

// bench is a node around a Successor: a launcher that answers as it is told, and a store.
type bench struct {
	*Successor
	mu       sync.Mutex
	decl     *mesh.Declaration
	changed  chan struct{}
	launcher mesh.LauncherInfo
	alone    bool // no launcher
	store    map[string]*mesh.BundleConfig
	fetches  []string
	said     []string
	pokes    int
}

func bundle(arch, path string, mode uint32) *mesh.BundleConfig {
	return &mesh.BundleConfig{Architecture: arch, Files: []mesh.BundleFile{{Path: path, Mode: mode, SHA256: strings.Repeat("a", 64)}}}
}

func newBench(t *testing.T, running string) *bench {
	log := logrus.New()
	log.SetOutput(io.Discard)
	b := &bench{changed: make(chan struct{}), store: map[string]*mesh.BundleConfig{}}
	b.launcher = mesh.LauncherInfo{Current: running, Good: running, Proven: true}
	b.Successor = New(Config{
		Digest: running, PID: 7, Arch: "amd64", Log: log,
		Launcher: func() (mesh.LauncherInfo, bool) {
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.launcher, !b.alone
		},
		Declaration: func() (mesh.Declaration, bool) {
			b.mu.Lock()
			defer b.mu.Unlock()
			if b.decl == nil {
				return mesh.Declaration{}, false
			}
			return *b.decl, true
		},
		Changed: func() <-chan struct{} { b.mu.Lock(); defer b.mu.Unlock(); return b.changed },
		Fetch: func(_ context.Context, name, digest string, _ mesh.Source) (string, *mesh.BundleConfig, error) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.fetches = append(b.fetches, digest)
			if c := b.store[digest]; c != nil && name == mesh.HostBundle {
				return "/bundles/" + digest[7:] + "/files", c, nil
			}
			return "", nil, errors.New("no store here")
		},
		Notify: func(lines ...string) error {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.said = append(b.said, lines...)
			return nil
		},
		Poke: func() { b.mu.Lock(); defer b.mu.Unlock(); b.pokes++ },
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); b.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return b
}

// declare declares a host, "" for none.
func (b *bench) declare(host string) *mesh.Declared {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.decl = &mesh.Declaration{Resources: []mesh.Declared{{Module: "other", Resource: mesh.Resource{ID: "server"}}}}
	if host != "" {
		b.decl.Resources = append(b.decl.Resources, mesh.Declared{Module: mesh.HostModule, Resource: mesh.Resource{ID: mesh.HostResource, Digest: host}})
	}
	close(b.changed)
	b.changed = make(chan struct{})
	return b.decl.Host()
}

func (b *bench) told(change func(*mesh.LauncherInfo)) {
	b.mu.Lock()
	change(&b.launcher)
	b.mu.Unlock()
}

// after lets d pass and returns what the launcher was told until then.
func (b *bench) after(d time.Duration) []string {
	time.Sleep(d)
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.said)
}

func (b *bench) is(t *testing.T, d *mesh.Declared, state, reason string, settled bool) {
	t.Helper()
	v, s := b.Observe(d)
	if v.State != state || !strings.Contains(v.Reason, reason) || s != settled || v.Key != "host/server" || v.PID != 7 {
		t.Errorf("it is %s (%s), settled %v; wanted %s (%s), %v", v.State, v.Reason, s, state, reason, settled)
	}
}

func line(d string) string {
	return "KINGPOST_SUCCESSOR=" + d + " " + strings.Repeat("a", 64) + " /bundles/" + d[7:] + "/files/bin/mesh-host"
}

func in(t *testing.T, running string, f func(t *testing.T, b *bench)) {
	synctest.Test(t, func(t *testing.T) { f(t, newBench(t, running)) })
}

func TestNothingDeclaredChangesNothing(t *testing.T) {
	in(t, digest(1), func(t *testing.T, b *bench) {
		if said := b.after(time.Hour); len(said) != 0 {
			t.Errorf("said %q", said)
		}
		b.is(t, nil, "waiting", "", false) // a declaration that comes now is not settled before it was looked at
	})
}

func TestSuccessorIsFetchedAndHandedOver(t *testing.T) {
	in(t, mesh.HostBakedIn, func(t *testing.T, b *bench) {
		d := b.declare(digest(1))
		b.is(t, d, "waiting", "just come", false)
		if said := b.after(time.Hour); len(said) != 0 {
			t.Fatalf("asked for what it does not have: %q", said)
		}
		b.is(t, d, "fetching", "no store here", false)
		if n := len(b.fetches); n < 100 || n > 240 {
			t.Errorf("%d tries in an hour", n)
		}
		b.mu.Lock()
		b.store[digest(1)] = bundle("amd64", "bin/mesh-host", 0o755)
		b.mu.Unlock()
		said := b.after(time.Minute)
		if len(said) == 0 || said[0] != line(digest(1)) {
			t.Fatalf("said %q", said)
		}
		b.is(t, d, "starting", "", false)
		// A launcher that does not answer is asked again, but not all the time.
		if said := b.after(10 * time.Minute); len(said) < 15 || len(said) > 25 {
			t.Errorf("asked %d times in ten minutes", len(said))
		}
	})
}

func TestDeclaredHostArrives(t *testing.T) {
	in(t, digest(1), func(t *testing.T, b *bench) {
		b.told(func(l *mesh.LauncherInfo) { l.Proven, l.ProveSeconds = false, 90 })
		b.store[digest(1)] = bundle("amd64", "bin/mesh-host", 0o755)
		d := b.declare(digest(1))
		b.after(time.Minute)
		b.is(t, d, "starting", "well for 90 s", false)
		b.told(func(l *mesh.LauncherInfo) { l.Proven = true })
		if said := b.after(time.Minute); len(said) != 0 {
			t.Errorf("said %q", said)
		}
		b.is(t, d, "healthy", "", true)
		if len(b.fetches) != 1 {
			t.Errorf("its own files were checked %d times", len(b.fetches))
		}
		// No longer declared: back to the release's own.
		b.declare("")
		if said := b.after(time.Second); len(said) != 1 || said[0] != "KINGPOST_SUCCESSOR=baked-in" {
			t.Errorf("said %q", said)
		}
	})
}

func TestQuarantineIsShownAndCleared(t *testing.T) {
	in(t, mesh.HostBakedIn, func(t *testing.T, b *bench) {
		b.store[digest(1)] = bundle("amd64", "bin/mesh-host", 0o755)
		b.told(func(l *mesh.LauncherInfo) {
			l.Hosts = []mesh.LauncherHost{{Digest: digest(1), Failures: 3, Quarantined: true, Last: "exit status 2"}}
		})
		d := b.declare(digest(1))
		if said := b.after(time.Hour); len(said) != 0 || len(b.fetches) != 0 {
			t.Errorf("said %q, fetched %q", said, b.fetches)
		}
		b.is(t, d, "held", "failed 3 times in a row, the last time because exit status 2", false)
		if err := b.Clear(); err != nil {
			t.Fatal(err)
		}
		b.told(func(l *mesh.LauncherInfo) { l.Hosts[0].Quarantined = false })
		said := b.after(10 * time.Second)
		if want := []string{"KINGPOST_CLEAR=" + digest(1), line(digest(1))}; !slices.Equal(said, want) {
			t.Errorf("said %q, want %q", said, want)
		}
	})
}

func TestRefusalIsShownAndTriedAgain(t *testing.T) {
	in(t, mesh.HostBakedIn, func(t *testing.T, b *bench) {
		b.store[digest(1)] = bundle("amd64", "bin/mesh-host", 0o755)
		d := b.declare(digest(1))
		b.after(time.Second)
		b.told(func(l *mesh.LauncherInfo) { l.Answered, l.Refused, l.RefusedReason = 1, digest(1), "it is damaged" })
		b.after(600 * time.Millisecond)
		b.is(t, d, "backoff", "it is damaged", false)
		b.after(5 * time.Second)
		if len(b.fetches) < 2 || len(b.said) < 2 {
			t.Errorf("fetched %d times, asked %d times", len(b.fetches), len(b.said))
		}
	})
}

func TestBundleThatIsNoHost(t *testing.T) {
	for name, tt := range map[string]struct {
		bundle *mesh.BundleConfig
		want   string
	}{
		"architecture":   {bundle("arm64", "bin/mesh-host", 0o755), "it is for arm64, this node is amd64"},
		"no program":     {bundle("amd64", "bin/web", 0o755), "no program bin/mesh-host"},
		"not executable": {bundle("amd64", "bin/mesh-host", 0o644), "not executable"},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, mesh.HostBakedIn, func(t *testing.T, b *bench) {
				b.store[digest(1)] = tt.bundle
				d := b.declare(digest(1))
				if said := b.after(time.Hour); len(said) != 0 || len(b.fetches) != 1 {
					t.Errorf("said %q, fetched %d times", said, len(b.fetches))
				}
				b.is(t, d, "failed", tt.want, false)
				b.store[digest(2)] = bundle("amd64", "bin/mesh-host", 0o755)
				b.declare(digest(2))
				if said := b.after(time.Second); !slices.Equal(said, []string{line(digest(2))}) {
					t.Errorf("said %q", said)
				}
			})
		})
	}
}

func TestKeep(t *testing.T) {
	in(t, digest(3), func(t *testing.T, b *bench) {
		b.told(func(l *mesh.LauncherInfo) { l.Current, l.Good, l.Previous = digest(3), digest(2), digest(1) })
		for i := 1; i <= 3; i++ {
			if !slices.Contains(b.Keep(), digest(i)) {
				t.Errorf("%s is not kept", digest(i))
			}
		}
	})
}

// A host says that it is alive only as long as it answers itself.
func TestWatchdog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := logrus.New()
		log.SetOutput(io.Discard)
		ctx, cancel := context.WithCancel(t.Context())
		var mu sync.Mutex
		hangs, fed := false, 0
		done := make(chan error)
		go func() {
			done <- Watchdog(ctx, time.Minute, func(ctx context.Context) error {
				mu.Lock()
				h := hangs
				mu.Unlock()
				if h {
					<-ctx.Done()
				}
				return ctx.Err()
			}, func(...string) error { mu.Lock(); fed++; mu.Unlock(); return nil }, log)
		}()
		time.Sleep(10*time.Minute + time.Second)
		mu.Lock()
		if fed != 41 {
			t.Errorf("fed %d times in ten minutes", fed)
		}
		hangs, fed = true, 0
		mu.Unlock()
		time.Sleep(10 * time.Minute)
		mu.Lock()
		if fed != 0 {
			t.Errorf("fed %d times while it hangs", fed)
		}
		mu.Unlock()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
