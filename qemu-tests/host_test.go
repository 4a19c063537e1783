package qemutests

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
	"kingpost/internal/mesh/verbs"
	"kingpost/qemu-tests/lab"
)

// quickLauncher makes the launcher decide in seconds what it usually gives a minute and more. The limits are checked as
// the usual ones are.
const quickLauncher = " kingpost.launcher=ready=40s,healthy=30s,watchdog=25s,trials=2,delay=200ms,max-delay=2s"

// quick is a machine with quickLauncher.
func quick(extra ...string) lab.Spec {
	b := theLab.Direct()
	b.Cmdline += quickLauncher
	return lab.Spec{Boot: &b, Extra: extra}
}

// TestHostSuccessor pushes hosts to a raised node, good ones and ones that go wrong in every way: each time the right
// host runs in the end, and no process or container is stopped for it.
func TestHostSuccessor(t *testing.T) {
	n, err := theLab.StartRaised(t.Context(), "", quick())
	if n != nil {
		watch(t, n)
	}
	need(t, err, "start a raised node")
	need(t, n.WaitUp(t.Context(), 0), "boot a raised node")
	need(t, n.UntilStatus(t.Context(), lab.StepTime, lab.Settled), "the node to settle")
	c := newCLI(t)
	if out, code := c.run(t, "raise", n.Addr, "--mesh", lab.MeshName, "--key", n.Key); code != 0 {
		t.Fatalf("kingpost raise of a raised node: exit %d: %s", code, out)
	}
	before := running(t, n)
	if len(before) < 6 {
		t.Fatalf("only %v run: there is nothing to be stopped by mistake", before)
	}
	s := &succession{n: n, c: c, before: before, dir: t.TempDir()}

	if !t.Run("good", s.good) {
		return // nothing else would say more
	}
	faults := []string{"crash", "hang-ready", "newer"}
	if *long {
		faults = []string{"crash", "quit", "hang", "hang-ready", "corrupt", "newer"}
	}
	for _, fault := range faults {
		t.Run(fault, func(t *testing.T) { s.bad(t, fault) })
	}
	t.Run("clear", s.clear)
	t.Run("no controller", s.noController)
	t.Run("back", s.back)
}

type succession struct {
	n      *lab.Node
	c      *cli
	dir    string
	before map[string]string
	good1  string // digest of the good host
	number int
}

// running is who runs, as key to pid and time of start. The host itself is left out.
func running(t *testing.T, n *lab.Node) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, r := range status(t, n).Resources {
		if r.PID != 0 && r.Module != mesh.HostModule {
			out[r.Key] = fmt.Sprintf("pid %d since %s, %d restarts", r.PID, r.Since.Format(time.RFC3339Nano), r.Restarts)
		}
	}
	return out
}

// untouched fails the test where anything that ran before was restarted.
func (s *succession) untouched(t *testing.T) {
	t.Helper()
	now := running(t, s.n)
	for key, was := range s.before {
		if now[key] != was {
			t.Errorf("%s was %s, and is %s", key, was, now[key])
		}
	}
}

// program builds a program of the repository into a bundle's folder and returns that.
func (s *succession) program(t *testing.T, pkg, ldflags string) string {
	t.Helper()
	s.number++
	dir := filepath.Join(s.dir, fmt.Sprint(s.number))
	need(t, os.MkdirAll(filepath.Join(dir, "bin"), 0o755), "folder")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags=-s -w "+ldflags, "-o", filepath.Join(dir, "bin", "mesh-host"), pkg)
	cmd.Dir = theLab.Root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	out, err := cmd.CombinedOutput()
	need(t, err, "build %s: %s", pkg, out)
	return dir
}

// push pushes the host as a user does, and returns its digest.
func (s *succession) push(t *testing.T, dir string) string {
	t.Helper()
	out, code := s.c.run(t, "module", "push", filepath.Join(theLab.Root, "images/modules/host"), "--bundle", "mesh-host="+dir)
	if code != 0 {
		t.Fatalf("kingpost module push: exit %d: %s", code, out)
	}
	i := strings.Index(out, "sha256:")
	if i < 0 {
		t.Fatalf("the push names no digest: %s", out)
	}
	return strings.Fields(out[i:])[0]
}

// until waits until check is content with the node and its host's resource.
func (s *succession) until(t *testing.T, what string, check func(*hostapi.Node, hostapi.ResourceStatus) error) {
	t.Helper()
	need(t, lab.Until(t.Context(), lab.StepTime, func(ctx context.Context) error {
		n, err := s.n.Client().Node(ctx)
		if err != nil {
			return err
		}
		st, err := s.n.Client().Status(ctx)
		if err != nil {
			return err
		}
		r, err := lab.Resource(st, mesh.HostKey)
		if err != nil {
			return err
		}
		if err := check(n, r); err != nil {
			return fmt.Errorf("%w: host %s, %s: %s; launcher: %s", err, n.Host.Digest, r.State, r.Reason, lab.JSON(n.Host.Launcher))
		}
		return nil
	}), "%s", what)
}

func (s *succession) good(t *testing.T) {
	first, err := s.n.Client().Node(t.Context())
	need(t, err, "node")
	if first.Host.Digest != mesh.HostBakedIn {
		t.Fatalf("the node begins with the host %s", first.Host.Digest)
	}
	s.good1 = s.push(t, s.program(t, "./cmd/mesh-host", "-X kingpost/qemu-tests.note=successor"))
	start := time.Now()
	s.until(t, "the pushed host to run", func(n *hostapi.Node, r hostapi.ResourceStatus) error {
		if n.Host.Digest != s.good1 || n.Host.PID == first.Host.PID {
			return fmt.Errorf("not yet")
		}
		return nil
	})
	t.Logf("the pushed host answered %.1f s after the push", time.Since(start).Seconds())
	s.until(t, "the pushed host to be good", func(n *hostapi.Node, r hostapi.ResourceStatus) error {
		if r.State != "healthy" || r.Digest != s.good1 || n.Host.Launcher.Good != s.good1 {
			return fmt.Errorf("not yet")
		}
		return nil
	})
	need(t, s.n.UntilStatus(t.Context(), lab.StepTime, lab.Settled), "the node to settle")
	s.untouched(t)
	var st verbs.StatusResult
	call(t, s.n, mesh.SeatController, verbs.Status, nil, &st)
}

// bad pushes a host that goes wrong: the good one runs again, and the other is in quarantine with a reason.
func (s *succession) bad(t *testing.T, fault string) {
	epoch := s.epoch(t)
	m := s.n.Serial.Now()
	digest := s.push(t, s.program(t, "./qemu-tests/badhost", "-X main.fault="+fault))
	waitNode(t, s.n, func(n *hostapi.Node) error {
		if n.Host.Launcher == nil {
			return fmt.Errorf("the launcher says nothing")
		}
		q := n.Host.Launcher.Find(digest)
		if q == nil || !q.Quarantined || n.Host.Digest != s.good1 {
			return fmt.Errorf("the pushed host is not given up: %s", lab.JSON(n.Host))
		}
		t.Logf("given up after %d failures: %s", q.Failures, q.Last)
		return nil
	})
	waitConsole(t, s.n, m, `kingpost: error host sha256:\w+ is given up .*going back to `+s.good1[:19])
	spoilt := fault == "corrupt" || fault == "newer"
	if spoilt {
		waitNode(t, s.n, func(n *hostapi.Node) error {
			for _, file := range []string{"state.json", "declaration.json"} {
				if !slices.ContainsFunc(n.Warnings, func(w string) bool { return strings.Contains(w, file) && strings.Contains(w, "set aside") }) {
					return fmt.Errorf("nothing says that %s was set aside: %q", file, n.Warnings)
				}
			}
			return nil
		})
	}
	// Where the declaration was lost the controller brings it again.
	s.until(t, "the reason to be shown", func(_ *hostapi.Node, r hostapi.ResourceStatus) error {
		if r.State != "held" || !strings.Contains(r.Reason, "times in a row") {
			return fmt.Errorf("not yet")
		}
		return nil
	})
	s.untouched(t)
	if now := s.epoch(t); now != epoch {
		t.Errorf("the controller's epoch was %d and is %d", epoch, now)
	}
	// One more start of the controller works: the epoch was not forgotten with the state.
	if spoilt {
		r := resource(t, s.n, controllerKey)
		s.kill(t, r.PID)
		need(t, s.n.UntilStatus(t.Context(), lab.StepTime, func(st *hostapi.Status) error {
			c, err := lab.Resource(st, controllerKey)
			if err == nil && (c.PID == r.PID || c.State != "healthy" || c.Epoch <= epoch) {
				err = fmt.Errorf("the controller is %s: %s", c.State, lab.JSON(c))
			}
			return err
		}), "the controller to come back in a later term")
		s.before = running(t, s.n)
	}
}

func waitNode(t *testing.T, n *lab.Node, check func(*hostapi.Node) error) {
	t.Helper()
	need(t, lab.Until(t.Context(), lab.StepTime, func(ctx context.Context) error {
		who, err := n.Client().Node(ctx)
		if err != nil {
			return err
		}
		return check(who)
	}), "the node")
}

func (s *succession) epoch(t *testing.T) uint64 {
	t.Helper()
	return resource(t, s.n, controllerKey).Epoch
}

// kill kills a process of the node from inside.
func (s *succession) kill(t *testing.T, pid int) { signalInside(t, s.n, "kill", pid) }

// signalInside has a process of the node do something to another one: see the guest program.
func signalInside(t *testing.T, n *lab.Node, what string, pid int) {
	t.Helper()
	digest := buildGuest(t, n)
	caps := []string{"CAP_KILL", "CAP_SYS_PTRACE"}
	m := mesh.Manifest{Module: "inside", Version: fmt.Sprint(time.Now().UnixNano()), Resources: []mesh.Resource{{
		ID: what, Type: mesh.KindProcess, Bundle: "guest", Args: []string{what, fmt.Sprint(pid)}, Capabilities: caps, Policy: mesh.PolicyOnce,
	}}}
	call(t, n, mesh.SeatController, verbs.Push, verbs.PushParams{Manifest: m, Digests: mesh.Digests{"bundle/guest": {"amd64": digest}}}, nil)
}

// clear lets the last bad one out of quarantine by the operator's program: it is tried again, and fails again.
func (s *succession) clear(t *testing.T) {
	m := s.n.Serial.Now()
	out, code := s.c.run(t, "node", "clear", mesh.HostKey)
	if code != 0 {
		t.Fatalf("kingpost node clear: exit %d: %s", code, out)
	}
	waitConsole(t, s.n, m, `kingpost: host sha256:\w+ is replaced by sha256:`)
	waitConsole(t, s.n, m, `kingpost: error host sha256:\w+ is given up .*going back to `+s.good1[:19])
	s.until(t, "the good host again", func(n *hostapi.Node, r hostapi.ResourceStatus) error {
		if n.Host.Digest != s.good1 {
			return fmt.Errorf("not yet")
		}
		return nil
	})
	if out, code := s.c.run(t, "node", "hosts"); code != 0 || !strings.Contains(out, "quarantine") {
		t.Errorf("kingpost node hosts: exit %d: %s", code, out)
	}
}

// noController takes the controller away and declares a good host: that it cannot reach a controller is no reason to
// revert.
func (s *succession) noController(t *testing.T) {
	// Brought into the store by a push that is held.
	dir := s.program(t, "./qemu-tests/badhost", "-X main.fault=")
	out, code := s.c.run(t, "module", "push", filepath.Join(theLab.Root, "images/modules/host"), "--bundle", "mesh-host="+dir, "--hold")
	if code != 0 {
		t.Fatalf("kingpost module push --hold: exit %d: %s", code, out)
	}
	digest := strings.Fields(out[strings.Index(out, "sha256:"):])[0]
	d, err := s.n.Client().Declaration(t.Context())
	need(t, err, "declaration")
	d.Revision++
	d.Writer = "operator"
	d.Resources = slices.DeleteFunc(d.Resources, func(r mesh.Declared) bool { return r.Key() == controllerKey })
	d.Host().Digest = digest
	need(t, s.n.Client().Declare(t.Context(), d), "declare another host, and no controller")
	s.until(t, "the host to be good without a controller", func(n *hostapi.Node, r hostapi.ResourceStatus) error {
		if n.Host.Digest != digest || r.State != "healthy" || n.Host.Launcher.Good != digest {
			return fmt.Errorf("not yet")
		}
		return nil
	})
	delete(s.before, controllerKey)
	s.untouched(t)
}

// back declares no host any more: the release's own takes over.
func (s *succession) back(t *testing.T) {
	d, err := s.n.Client().Declaration(t.Context())
	need(t, err, "declaration")
	d.Revision++
	// The test's own helper goes too: with the state that was set aside the host has forgotten that it has run.
	d.Resources = slices.DeleteFunc(d.Resources, func(r mesh.Declared) bool { return r.Module == mesh.HostModule || r.Module == "inside" })
	need(t, s.n.Client().Declare(t.Context(), d), "declare no host")
	waitNode(t, s.n, func(n *hostapi.Node) error {
		if n.Host.Digest != mesh.HostBakedIn || n.Host.Launcher == nil || !n.Host.Launcher.Proven {
			return fmt.Errorf("the host is %s", lab.JSON(n.Host))
		}
		return nil
	})
	need(t, s.n.UntilStatus(t.Context(), lab.StepTime, lab.Settled), "the node to settle")
	s.untouched(t)
}
