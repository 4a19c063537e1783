package supervise

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
)

func unmount(p string) { _ = unix.Unmount(p, unix.MNT_DETACH) }

type looked struct {
	UID        int             `json:"uid"`
	CapEff     string          `json:"CapEff"`
	CapBnd     string          `json:"CapBnd"`
	CapAmb     string          `json:"CapAmb"`
	NoNewPrivs string          `json:"NoNewPrivs"`
	Groups     string          `json:"Groups"`
	Write      map[string]bool `json:"write"`
	Others     int             `json:"others"`
	Env        []string        `json:"env"`
}

func TestView(t *testing.T) {
	for _, form := range []mesh.Kind{mesh.KindProcess, mesh.KindContainer} {
		t.Run(string(form), func(t *testing.T) {
			n := newNode(t)
			if err := os.WriteFile(n.cfg.HostSocket, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			d := n.process("a", "look", "/etc/demo.conf", "/run/kingpost/identity/key.pem", "/etc/passwd", "/proc/1/environ")
			if form == mesh.KindContainer {
				d = n.container("a", d.Args...)
			}
			d.Volumes = []mesh.Mount{{Volume: "data", Path: "/data"}}
			d.Files = []mesh.Mount{{File: "conf", Path: "/etc/demo.conf"}}
			d.Identity, d.HostAPI, d.Seats = true, true, []string{"demo"}
			d.Capabilities = []string{"CAP_NET_BIND_SERVICE"}
			d.Env = map[string]string{"GREETING": "hello"}
			others := processesOf(t, firstUID)
			vol := mesh.Declared{Module: "m", Resource: mesh.Resource{ID: "data", Type: mesh.KindVolume}}
			conf := mesh.Declared{Module: "m", Resource: mesh.Resource{ID: "conf", Type: mesh.KindFile, Content: "configured", Mode: "0400"}}
			n.declare(vol, conf, d)
			n.settled()
			line := n.said("m/a", `"write":`)
			if !strings.Contains(line, "configured") || !strings.Contains(line, "key of m") {
				t.Errorf("files are missing: %s", line)
			}
			var l looked
			if err := json.Unmarshal([]byte(line[strings.IndexByte(line, '{'):]), &l); err != nil {
				t.Fatal(err)
			}
			if l.UID != firstUID || l.CapEff != "0000000000000400" || l.CapBnd != l.CapEff || l.CapAmb != l.CapEff || l.NoNewPrivs != "1" || l.Groups != "" {
				t.Errorf("privileges: %+v", l)
			}
			for dir, want := range map[string]bool{"/": false, "/usr": false, "/etc": false, "/app": false, "/tmp": true, "/data": true, "/run/kingpost/identity": false, "/run/kingpost/seat": true} {
				if l.Write[dir] != want {
					t.Errorf("can write to %s: %t", dir, l.Write[dir])
				}
			}
			// A process form sees those of its own account, which somebody else on this machine may happen to have.
			if l.Others > others || form == mesh.KindContainer && l.Others != 0 {
				t.Errorf("it sees %d other processes, %d have its account", l.Others, others)
			}
			if !slices.Contains(l.Env, "GREETING=hello") || !slices.Contains(l.Env, "KINGPOST_MODULE=m") || !slices.Contains(l.Env, mesh.EnvSeatSocket+"=/run/kingpost/seat/seat.sock") {
				t.Errorf("environment: %q", l.Env)
			}
			if m, ok := n.s.AccountOf(firstUID); m != "m" || !ok {
				t.Errorf("account: %q", m)
			}
			st := n.s.Status()
			if r := st.Resources[2]; r.PID == 0 || r.Source != mesh.SourceSeed || r.Digest != d.Digest {
				t.Errorf("status: %+v", r)
			}
		})
	}
}

// processesOf counts the processes of an account on this machine.
func processesOf(t *testing.T, uid int) (n int) {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		if st, err := os.Stat(dir); err == nil && int(st.Sys().(*syscall.Stat_t).Uid) == uid {
			n++
		}
	}
	return n
}

func healthy(r hostapi.ResourceStatus) bool { return r.State == "healthy" }

func seated(d mesh.Declared) mesh.Declared {
	d.Seats = []string{mesh.SeatController}
	d.Health = &mesh.Health{Seat: true, Interval: mesh.Duration(200 * time.Millisecond), Start: mesh.Duration(2 * time.Second)}
	d.Volumes = []mesh.Mount{{Volume: "data", Path: "/data"}}
	return d
}

// TestHandover goes from process to container and back, then to one that never becomes healthy.
func TestHandover(t *testing.T) {
	n := newNode(t)
	vol := mesh.Declared{Module: "m", Resource: mesh.Resource{ID: "data", Type: mesh.KindVolume}}
	p, c := seated(n.process("a", "serve")), seated(n.container("a", "serve"))
	n.declare(vol, p)
	n.settled()
	first := n.state("m/a", "healthy")
	if first.Epoch != 1 {
		t.Errorf("the first epoch is %d", first.Epoch)
	}
	conn, err := n.s.DialSeat(context.Background(), mesh.SeatController)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()

	n.declare(vol, c)
	n.settled()
	if r := n.state("m/a", "healthy"); r.Type != mesh.KindContainer || r.Epoch != 2 || r.PID == first.PID {
		t.Errorf("after the handover: %+v", r)
	}
	n.declare(vol, p)
	n.settled()

	sick := seated(n.container("a", "sick"))
	n.declare(vol, sick)
	back := n.until("m/a", "back", func(r hostapi.ResourceStatus) bool {
		return r.State == "healthy" && strings.Contains(r.Reason, "what is declared failed")
	})
	if back.Type != mesh.KindProcess || back.Epoch != 5 || !strings.Contains(back.Reason, "500") {
		t.Errorf("the way back: %+v", back)
	}
	if n.s.Status().Settled {
		t.Error("a fallback counts as settled")
	}
	// It is remembered across a reboot and across a declaration of the same.
	n.reboot()
	n.decl.Epoch = n.s.Epoch()
	n.declare(vol, sick)
	n.until("m/a", "back again", func(r hostapi.ResourceStatus) bool { return r.Type == mesh.KindProcess && healthy(r) })
	// A corrected one ends it.
	c.Env = map[string]string{"GREETING": "corrected"}
	n.declare(vol, c)
	n.settled()
	n.said("m/a", "greeting corrected")
}

// TestCorrectedCheck: a handover that failed by its check alone is tried again when nothing but the check is corrected.
func TestCorrectedCheck(t *testing.T) {
	n := newNode(t)
	vol := mesh.Declared{Module: "m", Resource: mesh.Resource{ID: "data", Type: mesh.KindVolume}}
	n.declare(vol, seated(n.process("a", "serve")))
	n.settled()
	next := seated(n.process("a", "serve"))
	next.Env = map[string]string{"GREETING": "next"}
	bad := next
	bad.Health = &mesh.Health{TCP: "127.0.0.1:9", Start: mesh.Duration(2 * time.Second), Interval: mesh.Duration(100 * time.Millisecond)}
	n.declare(vol, bad)
	n.until("m/a", "back", func(r hostapi.ResourceStatus) bool {
		return r.State == "healthy" && strings.Contains(r.Reason, "what is declared failed")
	})
	time.Sleep(3 * time.Second) // longer than the bad check allows: it must not count for what runs now
	if r := n.state("m/a", "healthy"); !strings.Contains(r.Reason, "what is declared failed") {
		t.Errorf("the last good one: %+v", r)
	}
	n.decl.Epoch = n.s.Epoch()
	n.declare(vol, next)
	n.settled()
	n.said("m/a", "greeting next")
}

// TestPowerCutInHandover: after a cut in the middle of a handover the declared spec is tried, not forgotten.
func TestPowerCutInHandover(t *testing.T) {
	n := newNode(t)
	vol := mesh.Declared{Module: "m", Resource: mesh.Resource{ID: "data", Type: mesh.KindVolume}}
	n.declare(vol, seated(n.process("a", "serve")))
	n.settled()
	sick := seated(n.process("a", "sick"))
	n.declare(vol, sick)
	n.until("m/a", "starting", func(r hostapi.ResourceStatus) bool { return r.State == "starting" && r.PID != 0 })
	n.reboot()
	n.until("m/a", "tried again", func(r hostapi.ResourceStatus) bool { return r.State == "starting" && r.PID != 0 })
	n.until("m/a", "back", func(r hostapi.ResourceStatus) bool {
		return healthy(r) && strings.Contains(r.Reason, "what is declared failed")
	})
}

func TestAdoption(t *testing.T) {
	n := newNode(t)
	vol := mesh.Declared{Module: "m", Resource: mesh.Resource{ID: "data", Type: mesh.KindVolume}}
	p := seated(n.process("a", "serve"))
	c := n.container("b", "look")
	dies := n.process("c", "look")
	n.declare(vol, p, c, dies)
	n.settled()
	a, b, d := n.state("m/a", "healthy"), n.state("m/b", "running"), n.state("m/c", "running")
	n.stop()
	if err := unix.Kill(d.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	n.start()
	n.until("m/c", "started again", func(r hostapi.ResourceStatus) bool { return r.State == "running" && r.PID != d.PID })
	a2, b2 := n.state("m/a", "healthy"), n.state("m/b", "running")
	if a2.PID != a.PID || b2.PID != b.PID || !a2.Since.Equal(a.Since) || a2.Epoch != a.Epoch {
		t.Errorf("not adopted: %+v %+v", a2, b2)
	}
	if c := n.until("m/c", "its exit", func(r hostapi.ResourceStatus) bool { return r.Exit != nil }); *c.Exit != 128+9 {
		t.Errorf("the exit while there was no host: %+v", *c.Exit)
	}
	// What is not declared any more is stopped, its data kept.
	if err := os.WriteFile(filepath.Join(n.s.volumeDir("m", "data"), "kept"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n.stop()
	n.start()
	n.declare()
	n.settled()
	for range 200 {
		if len(n.s.Status().Resources) == 0 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if rs := n.s.Status().Resources; len(rs) != 0 {
		t.Errorf("left: %+v", rs)
	}
	if !exists(filepath.Join(n.s.volumeDir("m", "data"), "kept")) {
		t.Error("the volume's data is gone")
	}
}

func TestPolicy(t *testing.T) {
	n := newNode(t)
	once, onFailure, always := n.process("once", "exit", "0"), n.process("onfailure", "exit", "3"), n.process("always", "exit", "0")
	once.Policy, onFailure.Policy = mesh.PolicyOnce, mesh.PolicyOnFailure
	missing := n.process("missing")
	missing.Command = "bin/absent"
	n.declare(once, onFailure, always, missing)
	if r := n.state("m/once", "done"); r.Exit == nil || *r.Exit != 0 {
		t.Errorf("once: %+v", r)
	}
	for _, key := range []string{"m/onfailure", "m/always"} {
		n.until(key, "restarted", func(r hostapi.ResourceStatus) bool { return r.Restarts >= 2 || r.State == "backoff" })
	}
	r := n.until("m/missing", "in backoff", func(r hostapi.ResourceStatus) bool { return r.State == "backoff" })
	if !strings.Contains(r.Reason, "no such file") {
		t.Errorf("the reason is %q", r.Reason)
	}
	n.reboot()
	n.state("m/once", "done")
	if strings.Count(n.log("m/once"), "exits with") != 1 {
		t.Errorf("a completed run was run again: %s", n.log("m/once"))
	}
}

func TestHold(t *testing.T) {
	n := newNode(t)
	n.declare(n.process("a", "exit", "7"))
	u, err := n.s.unit("m/a")
	if err != nil {
		t.Fatal(err)
	}
	n.state("m/a", "backoff")
	// The last tries are a minute apart: the count is put where it would be by then.
	u.save(func(s *unitState) { s.Failures = maxFailures - 1 })
	r := n.state("m/a", "held")
	if !strings.Contains(r.Reason, "exited with code 7") || !strings.Contains(r.Reason, "10 times") {
		t.Errorf("held because %q", r.Reason)
	}
	n.reboot()
	n.state("m/a", "held")
	if err := n.s.Clear("m/a"); err != nil {
		t.Fatal(err)
	}
	n.state("m/a", "backoff")
	if err := n.s.Clear("m/b"); err == nil {
		t.Error("an unknown resource was cleared")
	}
}

func TestStop(t *testing.T) {
	n := newNode(t)
	first, second := n.process("first", "stubborn"), seated(n.container("second", "serve"))
	second.Volumes = nil
	second.After = []string{"first"}
	first.Stop.Grace = mesh.Duration(300 * time.Millisecond)
	n.declare(second, first)
	n.settled()
	n.said("m/first", "stubborn")
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := n.s.StopAll(ctx); err != nil {
		t.Fatal(err)
	}
	if l := n.log("m/second"); !strings.Contains(l, "told to stop") {
		t.Errorf("no orderly stop: %s", l)
	}
	for _, r := range n.s.Status().Resources {
		if r.PID != 0 {
			t.Errorf("alive: %+v", r)
		}
	}
}

func TestRestart(t *testing.T) {
	n := newNode(t)
	p := seated(n.process("a", "serve"))
	p.Volumes = nil
	n.declare(p)
	n.settled()
	before := n.state("m/a", "healthy")
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	n.s.SetSeed(false)
	if err := n.s.Restart(ctx, "m/a"); err != nil {
		t.Fatal(err)
	}
	after := n.state("m/a", "healthy")
	if after.PID == before.PID || after.Epoch != before.Epoch+1 {
		t.Errorf("before %+v, after %+v", before, after)
	}
}

func TestRepair(t *testing.T) {
	n := newNode(t)
	n.declare(n.process("a", "look"))
	n.settled()
	n.declare()
	n.settled()
	program := filepath.Join(n.s.content.folder(mesh.ArtifactBundle, mesh.SourceSeed, n.digest["bundle/demo"]), "files/bin/demo")
	if err := os.Truncate(program, 1000); err != nil && !errors.Is(err, unix.EPERM) {
		t.Fatal(err)
	}
	n.declare(n.process("a", "look"))
	n.settled()
	if st, err := os.Stat(program); err != nil || st.Size() < 100000 {
		t.Errorf("not repaired: %v %v", st, err)
	}
}

func TestStoreNotThere(t *testing.T) {
	n := newNode(t)
	d := n.process("a", "look")
	d.Source = mesh.SourceStore
	n.declare(d)
	r := n.state("m/a", "fetching")
	if !strings.Contains(r.Reason, "no artifact store runs here") {
		t.Errorf("the reason is %q", r.Reason)
	}
	// It waits, it does not fail.
	if st := n.s.state.get("m/a"); st.Failures != 0 {
		t.Errorf("counted as failure: %+v", st)
	}
	d.Source = mesh.SourceAny
	n.declare(d)
	n.settled()
}

func TestHealthCommand(t *testing.T) {
	for _, form := range []string{"process", "container"} {
		t.Run(form, func(t *testing.T) {
			n := newNode(t)
			d := n.process("a", "look")
			d.Health = &mesh.Health{Command: []string{"/app/bin/demo", "exit", "0"}}
			if form == "container" {
				d = n.container("a", "look")
				d.Health = &mesh.Health{Command: []string{"/bin/demo", "exit", "0"}}
			}
			n.declare(d)
			n.settled()
			bad := d
			bad.Health = &mesh.Health{Command: []string{d.Health.Command[0], "exit", "5"}, Interval: mesh.Duration(100 * time.Millisecond), Retries: 2}
			n.declare(bad)
			r := n.until("m/a", "unhealthy", func(r hostapi.ResourceStatus) bool { return strings.Contains(r.Reason, "exit status 5") })
			if !strings.Contains(r.Reason, "exits with 5") {
				t.Errorf("the reason is %q", r.Reason)
			}
		})
	}
}

func TestDeclareRefused(t *testing.T) {
	n := newNode(t)
	n.cfg.Mesh = nil
	p := seated(n.process("a", "serve"))
	p.Volumes = nil
	n.declare(p)
	n.settled()
	good := n.decl
	for name, c := range map[string]struct {
		change func(*mesh.Declaration)
		code   string
	}{
		"older revision":           {func(d *mesh.Declaration) { d.Epoch, d.Revision = 0, 0 }, mesh.CodeConflict},
		"same version, other text": {func(d *mesh.Declaration) { d.Writer = "somebody" }, mesh.CodeConflict},
		"older epoch":              {func(d *mesh.Declaration) { d.Revision++ }, mesh.CodeConflict},
		"invalid":                  {func(d *mesh.Declaration) { d.Revision++; d.Resources[0].Account = "root" }, mesh.CodeBadParams},
	} {
		t.Run(name, func(t *testing.T) {
			d := good
			d.Resources = slices.Clone(good.Resources)
			c.change(&d)
			var ce *mesh.CallError
			if err := n.s.Declare(context.Background(), d); !errors.As(err, &ce) || ce.Code != c.code {
				t.Errorf("got %v", err)
			}
		})
	}
	if err := n.s.Declare(context.Background(), good); err != nil {
		t.Errorf("the same again: %v", err)
	}
}

// TestStopAllWhileAResourceGoes stops everything at the moment in which something is being stopped because it is no longer
// declared: what is gone by then is not waited for.
func TestStopAllWhileAResourceGoes(t *testing.T) {
	n := newNode(t)
	n.declare(n.process("a", "idle"))
	n.settled()
	n.declare()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	if err := n.s.StopAll(ctx); err != nil {
		t.Error(err)
	}
}
