package raise

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/sirupsen/logrus"
	"pgregory.net/rapid"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
	"kingpost/internal/mesh/tlsid"
	"kingpost/internal/mesh/verbs"
)

// session is a node with its raiser under power.
type session struct {
	*fake
	*Raiser
	dir  string
	cut  context.CancelFunc
	over chan error
}

func powerOn(t testing.TB, f *fake, dir, fromConfig string) *session {
	t.Helper()
	log := logrus.New()
	log.SetOutput(io.Discard)
	ctx, cancel := context.WithCancel(context.Background())
	f.cut = cancel
	r, err := New(Config{Node: f, Dir: dir, Mesh: fromConfig, Log: log, Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	s := &session{f, r, dir, cancel, make(chan error, 1)}
	go func() { s.over <- r.Run(ctx) }()
	return s
}

func (s *session) off() error { s.cut(); return <-s.over }

// until waits, in the bubble's time, for a state of the raise.
func (s *session) until(t testing.TB, what string, ok func(hostapi.RaiseStatus) bool) hostapi.RaiseStatus {
	t.Helper()
	for range 20000 {
		if st := s.Raiser.Status(); ok(st) {
			return st
		}
		time.Sleep(100 * time.Millisecond)
	}
	b, _ := json.MarshalIndent(s.Raiser.Status(), "", " ")
	t.Fatalf("never %s: %s", what, b)
	return hostapi.RaiseStatus{}
}

func isDone(s hostapi.RaiseStatus) bool { return s.State == StateDone }

func reasonHas(state, text string) func(hostapi.RaiseStatus) bool {
	return func(s hostapi.RaiseStatus) bool {
		return s.State == state && strings.Contains(s.Steps[s.Step-1].Reason, text)
	}
}

func request() hostapi.RaiseRequest { return hostapi.RaiseRequest{Mesh: "home"} }

func TestRaise(t *testing.T) {
	for name, manifests := range map[string][]mesh.Manifest{
		"process":   nil,
		"container": {containerController()},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := powerOn(t, boot(newDisk()), t.TempDir(), "")
				defer s.off()
				req := request()
				req.Manifests = manifests
				if _, err := s.Start(t.Context(), req); err != nil {
					t.Fatal(err)
				}
				st := s.until(t, "done", isDone)
				for _, step := range st.Steps {
					if step.State != StateDone || step.Reason != "" {
						t.Errorf("step %d: %+v", step.Number, step)
					}
				}
				if st.Certificate != "CERT" || st.CA != "CA" {
					t.Errorf("no credentials in %+v", st)
				}
				if err := whole(s.fake); err != nil {
					t.Error(err)
				}
				got := s.run[controllerKey]
				want := mesh.KindProcess
				if manifests != nil {
					want = mesh.KindContainer
				}
				if got.spec.Type != want || got.spec.Env["A"] != "b" {
					t.Errorf("the controller that runs: %+v", got.spec)
				}
				// start, pivot, restart without the seed
				if diff := cmp.Diff([]bool{true, true, false}, s.seedLog); diff != "" {
					t.Errorf("seed at the controller's starts: %s", diff)
				}

				again, err := s.Start(t.Context(), request())
				if err != nil || again.State != StateDone {
					t.Errorf("raised again: %v, %v", again.State, err)
				}
				if _, err := s.Start(t.Context(), hostapi.RaiseRequest{Mesh: "other"}); !conflict(err) {
					t.Errorf("another mesh: %v", err)
				}
			})
		})
	}
}

// TestLateModule raises a mesh one of whose modules is healthy long after the controller: the last steps go on as soon as
// it is, and not when their next try would be due.
func TestLateModule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := boot(newDisk())
		f.slow = map[string]time.Duration{"vault": 40 * time.Second}
		s := powerOn(t, f, t.TempDir(), "")
		defer s.off()
		if _, err := s.Start(t.Context(), request()); err != nil {
			t.Fatal(err)
		}
		s.until(t, "confirming", func(st hostapi.RaiseStatus) bool { return st.Step == 9 })
		began := time.Now()
		s.until(t, "done", isDone)
		if took := time.Since(began); took > 40*time.Second+retryMost/2 {
			t.Errorf("it took %v after the pivot, 40 s of which the vault was starting", took)
		}
	})
}

func conflict(err error) bool {
	e, ok := err.(*hostapi.Error)
	return ok && e.Code == mesh.CodeConflict && e.Status == 409
}

// whole says what a finished raise looks like on a node, however it got there.
func whole(f *fake) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.apply()
	s := f.state()
	if s.Resources == nil {
		return fmt.Errorf("nothing is declared")
	}
	for _, r := range s.Resources {
		if !ready(r) || r.Reason != "" {
			return fmt.Errorf("%s", describe(&r, r.Key))
		}
		if r.Module == moduleController && r.Source == mesh.SourceSeed {
			return fmt.Errorf("%s is from the seed", r.Key)
		}
	}
	if want := []string{"broker", "builder", "catalogue", "controller", "registry", "vault"}; !slices.Equal(want, sortedModules(f.disk.modules)) {
		return fmt.Errorf("modules are %v", sortedModules(f.disk.modules))
	}
	if !f.seed || !f.disk.vaultCA || len(f.disk.stored) != len(f.entries) {
		return fmt.Errorf("seed %v, CA in the vault %v, %d of %d stored", f.seed, f.disk.vaultCA, len(f.disk.stored), len(f.entries))
	}
	if f.disk.declaration.Epoch == 0 || f.run[controllerKey].epoch <= f.disk.declaration.Epoch {
		return fmt.Errorf("declared at %v, running under %d", f.disk.declaration.Version, f.run[controllerKey].epoch)
	}
	return nil
}

// settled is whole after the supervisor had its time: power may have gone just before the end was seen.
func settled(f *fake) error {
	for range 3 {
		f.mu.Lock()
		f.apply()
		f.mu.Unlock()
		time.Sleep(time.Minute)
	}
	return whole(f)
}

// interrupted raises with power cuts at the given calls, one boot each, and then without. It returns the
// error and how many calls the last boot took.
func interrupted(t testing.TB, cuts []int) (calls int, err error) {
	d, dir := newDisk(), t.TempDir()
	for boots := 0; ; boots++ {
		f := boot(d)
		if boots < len(cuts) {
			f.crashAt = cuts[boots]
		}
		s := powerOn(t, f, dir, "home")
		for range 20000 {
			if st := s.Raiser.Status().State; st == StateDone || st == StateFailed || s.isDead() {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		if s.isDead() {
			<-s.over
			continue
		}
		st := s.Raiser.Status()
		if st.State != StateDone {
			err = fmt.Errorf("state %s in step %d: %s", st.State, st.Step, st.Steps[st.Step-1].Reason)
		} else {
			err = settled(f)
		}
		s.off()
		return f.calls, err
	}
}

func (f *fake) isDead() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.dead
}

// TestInterruptedOnce cuts power at every single call that a raise makes of its node, once each.
func TestInterruptedOnce(t *testing.T) {
	var total int
	synctest.Test(t, func(t *testing.T) {
		n, err := interrupted(t, nil)
		if err != nil {
			t.Fatal(err)
		}
		total = n
	})
	t.Logf("%d crash points", total)
	stride := 1
	if testing.Short() {
		stride = 13
	}
	for at := 1; at <= total; at += stride {
		var err error
		synctest.Test(t, func(t *testing.T) { _, err = interrupted(t, []int{at}) })
		if err != nil {
			t.Fatalf("cut at call %d of %d: %v", at, total, err)
		}
	}
}

func TestInterruptedOften(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		cuts := rapid.SliceOfN(rapid.IntRange(1, 400), 1, 8).Draw(rt, "cuts")
		var err error
		synctest.Test(t, func(t *testing.T) { _, err = interrupted(t, cuts) })
		if err != nil {
			rt.Fatal(err)
		}
	})
}

// TestRefused: each cause stops preflight by its name, changes nothing, and the raise goes on by itself
// when the cause is gone.
func TestRefused(t *testing.T) {
	tests := map[string]struct {
		bend, mend func(*fake)
		operator   string
		want       string
	}{
		"seed": {
			bend: func(f *fake) { f.damaged = "sha256:abc" }, mend: func(f *fake) { f.damaged = "" },
			want: "seed: blob sha256:abc does not match",
		},
		"no data partition": {
			bend: func(f *fake) { f.info.Boot.Data = "" }, mend: func(f *fake) { f.info.Boot.Data = "/dev/vda4" },
			want: "data partition: there is none",
		},
		"small data partition": {
			bend: func(f *fake) { f.info.DataSize = 64 << 20 }, mend: func(f *fake) { f.info.DataSize = 1 << 30 },
			want: "data partition: /dev/vda4 has 64.0 MiB, needed are 112.0 MiB",
		},
		"full data partition": {
			bend: func(f *fake) { f.info.DataFree = 64 << 20 }, mend: func(f *fake) { f.info.DataFree = 1 << 30 },
			want: "data partition: /dev/vda4 has 64.0 MiB free of 4.0 GiB, needed are 112.0 MiB",
		},
		"port": {
			bend: func(f *fake) { f.port = "web/server (pid 99)" }, mend: func(f *fake) { f.port = "" },
			want: "port 5000: web/server (pid 99) listens there",
		},
		"unclaimed": {
			bend: func(f *fake) { f.info.Claim = "" }, mend: func(f *fake) { f.info.Claim = testFingerprint },
			want: "claim: the node is claimed by nobody",
		},
		"another key": {
			bend: func(f *fake) { f.info.Claim = "SHA256:x" }, mend: func(f *fake) { f.info.Claim = testFingerprint },
			operator: tlsid.FormatPublicKey(testKey()),
			want:     "claim: the node is claimed by the key SHA256:x, the request is by SHA256:",
		},
		"missing bundle": {
			bend: func(f *fake) { f.entries = f.entries[:2] }, mend: func(f *fake) { f.entries, _ = testSeed() },
			want: "modules: module ",
		},
		"missing module": {
			bend: func(f *fake) { f.manifests = f.manifests[1:] }, mend: func(f *fake) { _, f.manifests = testSeed() },
			want: "modules: the seed has no module registry",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := boot(newDisk())
				test.bend(f)
				s := powerOn(t, f, t.TempDir(), "")
				defer s.off()
				req := request()
				req.Operator = test.operator
				if _, err := s.Start(t.Context(), req); err != nil {
					t.Fatal(err)
				}
				st := s.until(t, "refused", reasonHas(StateRefused, test.want))
				if st.Step != 1 || st.Steps[0].State != StateRefused {
					t.Errorf("refused in %+v", st)
				}
				f.mu.Lock()
				if diff := cmp.Diff(newDisk(), f.disk, cmp.AllowUnexported(disk{})); diff != "" {
					t.Errorf("something was changed: %s", diff)
				}
				test.mend(f)
				f.mu.Unlock()
				s.until(t, "done", isDone)
			})
		})
	}
}

// TestRename asks for another mesh while one is being raised: a raise under way keeps its name, from its first moment
// to its last; one that preflight refuses may get another.
func TestRename(t *testing.T) {
	t.Run("under way", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := powerOn(t, boot(newDisk()), t.TempDir(), "")
			defer s.off()
			if _, err := s.Start(t.Context(), request()); err != nil {
				t.Fatal(err)
			}
			asked := 0
			for st := s.Raiser.Status(); st.State != StateDone; st = s.Raiser.Status() {
				if _, err := s.Start(t.Context(), hostapi.RaiseRequest{Mesh: "other"}); !conflict(err) {
					t.Fatalf("at step %d: %v, wanted a conflict", st.Step, err)
				}
				asked++
				time.Sleep(50 * time.Millisecond)
			}
			if st := s.Raiser.Status(); asked < 10 || st.Mesh != "home" {
				t.Errorf("asked %d times; raised is %q", asked, st.Mesh)
			}
		})
	})
	t.Run("refused", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := boot(newDisk())
			f.damaged = "x"
			s := powerOn(t, f, t.TempDir(), "wrong")
			defer s.off()
			s.until(t, "refused", reasonHas(StateRefused, "seed"))
			if _, err := s.Start(t.Context(), request()); err != nil {
				t.Fatalf("correct the name: %v", err)
			}
			f.mu.Lock()
			f.damaged = ""
			f.mu.Unlock()
			if st := s.until(t, "done", isDone); st.Mesh != "home" {
				t.Errorf("raised is %q", st.Mesh)
			}
		})
	})
	// The name is corrected when preflight has just found that the cause of its refusal is gone: the step that makes
	// the mesh must not be taken in the old name.
	t.Run("refused no longer", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := &corrected{fake: boot(newDisk())}
			f.damaged = "x"
			log := logrus.New()
			log.SetOutput(io.Discard)
			r, err := New(Config{Node: f, Dir: t.TempDir(), Mesh: "wrong", Log: log, Now: time.Now})
			if err != nil {
				t.Fatal(err)
			}
			f.correct = sync.OnceFunc(func() {
				if _, err := r.Start(t.Context(), request()); err != nil {
					t.Errorf("correct the name: %v", err)
				}
			})
			ctx, cancel := context.WithCancel(t.Context())
			over := make(chan error, 1)
			go func() { over <- r.Run(ctx) }()
			s := &session{fake: f.fake, Raiser: r, cut: cancel, over: over}
			defer s.off()
			s.until(t, "refused", reasonHas(StateRefused, "seed"))
			f.mu.Lock()
			f.damaged = ""
			f.mu.Unlock()
			if st := s.until(t, "done", isDone); st.Mesh != "home" || f.disk.member.Mesh != "home" {
				t.Errorf("raised is %q, the node's mesh is %q", st.Mesh, f.disk.member.Mesh)
			}
		})
	})
}

// TestModulesOfARunningRaise: modules that the seed cannot give are refused and stop nothing that is under way.
func TestModulesOfARunningRaise(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := powerOn(t, boot(newDisk()), t.TempDir(), "home")
		defer s.off()
		s.until(t, "under way", func(st hostapi.RaiseStatus) bool { return st.Step >= 3 })
		req := request()
		req.Manifests = []mesh.Manifest{{Module: "web", Version: "1", Resources: []mesh.Resource{{ID: "server", Type: mesh.KindProcess, Bundle: "absent"}}}}
		_, err := s.Start(t.Context(), req)
		if !conflict(err) || !strings.Contains(err.Error(), "absent") {
			t.Errorf("%v, wanted a conflict that names what is absent", err)
		}
		if st := s.Raiser.Status(); st.State != StateRunning || st.Step < 3 {
			t.Errorf("the raise is %s, at step %d", st.State, st.Step)
		}
		s.until(t, "done", isDone)
	})
}

// corrected is a node at whose last look of preflight somebody corrects the request.
type corrected struct {
	*fake
	correct func()
}

func (c *corrected) PortUser(ctx context.Context, port int) (string, error) {
	user, err := c.fake.PortUser(ctx, port)
	c.correct()
	return user, err
}

func TestClockIsAWarning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := boot(newDisk())
		f.info.Boot.Clock = "raised from 1970-01-01 to 2026-12-01"
		s := powerOn(t, f, t.TempDir(), "home")
		defer s.off()
		st := s.until(t, "done", isDone)
		if diff := cmp.Diff([]string{"clock: raised from 1970-01-01 to 2026-12-01"}, st.Steps[0].Warnings); diff != "" {
			t.Error(diff)
		}
	})
}

func TestOtherMesh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDisk()
		d.member = mesh.Membership{Mesh: "away", Node: "alpha", CA: "CA", Operator: "CERT"}
		s := powerOn(t, boot(d), t.TempDir(), "home") // node.yaml only warns
		defer s.off()
		time.Sleep(10 * time.Second)
		if st := s.Raiser.Status(); st.State != StateNone {
			t.Errorf("state %s", st.State)
		}
		if _, err := s.Start(t.Context(), request()); !conflict(err) || !strings.Contains(err.Error(), "away") {
			t.Errorf("got %v", err)
		}
	})
}

// TestBrokenController: the declared controller never gets healthy, the temporary one answers again, and
// a corrected push finishes the raise.
func TestBrokenController(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := powerOn(t, boot(newDisk()), t.TempDir(), "")
		defer s.off()
		broken := testController()
		broken.Resources[1].Args = []string{"serve", "broken"}
		req := request()
		req.Manifests = []mesh.Manifest{broken}
		if _, err := s.Start(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		st := s.until(t, "held in the pivot", reasonHas(StateRunning, "did not get healthy"))
		if st.Step != 8 {
			t.Fatalf("step %d", st.Step)
		}
		time.Sleep(time.Hour)
		if st := s.Raiser.Status(); st.State != StateRunning || st.Step != 8 {
			t.Fatalf("an hour later: %s in %d", st.State, st.Step)
		}
		corrected := req
		corrected.Manifests = []mesh.Manifest{testController()}
		if _, err := s.Start(t.Context(), corrected); !conflict(err) || !strings.Contains(err.Error(), "module push") {
			t.Errorf("manifests after step 7: %v", err)
		}
		entries, _ := testSeed()
		digests, err := bind(testController(), entries, "amd64")
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Call(t.Context(), mesh.SeatController, verbs.Push, verbs.PushParams{Manifest: testController(), Digests: digests}, nil); err != nil {
			t.Fatal(err)
		}
		s.until(t, "done", isDone)
		if err := whole(s.fake); err != nil {
			t.Error(err)
		}
	})
}

// TestForeignModules: what an operator declared at epoch 0 stays until the controller's word, and is named.
func TestForeignModules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := boot(newDisk())
		f.disk.declaration = &mesh.Declaration{Version: mesh.Version{Revision: 7}, Writer: "operator", Resources: []mesh.Declared{
			{Module: "web", Resource: mesh.Resource{ID: "server", Type: mesh.KindVolume}},
			{Module: "catalogue", Resource: mesh.Resource{ID: "odd", Type: mesh.KindVolume}},
		}}
		f.damaged = "x"
		s := powerOn(t, f, t.TempDir(), "home")
		defer s.off()
		s.until(t, "refused", reasonHas(StateRefused, "seed"))
		f.mu.Lock()
		if f.disk.declaration.Revision != 7 {
			t.Error("declared before preflight passed")
		}
		f.damaged = ""
		f.mu.Unlock()
		s.until(t, "the store running", func(s hostapi.RaiseStatus) bool { return s.Step > 3 })
		f.mu.Lock()
		if d := f.disk.declaration; !has(d, "web/server") || has(d, "catalogue/odd") || !has(d, "registry/server") {
			t.Errorf("declared: %+v", d)
		}
		f.mu.Unlock()
		st := s.until(t, "done", isDone)
		if w := st.Steps[6].Warnings; len(w) != 1 || !strings.Contains(w[0], "web") {
			t.Errorf("warnings %v", w)
		}
	})
}

// TestUnwritable: without a place for the request the raise is refused, and goes on when there is one.
func TestUnwritable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "state")
		if err := os.WriteFile(dir, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		f := boot(newDisk())
		f.cut = func() {}
		s := powerOn(t, f, filepath.Join(dir, "raise"), "home")
		defer s.off()
		s.until(t, "refused", reasonHas(StateRefused, "data partition: the request cannot be written"))
		if err := os.Remove(dir); err != nil {
			t.Fatal(err)
		}
		s.until(t, "done", isDone)
	})
}

// TestResumes: a raiser that finds a request says so before it runs, so that a watcher does not leave.
func TestResumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		f := boot(newDisk())
		f.damaged = "x"
		s := powerOn(t, f, dir, "home")
		s.until(t, "refused", reasonHas(StateRefused, "seed"))
		s.off()
		r, err := New(Config{Node: f, Dir: dir, Log: logrus.New(), Now: time.Now})
		if err != nil {
			t.Fatal(err)
		}
		if st := r.Status(); st.State != StateRunning || st.Mesh != "home" {
			t.Errorf("state %s of %q", st.State, st.Mesh)
		}
	})
}

func TestDamagedState(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{fileDone, fileRequest} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	log := logrus.New()
	log.SetOutput(io.Discard)
	r, err := New(Config{Node: boot(newDisk()), Dir: dir, Log: log, Now: time.Now})
	if err != nil || r.Status().State != StateNone {
		t.Errorf("%v, %v", r.Status().State, err)
	}
}

// hanging never answers a verb.
type hanging struct{ *fake }

func (hanging) Call(ctx context.Context, _, _ string, _, _ any, _ ...mesh.CallOption) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestHangingVerbEndsInFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := boot(newDisk())
		log := logrus.New()
		log.SetOutput(io.Discard)
		ctx, cancel := context.WithCancel(t.Context())
		f.cut = cancel
		r, err := New(Config{Node: hanging{f}, Dir: t.TempDir(), Mesh: "home", Log: log, Now: time.Now})
		if err != nil {
			t.Fatal(err)
		}
		over := make(chan error, 1)
		go func() { over <- r.Run(ctx) }()
		s := session{fake: f, Raiser: r}
		st := s.until(t, "failed", func(s hostapi.RaiseStatus) bool { return s.State == StateFailed })
		if st.Step != 3 || !strings.Contains(st.Steps[2].Reason, "store ping was not answered within 1m0s") {
			t.Errorf("step %d: %s", st.Step, st.Steps[st.Step-1].Reason)
		}
		cancel()
		if err := <-over; err != nil {
			t.Error(err)
		}
	})
}

func TestFailedAndRerun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := boot(newDisk())
		broken := []mesh.Manifest{{Module: "broker", Resources: []mesh.Resource{
			{ID: "server", Type: mesh.KindContainer, Name: "broker", Args: []string{"broken"}, Seats: []string{"broker"}}}}}
		s := powerOn(t, f, t.TempDir(), "")
		defer s.off()
		req := request()
		req.Manifests = broken
		if _, err := s.Start(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		st := s.until(t, "failed", func(s hostapi.RaiseStatus) bool { return s.State == StateFailed })
		if st.Step != 5 || !strings.Contains(st.Steps[4].Reason, "broker/server is starting") {
			t.Errorf("failed in %d: %s", st.Step, st.Steps[4].Reason)
		}
		_, manifests := testSeed()
		req.Manifests = manifests
		if _, err := s.Start(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		s.until(t, "done", isDone)
	})
}

func TestStartRefusesBadRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := powerOn(t, boot(newDisk()), t.TempDir(), "")
		defer s.off()
		for name, req := range map[string]hostapi.RaiseRequest{
			"no name":  {},
			"bad name": {Mesh: "../home"},
			"manifest": {Mesh: "home", Manifests: []mesh.Manifest{{Module: "web", Resources: []mesh.Resource{{ID: "x", Type: "proces"}}}}},
			"twice":    {Mesh: "home", Manifests: []mesh.Manifest{{Module: "web"}, {Module: "web"}}},
		} {
			_, err := s.Start(t.Context(), req)
			e, ok := err.(*hostapi.Error)
			if !ok || e.Status != 400 || e.Code != mesh.CodeBadParams {
				t.Errorf("%s: %v", name, err)
			}
		}
		if st := s.Raiser.Status(); st.State != StateNone {
			t.Errorf("state %s", st.State)
		}
	})
}

func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := powerOn(t, boot(newDisk()), t.TempDir(), "")
		defer s.off()
		first, err := s.Start(t.Context(), request())
		if err != nil || first.State != StateRunning {
			t.Fatal(first, err)
		}
		// The same request again changes nothing.
		if again, err := s.Start(t.Context(), request()); err != nil || again.Started != first.Started {
			t.Fatal(again, err)
		}
		var last hostapi.RaiseStatus
		step := 0
		for st := range s.Watch(t.Context()) {
			if st.Step < step {
				t.Errorf("step %d after %d", st.Step, step)
			}
			step, last = st.Step, st
		}
		if last.State != StateDone {
			t.Errorf("ended as %s", last.State)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for range s.Watch(ctx) {
		}
	})
}
