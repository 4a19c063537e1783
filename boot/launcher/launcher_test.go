package launcher

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

var epoch = time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)

func digest(n int) Host {
	hex := fmt.Sprintf("%064x", n)
	return Host{Digest: "sha256:" + hex, SHA256: hex, Path: fmt.Sprintf("/var/lib/kingpost/bundles/%d/bin/mesh-host", n)}
}

// fakeClock fires a timer at once when it is asked to, in the order in which timers were made.
type fakeClock struct {
	mu    sync.Mutex
	now   time.Time
	waits []time.Duration
}

func (c *fakeClock) Now() time.Time { c.mu.Lock(); defer c.mu.Unlock(); return c.now }

func (c *fakeClock) After(d time.Duration) <-chan time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waits = append(c.waits, d)
	ch := make(chan time.Time, 1)
	// Delays between starts pass at once; the long waits for a state never do, unless a fake instance asks for it.
	if d <= DefaultLimits.MaxDelay && d != DefaultLimits.HealthyAfter || d == hurry {
		c.now = c.now.Add(d)
		ch <- c.now
	}
	return ch
}

// hurry is a HealthyAfter that passes at once.
const hurry = time.Millisecond

type fakeHost struct {
	ready, done chan struct{}
	reason      string
	asked       bool
	once        sync.Once
}

func (f *fakeHost) Ready() <-chan struct{} { return f.ready }
func (f *fakeHost) Done() <-chan struct{}  { return f.done }
func (f *fakeHost) Reason() string         { return f.reason }
func (f *fakeHost) Asked() bool            { return f.asked }
func (f *fakeHost) Kill()                  { f.once.Do(func() { close(f.done) }) }

func crashing(reason string) *fakeHost {
	f := &fakeHost{ready: make(chan struct{}), done: make(chan struct{}), reason: reason}
	f.Kill()
	return f
}

func running() *fakeHost {
	f := &fakeHost{ready: make(chan struct{}), done: make(chan struct{})}
	close(f.ready)
	return f
}

type bench struct {
	*Launcher
	clock   *fakeClock
	started chan Host
	halted  chan string
	lines   []string
	saves   int
}

func newBench(s *State, start func(h Host) (Instance, error)) *bench {
	log := logrus.New()
	log.SetOutput(io.Discard)
	b := &bench{clock: &fakeClock{now: epoch}, started: make(chan Host, 100), halted: make(chan string, 10)}
	b.Launcher = New(Launcher{
		Baked: Host{Digest: BakedIn, Path: "/usr/bin/mesh-host"}, Limits: DefaultLimits, State: s,
		Save:  func() error { b.saves++; return nil },
		Start: func(h Host) (Instance, error) { b.started <- h; return start(h) },
		Clock: b.clock, Random: func() float64 { return 0 }, Log: log,
		Report: func(l string) { b.lines = append(b.lines, l) },
		OnHalt: func(r string) { b.halted <- r },
	})
	return b
}

func fresh(root string) *State { return (&File{}).For(root) }

func TestBakedInHostThatCrashesHaltsAndIsCounted(t *testing.T) {
	defer goleak.VerifyNone(t)
	f := &File{}
	b := newBench(f.For("r1"), func(Host) (Instance, error) { return crashing("exit status 2: panic: no"), nil })
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { b.Run(ctx); close(done) }()
	if why := <-b.halted; !strings.Contains(why, "panic: no") {
		t.Errorf("halted for %q", why)
	}
	cancel()
	<-done
	if n := len(b.started); n != 5 {
		t.Errorf("%d starts", n)
	}
	if n := f.For("r1").failures(BakedIn); n != 5 {
		t.Errorf("%d failures counted", n)
	}
	if got := b.lines[0]; !strings.Contains(got, "1 of 5") || !strings.Contains(got, "panic: no") {
		t.Errorf("first line is %q", got)
	}
	if b.saves < 5 {
		t.Errorf("saved %d times", b.saves)
	}
	// The next boot gives it one more chance, not five.
	b = newBench(f.For("r1"), func(Host) (Instance, error) { return nil, errors.New("no such file") })
	ctx, cancel = context.WithCancel(context.Background())
	done = make(chan struct{})
	go func() { b.Run(ctx); close(done) }()
	<-b.halted
	cancel()
	<-done
	if n := len(b.started); n != 1 {
		t.Errorf("%d starts in the next boot", n)
	}
	// Another release starts with a clean record.
	if n := f.For("r2").failures(BakedIn); n != 0 {
		t.Errorf("%d failures in a new release", n)
	}
}

func TestSuccessorThatCrashesRollsBack(t *testing.T) {
	defer goleak.VerifyNone(t)
	s := fresh("r")
	bad := digest(1)
	b := newBench(s, func(h Host) (Instance, error) {
		if h.Digest == bad.Digest {
			return crashing("exit status 1"), nil
		}
		return running(), nil
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { b.Run(ctx); close(done) }()
	if h := <-b.started; h.Digest != BakedIn {
		t.Fatalf("first is %s", h.Digest)
	}
	if err := b.Offer(ctx, bad); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if h := <-b.started; h != bad {
			t.Fatalf("%+v is started", h)
		}
	}
	if h := <-b.started; h.Digest != BakedIn {
		t.Fatalf("rolled back to %s", h.Digest)
	}
	// A host that has failed is not tried again by its digest.
	if err := b.Offer(ctx, bad); err == nil {
		t.Error("the failed host is taken again")
	}
	cancel()
	<-done
	if s.Current != BakedIn || s.failures(bad.Digest) != 5 || s.failures(BakedIn) != 0 {
		t.Errorf("state is %+v", s)
	}
}

func TestSuccessorThatStaysIsGood(t *testing.T) {
	defer goleak.VerifyNone(t)
	s := fresh("r")
	good := digest(2)
	b := newBench(s, func(Host) (Instance, error) { return running(), nil })
	b.Limits.HealthyAfter = hurry
	saved := make(chan State, 20)
	b.Save = func() error { saved <- *s; return nil }
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { b.Run(ctx); close(done) }()
	<-b.started
	if err := b.Offer(ctx, good); err != nil {
		t.Fatal(err)
	}
	for st := range saved {
		if st.Good == good.Digest {
			break
		}
	}
	cancel()
	<-done
	if r := s.find(good.Digest); !r.Good || r.Failures != 0 {
		t.Errorf("record is %+v", r)
	}
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
		const max = 3
		s := fresh("r")
		baked := Host{Digest: BakedIn, Path: "/usr/bin/mesh-host"}
		everGood := map[string]bool{BakedIn: true}
		failures := map[string]int{}
		offered := map[string]bool{}
		running := ""
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"boot", "start", "fail", "healthy", "stopped", "offer", "cut"}).Draw(t, "step") {
			case "boot":
				s.Boot(max)
				if failures[BakedIn] >= max {
					failures[BakedIn] = max - 1
				}
				running = ""
			case "start":
				if running != "" {
					continue
				}
				h, ok := s.Next(baked, max)
				if !ok {
					if failures[BakedIn] < max {
						t.Fatalf("halted with %d failures of the baked-in host", failures[BakedIn])
					}
					continue
				}
				if failures[h.Digest] >= max {
					t.Fatalf("%s is started with %d failures", h.Digest, failures[h.Digest])
				}
				if h.Digest != BakedIn && !offered[h.Digest] {
					t.Fatalf("%s is started and was never delivered", h.Digest)
				}
				if s.Trying(h, epoch) {
					failures[h.Digest]++
					if everGood[h.Digest] {
						t.Fatalf("the good host %s is counted before it fails", h.Digest)
					}
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
			case "stopped":
				if running == "" {
					continue
				}
				if s.Stopped(Host{Digest: running}) {
					failures[running]--
				}
				running = ""
			case "cut": // power goes: what is on disk is all there is
				f := &File{Releases: []*State{s}}
				s = f.For("r")
				running = ""
			case "offer":
				h := digest(rapid.IntRange(1, 4).Draw(t, "digest"))
				err := s.Offer(h, max)
				if (err != nil) != (failures[h.Digest] >= max) {
					t.Fatalf("offer of a host with %d failures: %v", failures[h.Digest], err)
				}
				if err == nil {
					offered[h.Digest] = true
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
		f.For(fmt.Sprint(i))
	}
	if len(f.Releases) != maxReleases || f.Releases[maxReleases-1].Root != "9" {
		t.Errorf("%d releases, last %s", len(f.Releases), f.Releases[len(f.Releases)-1].Root)
	}
}

func FuzzParseFile(f *testing.F) {
	f.Add([]byte(`{"releases":[{"root":"r","current":"x","good":"y","hosts":[{"digest":"baked-in","failures":2}]}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		file, err := ParseFile(b)
		if err != nil {
			return
		}
		s := file.For("r")
		s.Boot(3)
		h, ok := s.Next(Host{Digest: BakedIn}, 3)
		if !ok {
			return
		}
		s.Trying(h, epoch)
		s.Failed(h, "x", epoch)
	})
}
