// Package successor brings a node to the host that is declared: it fetches the bundle, checks it, and asks the launcher to
// have the running host replaced by it.
//
// It never starts or ends a host, and never decides that one has failed: the launcher does both, by rules that no host
// can change. It runs in every host, so that the one to which a node was rolled back looks after the next try.
// A newcomer starts with Successor.step.
package successor

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"kingpost/internal/host/sdnotify"
	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
)

// Config is what a Successor works with.
type Config struct {
	// Digest of the host that runs, mesh.HostBakedIn or its bundle's; PID and Since are its own.
	Digest string
	PID    int
	Since  time.Time
	Arch   string // Go's name
	// Launcher reads what the launcher knows. False: no launcher tells, as where a host is only tried out.
	Launcher func() (mesh.LauncherInfo, bool)
	// Declaration is the current one; Changed is closed at its next change.
	Declaration func() (mesh.Declaration, bool)
	Changed     func() <-chan struct{}
	// Fetch has a bundle on disk, checked.
	Fetch func(ctx context.Context, name, digest string, source mesh.Source) (dir string, files *mesh.BundleConfig, err error)
	// Notify tells the launcher.
	Notify func(lines ...string) error
	// Poke is called when what Observe returns has changed.
	Poke func()
	Log  logrus.FieldLogger
}

// Times of a Successor.
const (
	lookEvery = 500 * time.Millisecond // at what the launcher says, while something is under way
	restEvery = 5 * time.Second        // while nothing is
	askAgain  = 30 * time.Second       // when the launcher has not answered
	firstWait = time.Second            // before a failed fetch is tried again; doubles
	mostWait  = 30 * time.Second
)

// Successor looks after the host's own resource. It implements supervise.Own.
type Successor struct {
	cfg Config

	mu      sync.Mutex
	want    string // the digest that the state is about
	state   string
	reason  string
	settled bool

	// What follows is Run's alone.
	checked  bool // the files of the running host were looked at
	misses   int
	retry    time.Time
	asked    string    // the digest that the launcher was last asked for
	askedAt  time.Time // and when; by the monotonic clock
	answered int       // LauncherInfo.Answered before that
	useless  string    // a digest that is no host for this node, and why
	why      string
}

// New makes a Successor.
func New(cfg Config) *Successor { return &Successor{cfg: cfg, state: "waiting"} }

// Run works until ctx ends.
func (s *Successor) Run(ctx context.Context) error {
	for {
		changed := s.cfg.Changed()
		wait := s.step(ctx)
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-changed:
		case <-t.C:
		}
		t.Stop()
		if ctx.Err() != nil {
			return nil
		}
	}
}

// step does one thing towards the declared host, and says how long to wait before the next.
func (s *Successor) step(ctx context.Context) time.Duration {
	d, ok := s.cfg.Declaration()
	launcher, told := s.cfg.Launcher()
	if !ok || !told {
		// Without a declaration the host that runs is the right one.
		s.show(s.cfg.Digest, "running", "", true)
		return restEvery
	}
	want, source := mesh.HostBakedIn, mesh.SourceAny
	if r := d.Host(); r != nil {
		want, source = r.Digest, r.Source
	}
	if want == s.cfg.Digest {
		return s.arrived(ctx, want, source, &launcher)
	}
	if r := launcher.Find(want); r != nil && r.Quarantined {
		s.show(want, "held", fmt.Sprintf("it failed %d times in a row, the last time because %s; the host %s runs instead; push another one, or clear %s to have it tried again",
			r.Failures, r.Last, short(s.cfg.Digest), mesh.HostKey), false)
		return restEvery
	}
	if s.useless == want {
		s.show(want, "failed", s.why, false)
		return restEvery
	}
	if left := time.Until(s.retry); left > 0 {
		return left
	}
	if s.asked == want && launcher.Answered == s.answered && time.Since(s.askedAt) < askAgain {
		s.show(want, "starting", "the launcher is asked to replace the host", false)
		return lookEvery
	}
	if s.asked == want && launcher.Answered != s.answered && launcher.Refused == want {
		s.asked = "" // what it says against it may be gone when it is fetched again
		return s.later(ctx, want, "backoff", fmt.Errorf("the launcher does not take it: %s", launcher.RefusedReason))
	}
	line := "KINGPOST_SUCCESSOR=" + mesh.HostBakedIn
	if want != mesh.HostBakedIn {
		s.show(want, "fetching", "", false)
		var err error
		if line, err = s.fetch(ctx, want, source); err != nil {
			return s.later(ctx, want, "fetching", err)
		}
		if s.useless == want {
			return 0
		}
	}
	s.misses = 0
	s.cfg.Log.WithField("host", want).Info("host: ask the launcher for the declared host")
	s.asked, s.askedAt, s.answered = want, time.Now(), launcher.Answered
	if err := s.cfg.Notify(line); err != nil {
		s.asked = ""
		return s.later(ctx, want, "backoff", err)
	}
	return 0
}

// arrived is the step of the declared host itself.
func (s *Successor) arrived(ctx context.Context, want string, source mesh.Source, launcher *mesh.LauncherInfo) time.Duration {
	s.asked = ""
	if !s.checked && want != mesh.HostBakedIn {
		// What was damaged on the disk since is found and fetched again now, not when the launcher needs it.
		if _, _, err := s.cfg.Fetch(ctx, mesh.HostBundle, want, source); err != nil {
			s.cfg.Log.WithError(err).Warn("host: its own files cannot be checked; it goes on")
		} else {
			s.checked = true
		}
	}
	if !launcher.Proven {
		s.show(want, "starting", fmt.Sprintf("it has to be well for %.0f s to count as good", launcher.ProveSeconds), false)
		return lookEvery
	}
	s.show(want, "healthy", "", true)
	return restEvery
}

// fetch has the bundle of want here and returns the line that asks for it. What is no host for this node is noted in
// useless: trying again would not make it one.
func (s *Successor) fetch(ctx context.Context, want string, source mesh.Source) (string, error) {
	dir, files, err := s.cfg.Fetch(ctx, mesh.HostBundle, want, source)
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(files.Files, func(f mesh.BundleFile) bool { return f.Path == mesh.HostProgram && f.Link == "" })
	switch {
	case files.Architecture != s.cfg.Arch:
		s.useless, s.why = want, fmt.Sprintf("it is for %s, this node is %s; push it with a bundle for each", files.Architecture, s.cfg.Arch)
	case i < 0:
		s.useless, s.why = want, "its bundle has no program "+mesh.HostProgram
	case files.Files[i].Mode&0o111 == 0:
		s.useless, s.why = want, mesh.HostProgram+" in its bundle is not executable"
	default:
		return fmt.Sprintf("KINGPOST_SUCCESSOR=%s %s %s", want, files.Files[i].SHA256, filepath.Join(dir, filepath.FromSlash(mesh.HostProgram))), nil
	}
	return "", nil
}

// later shows why something has to be tried again and when.
func (s *Successor) later(ctx context.Context, want, state string, err error) time.Duration {
	if ctx.Err() != nil {
		return 0
	}
	wait := min(firstWait<<min(s.misses, 10), mostWait)
	wait -= time.Duration(rand.Float64() * float64(wait) / 4) // nodes that lost the store together do not come back in step
	s.misses++
	s.retry = time.Now().Add(wait)
	s.show(want, state, err.Error(), false)
	return wait
}

// show changes what others see. A new digest has a new chance.
func (s *Successor) show(want, state, reason string, settled bool) {
	s.mu.Lock()
	same := s.want == want && s.state == state && s.reason == reason && s.settled == settled
	if s.want != want {
		s.misses, s.retry, s.useless = 0, time.Time{}, ""
	}
	s.want, s.state, s.reason, s.settled = want, state, reason, settled
	s.mu.Unlock()
	if !same {
		s.cfg.Poke()
	}
}

// Observe implements supervise.Own.
func (s *Successor) Observe(d *mesh.Declared) (hostapi.ResourceStatus, bool) {
	v := hostapi.ResourceStatus{
		Key: mesh.HostKey, Module: mesh.HostModule, ID: mesh.HostResource, Type: mesh.KindProcess,
		PID: s.cfg.PID, Since: s.cfg.Since, Digest: s.cfg.Digest, Critical: true,
	}
	want := mesh.HostBakedIn
	if d != nil {
		want, v.Source = d.Digest, d.Source
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.want != want { // a declaration that no step has seen yet
		v.State, v.Reason = "waiting", "the declaration has just come"
		return v, false
	}
	v.State, v.Reason = s.state, s.reason
	return v, s.settled
}

// Keep implements supervise.Own: what runs, what the launcher would go back to, and what it would try.
func (s *Successor) Keep() []string {
	keep := []string{s.cfg.Digest}
	if l, ok := s.cfg.Launcher(); ok {
		keep = append(keep, l.Current, l.Good, l.Previous)
	}
	return keep
}

// Clear implements supervise.Own.
func (s *Successor) Clear() error {
	d, ok := s.cfg.Declaration()
	if !ok || d.Host() == nil {
		return &mesh.CallError{Code: mesh.CodeNotFound, Message: "no host is declared on this node"}
	}
	if err := s.cfg.Notify("KINGPOST_CLEAR=" + d.Host().Digest); err != nil {
		return &mesh.CallError{Code: mesh.CodeFailed, Message: err.Error()}
	}
	return nil
}

// Watchdog says that the host is alive each quarter of limit, as long as alive says so, until ctx ends. A limit of 0 is
// that of a host that nobody watches.
func Watchdog(ctx context.Context, limit time.Duration, alive func(context.Context) error, notify func(lines ...string) error, log logrus.FieldLogger) error {
	if limit <= 0 {
		return nil
	}
	t := time.NewTicker(max(limit/4, 100*time.Millisecond))
	defer t.Stop()
	for {
		ask, cancel := context.WithTimeout(ctx, limit/2)
		err := alive(ask)
		cancel()
		if err == nil {
			err = notify(sdnotify.Watchdog)
		}
		if err != nil && ctx.Err() == nil {
			log.WithError(err).Warn("host: it does not answer itself; the launcher is not told that it is alive")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

func short(digest string) string {
	if len(digest) > 19 {
		return digest[:19]
	}
	return digest
}
