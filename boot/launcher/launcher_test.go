package launcher

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	"pgregory.net/rapid"

	"kingpost/internal/mesh"
)

var epoch = time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)

func digest(n int) Host {
	hex := fmt.Sprintf("%064x", n)
	return Host{Digest: "sha256:" + hex, SHA256: hex, Path: fmt.Sprintf("/var/lib/kingpost/bundles/%d/bin/mesh-host", n)}
}

// bubbleClock is the real clock, which a synctest bubble fakes: no time passes while anybody has something to do.
type bubbleClock struct{}

func (bubbleClock) Now() time.Time                         { return time.Now() }
func (bubbleClock) After(d time.Duration) <-chan time.Time { return time.After(d) }

// fakeHost is a host that behaves in one way.
type fakeHost struct {
	ready, fed, done chan struct{}
	reason           string
	orderly          bool
	deaf             atomic.Bool // a signal does not end it
	killed           chan struct{}
	once, end        sync.Once
}

func newFake() *fakeHost {
	return &fakeHost{ready: make(chan struct{}), fed: make(chan struct{}, 1), done: make(chan struct{}), killed: make(chan struct{})}
}

func (f *fakeHost) Ready() <-chan struct{} { return f.ready }
func (f *fakeHost) Fed() <-chan struct{}   { return f.fed }
func (f *fakeHost) Done() <-chan struct{}  { return f.done }
func (f *fakeHost) Reason() string         { return f.reason }
func (f *fakeHost) Orderly() bool          { return f.orderly }
func (f *fakeHost) Kill() {
	f.once.Do(func() { close(f.killed) })
	if !f.deaf.Load() {
		f.exit()
	}
}
func (f *fakeHost) exit() { f.end.Do(func() { close(f.done) }) }

// behave is a kind of host: it gets the instance and acts on it until that has ended.
type behave func(f *fakeHost)

func crashing(f *fakeHost) { f.reason = "exit status 2: panic: no"; f.exit() }

func quits(f *fakeHost) { f.orderly = true; f.exit() }

func hangsBeforeReady(*fakeHost) {}

func hangsAfterReady(f *fakeHost) { close(f.ready) }

func hangsAfterAWhile(f *fakeHost) {
	close(f.ready)
	feed(f, DefaultLimits.HealthyAfter-DefaultLimits.WatchdogWithin-time.Second)
}

func crashesBeforeHealthy(f *fakeHost) {
	close(f.ready)
	feed(f, DefaultLimits.HealthyAfter-time.Second)
	f.reason = "exit status 1"
	f.exit()
}

func runs(f *fakeHost) {
	close(f.ready)
	feed(f, 1000*time.Hour)
}

// feed says that it is alive for d, or until it is ended.
func feed(f *fakeHost, d time.Duration) {
	over := time.After(d)
	for {
		select {
		case <-over:
			return
		case <-f.killed:
			return
		case <-f.done:
			return
		case <-time.After(DefaultLimits.WatchdogWithin / 4):
		}
		select {
		case f.fed <- struct{}{}:
		default:
		}
	}
}

type bench struct {
	*Launcher
	mu      sync.Mutex
	started []string // digests, in order
	current *fakeHost
	halted  []string
	lines   []string
	saved   File // what is on the disk
	info    mesh.LauncherInfo
	damaged map[string]bool
	beats   int
	cancel  context.CancelFunc
	done    chan struct{}
	wait    sync.WaitGroup
}

// newBench starts a launcher in a bubble; kinds says how each host behaves, by digest.
func newBench(t *testing.T, f *File, kinds map[string]behave, change ...func(*Launcher)) *bench {
	log := logrus.New()
	log.SetOutput(io.Discard)
	b := &bench{damaged: map[string]bool{}, done: make(chan struct{})}
	s := f.For("r", DefaultLimits)
	l := Launcher{
		Baked: Host{Digest: BakedIn, Path: "/usr/bin/mesh-host"}, Limits: DefaultLimits, State: s,
		Save: func() error {
			raw, err := json.Marshal(f)
			if err != nil {
				return err
			}
			p, err := ParseFile(raw)
			if err == nil {
				b.saved = *p
			}
			return err
		},
		Verify: func(h Host) error {
			b.mu.Lock()
			defer b.mu.Unlock()
			if b.damaged[h.Digest] {
				return fmt.Errorf("%w: cut", ErrDamaged)
			}
			return nil
		},
		Start: func(h Host) (Instance, error) {
			kind := kinds[h.Digest]
			if kind == nil {
				return nil, errors.New("no such file")
			}
			in := newFake()
			b.mu.Lock()
			b.started = append(b.started, h.Digest)
			b.current = in
			b.mu.Unlock()
			b.wait.Go(func() { kind(in) })
			return in, nil
		},
		Clock: bubbleClock{}, Random: func() float64 { return 0 }, Log: log,
		Report:   func(l string) { b.lines = append(b.lines, l) },
		OnHalt:   func(r string) { b.halted = append(b.halted, r) },
		OnChange: func(i mesh.LauncherInfo) { b.mu.Lock(); b.info = i; b.mu.Unlock() },
		Beat:     func() { b.mu.Lock(); b.beats++; b.mu.Unlock() },
	}
	for _, c := range change {
		c(&l)
	}
	b.Launcher = New(l)
	ctx, cancel := context.WithCancel(t.Context())
	b.cancel = cancel
	go func() { b.Run(ctx); close(b.done) }()
	return b
}

// damage says whether a host's program on disk is damaged.
func (b *bench) damage(digest string, is bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.damaged[digest] = is
}

// stop ends the launcher and what it has started.
func (b *bench) stop() {
	b.cancel()
	<-b.done
	b.mu.Lock()
	if b.current != nil {
		b.current.deaf.Store(false)
		b.current.Kill()
	}
	b.mu.Unlock()
	b.wait.Wait()
}

// starts is what was started until now, after d more.
func (b *bench) starts(d time.Duration) []string {
	time.Sleep(d)
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.started)
}

func (b *bench) offer(t *testing.T, h Host) {
	t.Helper()
	if err := b.Offer(t.Context(), h); err != nil {
		t.Fatalf("offer %s: %v", h.Digest, err)
	}
}

func times(digest string, n int) []string { return slices.Repeat([]string{digest}, n) }

// Case 1 of the issue: a host that fails in whichever way is given up, after as many tries as configured and within the
// time that the limits promise, and the last good one runs.
func TestHostThatNeverWorksIsGivenUp(t *testing.T) {
	for name, kind := range map[string]behave{
		"crashes at start":              crashing,
		"exits 0 at once, in all order": quits,
		"hangs before it is ready":      hangsBeforeReady,
		"hangs as soon as it is ready":  hangsAfterReady,
		"hangs just before healthy":     hangsAfterAWhile,
		"crashes just before healthy":   crashesBeforeHealthy,
		"cannot be executed":            nil,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bad := digest(1)
				f := &File{}
				b := newBench(t, f, map[string]behave{BakedIn: runs, bad.Digest: kind})
				defer b.stop()
				b.starts(time.Hour)
				b.offer(t, bad)
				got := b.starts(DefaultLimits.Reach())
				want := append(times(BakedIn, 1), times(bad.Digest, DefaultLimits.MaxTrials)...)
				if kind == nil {
					want = want[:1]
				}
				if want = append(want, BakedIn); !slices.Equal(got, want) {
					t.Fatalf("started %v, want %v\n%s", got, want, strings.Join(b.lines, "\n"))
				}
				if r := b.info.Find(bad.Digest); r == nil || !r.Quarantined || r.Last == "" || b.info.Current != BakedIn {
					t.Errorf("others are told %+v", b.info)
				}
				// A host that has failed is not tried again by its digest, whoever asks, until it is cleared.
				if err := b.Offer(t.Context(), bad); err == nil || !strings.Contains(err.Error(), "quarantine") {
					t.Errorf("offered again: %v", err)
				}
				if b.info.Refused != bad.Digest {
					t.Errorf("the refusal is not told: %+v", b.info)
				}
				if err := b.Clear(t.Context(), bad.Digest); err != nil {
					t.Fatal(err)
				}
				if r := b.info.Find(bad.Digest); r.Quarantined || b.info.Refused != "" {
					t.Errorf("cleared, others are told %+v", b.info)
				}
				b.offer(t, bad)
			})
		})
	}
}

// The same for the host of the release, where the end is a halt.
func TestBakedInHostThatNeverWorksHalts(t *testing.T) {
	for name, kind := range map[string]behave{
		"crashes": crashing, "quits": quits, "hangs before ready": hangsBeforeReady, "hangs after ready": hangsAfterReady, "crashes late": crashesBeforeHealthy,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &File{}
				b := newBench(t, f, map[string]behave{BakedIn: kind})
				got := b.starts(DefaultLimits.Reach())
				if len(got) != DefaultLimits.MaxFailures || len(b.halted) != 1 || b.info.Halted == "" {
					t.Fatalf("%d starts, halted %q, told %+v", len(got), b.halted, b.info)
				}
				if got := b.starts(24 * time.Hour); len(got) != DefaultLimits.MaxFailures {
					t.Errorf("%d starts a day later", len(got))
				}
				if n := b.saved.For("r", DefaultLimits).failures(BakedIn); n != DefaultLimits.MaxFailures {
					t.Errorf("%d failures on the disk", n)
				}
				b.stop()
				// The next boot gives it one more chance, not five.
				b = newBench(t, f, map[string]behave{BakedIn: kind})
				if got := b.starts(DefaultLimits.Reach()); len(got) != 1 || len(b.halted) != 1 {
					t.Errorf("%d starts in the next boot, halted %q", len(got), b.halted)
				}
				b.stop()
				// Another release starts with a clean record.
				if n := f.For("r2", DefaultLimits).failures(BakedIn); n != 0 {
					t.Errorf("%d failures in a new release", n)
				}
			})
		})
	}
}

// A host that works is left alone, and one that the machine's clock is set for is as well: all times are monotonic.
func TestHostThatWorksIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, &File{}, map[string]behave{BakedIn: runs})
		defer b.stop()
		if got := b.starts(240 * time.Hour); len(got) != 1 || !b.info.Proven || len(b.lines) != 0 {
			t.Errorf("started %d times, told %+v, said %q", len(got), b.info, b.lines)
		}
		if want := int(240 * time.Hour / beatEvery); b.beats < want/2 {
			t.Errorf("%d beats, want about %d", b.beats, want)
		}
	})
}

func TestSuccessorThatStaysIsGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second, third := digest(1), digest(2), digest(3)
		crash := make(chan struct{})
		b := newBench(t, &File{}, map[string]behave{BakedIn: runs, first.Digest: runs, third.Digest: crashing, second.Digest: func(f *fakeHost) {
			select {
			case <-crash:
				crashing(f)
			default:
				close(f.ready)
				go feed(f, 1000*time.Hour)
				select {
				case <-crash:
					f.reason = "exit status 9"
					f.exit()
				case <-f.killed:
				}
			}
		}})
		defer b.stop()
		b.starts(time.Hour)
		for _, h := range []Host{first, second} {
			b.offer(t, h)
			b.starts(time.Hour)
			if b.info.Good != h.Digest || b.info.Current != h.Digest || !b.info.Proven {
				t.Fatalf("after an hour of %s others are told %+v", h.Digest, b.info)
			}
		}
		// A third that never works: back to the second. Its program is on the disk already, and it is really started.
		b.offer(t, third)
		if got := b.starts(time.Hour); !slices.Equal(got[3:], append(times(third.Digest, 3), second.Digest)) {
			t.Fatalf("started %v", got)
		}
		// The good one begins to crash: the one that was good before it, not the oldest one there is.
		close(crash)
		if got := b.starts(time.Hour); !slices.Equal(got[7:], append(times(second.Digest, 4), first.Digest)) {
			t.Fatalf("started %v", got)
		}
		// And the release's own by name.
		b.offer(t, Host{Digest: BakedIn})
		if got := b.starts(time.Hour); got[len(got)-1] != BakedIn {
			t.Fatalf("started %v", got)
		}
	})
}

// A program that is damaged on the disk is never started, counts for nothing, and is started once it was delivered again.
func TestDamagedProgram(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := digest(1)
		f := &File{}
		kinds := map[string]behave{BakedIn: runs, h.Digest: runs}
		b := newBench(t, f, kinds)
		b.starts(time.Hour)
		b.damage(h.Digest, true)
		// Refused while it can still be fetched again by the one who runs.
		if err := b.Offer(t.Context(), h); !errors.Is(err, ErrDamaged) {
			t.Fatalf("a damaged program is answered by %v", err)
		}
		if got := b.starts(time.Hour); len(got) != 1 || b.info.Current != BakedIn {
			t.Fatalf("started %v, told %+v", got, b.info)
		}
		b.damage(h.Digest, false)
		b.offer(t, h)
		if got := b.starts(time.Hour); !slices.Equal(got, []string{BakedIn, h.Digest}) || b.info.Good != h.Digest {
			t.Fatalf("started %v, told %+v", got, b.info)
		}
		b.stop()
		// It is found damaged at the next boot.
		f = &b.saved
		b = newBench(t, f, kinds)
		b.damage(h.Digest, true)
		b.starts(0)
		b.stop()
		b = newBench(t, f, kinds)
		b.damage(h.Digest, true)
		if got := b.starts(time.Hour); !slices.Equal(got, []string{BakedIn}) {
			t.Fatalf("started %v", got)
		}
		if r := b.info.Find(h.Digest); r.Damaged == "" || r.Failures != 0 || r.Quarantined {
			t.Errorf("told %+v", r)
		}
		b.damage(h.Digest, false)
		b.offer(t, h)
		if got := b.starts(time.Hour); !slices.Equal(got, []string{BakedIn, h.Digest}) {
			t.Fatalf("started %v", got)
		}
		b.stop()
	})
}

// A host that was killed and does not end is what a watchdog is for: the launcher stops saying that it is alive.
func TestNoBeatWhileAKilledHostDoesNotEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, &File{}, map[string]behave{BakedIn: func(f *fakeHost) { f.deaf.Store(true) }})
		b.starts(DefaultLimits.ReadyWithin + 2*beatEvery)
		before := b.beats
		b.starts(time.Hour)
		if b.beats != before {
			t.Errorf("%d beats while it does not end", b.beats-before)
		}
		b.current.exit()
		b.starts(time.Minute)
		if b.beats == before {
			t.Error("no beat after it has ended")
		}
		b.stop()
	})
}

// pausedClock is a clock whose Now is ahead of what timers were told: a machine that was suspended for so long.
type pausedClock struct {
	bubbleClock
	ahead *atomic.Int64 // nanoseconds
}

func (c pausedClock) Now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

// A machine that stood still as a whole is no reason to kill its host.
func TestSuspendedMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ahead atomic.Int64
		b := newBench(t, &File{}, map[string]behave{BakedIn: func(f *fakeHost) {
			close(f.ready)
			select {
			case <-time.After(DefaultLimits.WatchdogWithin * 3 / 2):
				ahead.Store(0)
				feed(f, time.Hour)
			case <-f.killed:
			}
		}}, func(l *Launcher) { l.Clock = pausedClock{ahead: &ahead} })
		defer b.stop()
		b.starts(time.Second)
		ahead.Store(int64(time.Minute))
		if got := b.starts(30 * time.Minute); len(got) != 1 || len(b.lines) != 0 {
			t.Errorf("started %d times, said %q", len(got), b.lines)
		}
	})
}

// An end that is part of the node's own is no failure.
func TestOrderlyEndWithTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		b := newBench(t, &File{}, map[string]behave{BakedIn: func(f *fakeHost) { close(f.ready); <-end; quits(f) }})
		b.starts(time.Second)
		close(end)
		b.starts(leaving / 2)
		b.stop()
		if got := b.starts(0); len(got) != 1 || b.State.failures(BakedIn) != 0 || len(b.lines) != 0 {
			t.Errorf("started %d times, %d failures, said %q", len(got), b.State.failures(BakedIn), b.lines)
		}
	})
}

func TestLimits(t *testing.T) {
	if err := DefaultLimits.Check(); err != nil {
		t.Errorf("the usual limits: %v", err)
	}
	for name, tt := range map[string]struct{ text, want string }{
		"faster":                    {"ready=20s,healthy=10s,watchdog=5s,failures=3,trials=2,delay=100ms,max-delay=1s", ""},
		"watchdog after healthy":    {"healthy=30s,watchdog=60s", "never be reached"},
		"watchdog when healthy":     {"healthy=30s,watchdog=30s", "never be reached"},
		"no failures":               {"failures=0", "at least 1"},
		"no trials":                 {"trials=-1", "at least 1"},
		"no delay":                  {"delay=0s", "more than nothing"},
		"delays the wrong way":      {"delay=1m", "at most the longest"},
		"days until it is given up": {"ready=24h", "the longest is 1h"},
		"far too many":              {"failures=1000000000", "the longest is 1h"},
		"unknown":                   {"window=20s", "unknown"},
		"no value":                  {"ready", "NAME=VALUE"},
		"no duration":               {"ready=20", "missing unit"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseLimits(tt.text, DefaultLimits)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

func FuzzParseLimits(f *testing.F) {
	f.Add("ready=20s,healthy=10s,watchdog=5s")
	f.Fuzz(func(t *testing.T, s string) {
		l, err := ParseLimits(s, DefaultLimits)
		if l.Check() != nil {
			t.Errorf("%q gives %+v, %v", s, l, err)
		}
	})
}

func TestDelay(t *testing.T) {
	l := DefaultLimits
	for _, tt := range []struct {
		row    int
		random float64
		want   time.Duration
	}{
		{1, 0, 500 * time.Millisecond}, {2, 0, time.Second}, {3, 0, 2 * time.Second}, {7, 0, 30 * time.Second},
		{1000, 0, 30 * time.Second}, {7, 0.999999999, 22500 * time.Millisecond},
	} {
		if got := Delay(tt.row, l, tt.random); got.Round(time.Millisecond) != tt.want {
			t.Errorf("Delay(%d, %g) = %s, want %s", tt.row, tt.random, got, tt.want)
		}
	}
}

// TestStateModel drives the rules with any sequence of boots, ends and offers.
func TestStateModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := Limits{MaxFailures: 3, MaxTrials: 2}
		s := (&File{}).For("r", l)
		baked := Host{Digest: BakedIn, Path: "/usr/bin/mesh-host"}
		everGood := map[string]bool{BakedIn: true}
		failures := map[string]int{}
		limit := func(d string) int {
			if everGood[d] {
				return l.MaxFailures
			}
			return l.MaxTrials
		}
		offered := map[string]bool{}
		damaged := map[string]bool{}
		running := ""
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"boot", "start", "fail", "healthy", "offer", "back", "clear", "damage", "cut"}).Draw(t, "step") {
			case "boot":
				s.Boot(l)
				if failures[BakedIn] >= l.MaxFailures {
					failures[BakedIn] = l.MaxFailures - 1
				}
				running = ""
			case "start":
				if running != "" {
					continue
				}
				h, ok := s.Next(baked, l)
				if !ok {
					if failures[BakedIn] < l.MaxFailures {
						t.Fatalf("halted with %d failures of the baked-in host", failures[BakedIn])
					}
					continue
				}
				if failures[h.Digest] >= limit(h.Digest) || damaged[h.Digest] {
					t.Fatalf("%s is started with %d failures, damaged %v", h.Digest, failures[h.Digest], damaged[h.Digest])
				}
				if h.Digest != BakedIn && !offered[h.Digest] {
					t.Fatalf("%s is started and was never delivered", h.Digest)
				}
				before := failures[h.Digest]
				if s.Trying(h, epoch) {
					failures[h.Digest]++
					if everGood[h.Digest] {
						t.Fatalf("the good host %s is counted before it fails", h.Digest)
					}
				}
				if n := s.FailedBefore(h); n != before {
					t.Fatalf("%s is told that it has failed %d times before, not %d", h.Digest, n, before)
				}
				running = h.Digest
			case "fail":
				if running == "" {
					continue
				}
				h := baked
				if running != BakedIn {
					h = s.find(running).Host
				}
				if everGood[running] {
					failures[running]++
				}
				if n := s.Failed(h, "x", epoch); n != failures[running] {
					t.Fatalf("%s has failed %d times, counted %d", running, failures[running], n)
				}
				running = ""
			case "healthy":
				if running == "" {
					continue
				}
				h := baked
				if running != BakedIn {
					h = s.find(running).Host
				}
				s.Healthy(h)
				failures[running], everGood[running] = 0, true
			case "damage":
				if running != "" || s.Current == BakedIn {
					continue
				}
				s.Damage(s.find(s.Current).Host, "cut", epoch)
				damaged[s.Current] = true
			case "back":
				err := s.Offer(Host{Digest: BakedIn}, l)
				if (err != nil) != (failures[BakedIn] >= l.MaxFailures) {
					t.Fatalf("back to the release's own with %d failures: %v", failures[BakedIn], err)
				}
				if err == nil {
					running = ""
				}
			case "clear":
				d := digest(rapid.IntRange(1, 4).Draw(t, "cleared")).Digest
				if s.Clear(d) {
					failures[d], damaged[d] = 0, false
				} else if failures[d] > 0 {
					t.Fatalf("%s has %d failures and is not cleared", d, failures[d])
				}
			case "cut": // power goes: what is on disk is all there is
				f := &File{Releases: []*State{s}}
				s = f.For("r", l)
				running = ""
			case "offer":
				h := digest(rapid.IntRange(1, 4).Draw(t, "digest"))
				err := s.Offer(h, l)
				if (err != nil) != (failures[h.Digest] >= limit(h.Digest)) {
					t.Fatalf("offer of a host with %d failures: %v", failures[h.Digest], err)
				}
				if err == nil {
					offered[h.Digest], damaged[h.Digest] = true, false
					running = "" // it is ended for the successor
				}
			}
			if failures[s.Good] > 0 && s.Good != BakedIn && !everGood[s.Good] {
				t.Fatalf("%s counts as good and never was", s.Good)
			}
		}
	})
}

func TestParseFile(t *testing.T) {
	for name, tt := range map[string]struct {
		text string
		ok   bool
	}{
		"empty object":      {`{}`, true},
		"baked-in":          {`{"releases":[{"root":"r","current":"baked-in","good":"baked-in","hosts":[{"digest":"baked-in","failures":2}]}]}`, true},
		"cut":               {`{"releases":[{"root":`, false},
		"null release":      {`{"releases":[null]}`, false},
		"newer format":      {`{"format":2,"releases":"something else"}`, false},
		"negative failures": {`{"releases":[{"hosts":[{"digest":"baked-in","failures":-1}]}]}`, false},
		"relative path":     {`{"releases":[{"hosts":[{"digest":"sha256:` + strings.Repeat("a", 64) + `","sha256":"` + strings.Repeat("a", 64) + `","path":"bin/x","failures":0}]}]}`, false},
		"twice":             {`{"releases":[{"hosts":[{"digest":"baked-in","failures":1},{"digest":"baked-in","failures":1}]}]}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := ParseFile([]byte(tt.text)); (err == nil) != tt.ok {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestStatesOfOldReleasesAreDropped(t *testing.T) {
	f := &File{}
	for i := range 10 {
		f.For(fmt.Sprint(i), DefaultLimits)
	}
	if len(f.Releases) != maxReleases || f.Releases[maxReleases-1].Root != "9" {
		t.Errorf("%d releases, last %s", len(f.Releases), f.Releases[len(f.Releases)-1].Root)
	}
}

// An upgrade lets nobody out of quarantine; everything else of it starts anew.
func TestNewReleaseKeepsTheQuarantine(t *testing.T) {
	bad, good := digest(1), digest(2)
	f := &File{}
	s := f.For("r1", DefaultLimits)
	for _, h := range []Host{good, bad} {
		if err := s.Offer(h, DefaultLimits); err != nil {
			t.Fatal(err)
		}
		for range DefaultLimits.MaxTrials {
			s.Trying(h, epoch)
		}
	}
	s.Healthy(good)
	n := f.For("r2", DefaultLimits)
	if n.Current != BakedIn || n.Good != BakedIn {
		t.Errorf("the new release begins with %s", n.Current)
	}
	if err := n.Offer(bad, DefaultLimits); err == nil {
		t.Error("the upgrade let a failed host out")
	}
	if err := n.Offer(good, DefaultLimits); err != nil {
		t.Error(err)
	}
	n.Clear(bad.Digest)
	if err := n.Offer(bad, DefaultLimits); err != nil {
		t.Error(err)
	}
	if !s.find(bad.Digest).quarantined(DefaultLimits) {
		t.Error("the old release's record was changed with it")
	}
}

func FuzzParseFile(f *testing.F) {
	f.Add([]byte(`{"releases":[{"root":"r","current":"x","good":"y","hosts":[{"digest":"baked-in","failures":2}]}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		file, err := ParseFile(b)
		if err != nil {
			return
		}
		l := DefaultLimits
		s := file.For("r", l)
		s.Boot(l)
		h, ok := s.Next(Host{Digest: BakedIn}, l)
		if !ok {
			return
		}
		s.Trying(h, epoch)
		s.Failed(h, "x", epoch)
	})
}
