package supervise

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
)

func TestExclusive(t *testing.T) {
	base := func() *spec {
		return &spec{Declared: mesh.Declared{Module: "m", Resource: mesh.Resource{ID: "a", Type: mesh.KindProcess, Bundle: "b"}}}
	}
	vol := func(readOnly bool) []mesh.Mount {
		return []mesh.Mount{{Volume: "data", Path: "/data", ReadOnly: readOnly}}
	}
	private := func(sp *spec, ports ...mesh.Port) { sp.Type, sp.Name, sp.Ports = mesh.KindContainer, "c", ports }
	for name, c := range map[string]struct {
		change  func(old, next *spec)
		listens []string
		want    string
	}{
		"nothing":                {func(old, next *spec) {}, nil, ""},
		"asked for":              {func(old, next *spec) { next.Handover = mesh.HandoverStopStart }, nil, "asks for it"},
		"once":                   {func(old, next *spec) { next.Policy = mesh.PolicyOnce }, nil, "not doubled"},
		"controller":             {func(old, next *spec) { old.Seats = []string{mesh.SeatController} }, nil, "one controller"},
		"another seat":           {func(old, next *spec) { old.Seats, next.Seats = []string{"shop"}, []string{"shop"} }, nil, ""},
		"volume":                 {func(old, next *spec) { old.Volumes, next.Volumes = vol(false), vol(false) }, nil, "the volume data"},
		"volume that one writes": {func(old, next *spec) { old.Volumes, next.Volumes = vol(true), vol(false) }, nil, "the volume data"},
		"volume that both read":  {func(old, next *spec) { old.Volumes, next.Volumes = vol(true), vol(true) }, nil, ""},
		"volume of the new one":  {func(old, next *spec) { next.Volumes = vol(false) }, nil, ""},
		"published port":         {func(old, next *spec) { private(old, mesh.Port{Host: 80}); private(next, mesh.Port{Host: 80}) }, nil, ""}, // its rules lead to one at a time
		"tcp and udp": {func(old, next *spec) {
			private(old, mesh.Port{Host: 80})
			private(next, mesh.Port{Host: 80, Protocol: "udp"})
		}, nil, ""},
		"listens":                       {func(old, next *spec) {}, []string{"tcp port 80"}, "tcp port 80"},
		"listens, the new one does not": {func(old, next *spec) { private(next) }, []string{"tcp port 80"}, ""},
		"a port is asked":               {func(old, next *spec) { next.Health = &mesh.Health{TCP: "127.0.0.1:81"} }, nil, "port 81"},
		"a page is asked":               {func(old, next *spec) { next.Ready = &mesh.Health{HTTP: "http://localhost/"} }, nil, "port 80"},
		"a socket is asked":             {func(old, next *spec) { next.Health = &mesh.Health{HTTP: "unix:/x:/"} }, nil, ""},
		"a private port is asked": {func(old, next *spec) {
			private(old)
			private(next)
			next.Health = &mesh.Health{TCP: "127.0.0.1:81"}
		}, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			old, next := base(), base()
			c.change(old, next)
			if got := exclusive(old, next, c.listens); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
				t.Errorf("got %q, wanted %q", got, c.want)
			}
		})
	}
}

// shop is a holder of a seat that shares nothing.
func shop(d mesh.Declared) mesh.Declared {
	d.Seats = []string{"shop"}
	d.Health = &mesh.Health{Seat: true, Interval: mesh.Duration(100 * time.Millisecond), Start: mesh.Duration(3 * time.Second)}
	return d
}

// asking calls a seat again and again until stop, which says how often nobody answered.
func (n *node) asking(seat string) (stop func() (asked int, failed []error)) {
	ctx, cancel := context.WithCancel(n.t.Context())
	var wg sync.WaitGroup
	asked, failed := 0, []error(nil)
	wg.Go(func() {
		for ctx.Err() == nil {
			asked++
			c, err := n.s.DialSeat(ctx, seat)
			if err == nil {
				c.Close()
			} else if ctx.Err() == nil {
				failed = append(failed, err)
			}
			time.Sleep(5 * time.Millisecond)
		}
	})
	return func() (int, []error) {
		cancel()
		wg.Wait()
		return asked, failed
	}
}

// TestOverlap: what shares nothing exclusive is there throughout, from process to container and back.
func TestOverlap(t *testing.T) {
	n := newNode(t)
	p, c := shop(n.process("a", "serve")), shop(n.container("a", "serve"))
	n.declare(p)
	n.settled()
	first := n.state("m/a", "healthy")
	stop := n.asking("shop")
	for i, d := range []mesh.Declared{c, p, c} {
		n.declare(d)
		n.settled()
		r := n.state("m/a", "healthy")
		if r.Type != d.Type || r.PID == first.PID || r.Handover == nil || r.Handover.Way != mesh.HandoverOverlap || r.Handover.State != "done" || r.Handover.Why == "" {
			t.Errorf("handover %d: %+v %+v", i, r, r.Handover)
		}
		first = r
	}
	if asked, failed := stop(); len(failed) > 0 || asked < 20 {
		t.Errorf("of %d calls %d were not answered: %v", asked, len(failed), failed)
	}
	// One that never gets healthy leaves the old one running, untouched.
	sick := shop(n.process("a", "sick"))
	n.declare(sick)
	r := n.until("m/a", "given up", func(r hostapi.ResourceStatus) bool {
		return healthy(r) && strings.Contains(r.Reason, "what is declared failed")
	})
	if r.PID != first.PID || r.Handover.State != "failed" || !strings.Contains(r.Reason, "500") {
		t.Errorf("after one that is sick: %+v %+v", r, r.Handover)
	}
	if n.s.Status().Settled {
		t.Error("it counts as settled")
	}
	// So does one that ends at once, after three tries.
	n.declare(shop(n.process("a", "exit", "4")))
	r = n.until("m/a", "given up again", func(r hostapi.ResourceStatus) bool {
		return strings.Contains(r.Reason, "code 4") && r.Handover.State == "failed"
	})
	if r.PID != first.PID {
		t.Errorf("after one that ends: %+v", r)
	}
	n.noLeftovers(1)
}

// noLeftovers checks that there are as many cgroups and run folders as instances.
func (n *node) noLeftovers(instances int) {
	n.t.Helper()
	count := func(dir string) int {
		k := 0
		es, _ := os.ReadDir(dir)
		for _, e := range es {
			if e.IsDir() {
				k++
			}
		}
		return k
	}
	var got [2]int
	for range 250 {
		got = [2]int{count(n.cfg.Cgroups), count(filepath.Join(n.cfg.Run, "instances"))}
		if got == [2]int{instances, instances} {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	n.t.Errorf("%d cgroups and %d run folders are there for %d instances", got[0], got[1], instances)
}

// TestOverlapPort: a port that the old one is seen to listen on is a reason to stop it first.
func TestOverlapPort(t *testing.T) {
	n := newNode(t)
	d := n.process("a", "tcp", "127.0.0.1:18431")
	n.declare(d)
	n.said("m/a", "listening")
	for i := 0; n.s.good("m/a") == nil; i++ {
		if i == 100 {
			t.Fatal("it does not become good")
		}
		time.Sleep(100 * time.Millisecond)
	}
	d.Env = map[string]string{"NEXT": "1"}
	n.declare(d)
	n.settled()
	r := n.until("m/a", "handed over", func(r hostapi.ResourceStatus) bool { return r.Handover != nil && r.Handover.State == "done" })
	if r.Handover.Way != mesh.HandoverStopStart || !strings.Contains(r.Handover.Why, "tcp port 18431") {
		t.Errorf("%+v", r.Handover)
	}
}

// TestOverlapHostDies: a host that dies in the middle of an overlap leaves both, and the next one goes on.
func TestOverlapHostDies(t *testing.T) {
	n := newNode(t)
	n.declare(shop(n.process("a", "serve")))
	n.settled()
	old := n.state("m/a", "healthy")
	late := shop(n.process("a", "serve", "after", "2s"))
	late.Health.Start = mesh.Duration(20 * time.Second)
	n.declare(late)
	r := n.until("m/a", "overlapping", func(r hostapi.ResourceStatus) bool { return r.Handover != nil && r.Handover.PID != 0 })
	if r.PID != old.PID || r.State != "healthy" {
		t.Errorf("while it overlaps: %+v", r)
	}
	next := r.Handover.PID
	n.stop()
	n.start()
	n.settled()
	if r := n.state("m/a", "healthy"); r.PID != next {
		t.Errorf("process %d has taken over, wanted %d: %+v", r.PID, next, r)
	}
	n.noLeftovers(1)
	// And where the old one dies as well, the new one is it.
	late.Args = []string{"serve", "after", "3s"}
	n.declare(late)
	r = n.until("m/a", "overlapping again", func(r hostapi.ResourceStatus) bool { return r.Handover != nil && r.Handover.PID != 0 })
	n.stop()
	if err := unix.Kill(r.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	n.start()
	n.settled()
	if got := n.state("m/a", "healthy"); got.PID != r.Handover.PID {
		t.Errorf("process %d has taken over, wanted %d", got.PID, r.Handover.PID)
	}
	n.noLeftovers(1)
}

// TestReady: readiness gates what comes after and takes nothing down; health does.
func TestReady(t *testing.T) {
	n := newNode(t)
	flagFile := filepath.Join(n.s.volumeDir("m", "data"), "ready")
	vol := mesh.Declared{Module: "m", Resource: mesh.Resource{ID: "data", Type: mesh.KindVolume}}
	a, b := n.process("a", "look"), n.process("b", "look")
	a.Volumes = []mesh.Mount{{Volume: "data", Path: "/data"}}
	a.Ready = &mesh.Health{Command: []string{"/app/bin/demo", "has", "/data/ready"}, Interval: mesh.Duration(100 * time.Millisecond), Retries: 2}
	b.After = []string{"a"}
	n.declare(vol, a, b)
	n.until("m/b", "waiting for a", func(r hostapi.ResourceStatus) bool { return strings.Contains(r.Reason, "waits for m/a") })
	r := n.until("m/a", "not ready", func(r hostapi.ResourceStatus) bool { return r.PID != 0 && strings.Contains(r.Reason, "exit status") })
	if r.Ready || n.s.Status().Settled {
		t.Errorf("it counts as ready: %+v", r)
	}
	touch := func() {
		t.Helper()
		if err := os.WriteFile(flagFile, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	touch()
	n.settled()
	if got := n.state("m/a", "healthy"); got.PID != r.PID || !got.Ready {
		t.Errorf("after it became ready: %+v", got)
	}
	running := n.state("m/b", "running")
	if err := os.Remove(flagFile); err != nil {
		t.Fatal(err)
	}
	got := n.state("m/a", "unready")
	if got.PID != r.PID || got.Restarts != r.Restarts || n.s.Status().Settled {
		t.Errorf("one that is no longer ready: %+v", got)
	}
	if b := n.state("m/b", "running"); b.PID != running.PID {
		t.Error("what came after it was started again")
	}
	touch()
	n.settled()
	// Declared as health, the same check takes it down.
	a.Health, a.Ready = a.Ready, nil
	n.declare(vol, a, b)
	n.settled()
	if err := os.Remove(flagFile); err != nil {
		t.Fatal(err)
	}
	n.until("m/a", "started again", func(r hostapi.ResourceStatus) bool { return r.PID != 0 && r.PID != got.PID })
}

// TestNever: it is started once in a boot, and how it ended is kept and shown.
func TestNever(t *testing.T) {
	n := newNode(t)
	never, well, jobs := n.process("never", "exit", "6"), n.process("well", "exit", "0"), n.process("jobs", "exit", "0")
	never.Policy, well.Policy, jobs.Policy = mesh.PolicyNever, mesh.PolicyNever, mesh.PolicyOnFailure
	n.declare(never, well, jobs)
	r := n.state("m/never", "failed")
	if r.Exit == nil || *r.Exit != 6 || !strings.Contains(r.Reason, "code 6") {
		t.Errorf("never: %+v", r)
	}
	for _, key := range []string{"m/well", "m/jobs"} {
		if r := n.state(key, "done"); r.Exit == nil || *r.Exit != 0 {
			t.Errorf("%s: %+v", key, r)
		}
	}
	// Another host does not run them again; another boot does.
	for _, runs := range []int{1, 2} {
		for key, state := range map[string]string{"m/never": "failed", "m/well": "done", "m/jobs": "done"} {
			n.until(key, fmt.Sprintf("run %d times", runs), func(r hostapi.ResourceStatus) bool {
				return r.State == state && strings.Count(n.log(key), "exits with") >= runs
			})
			if got := strings.Count(n.log(key), "exits with"); got != runs {
				t.Errorf("%s was run %d times, wanted %d", key, got, runs)
			}
		}
		if runs == 1 {
			n.stop()
			n.start()
			n.state("m/never", "failed")
			n.state("m/jobs", "done")
			n.reboot()
		}
	}
	if err := n.s.Clear("m/never"); err != nil {
		t.Fatal(err)
	}
	n.until("m/never", "run again", func(hostapi.ResourceStatus) bool { return strings.Count(n.log("m/never"), "exits with") == 3 })
}

// TestAccounts: numbers are given once, outlive a reboot and an absence, and files belong to them.
func TestAccounts(t *testing.T) {
	n := newNode(t)
	vol := mesh.Declared{Module: "m", Resource: mesh.Resource{ID: "data", Type: mesh.KindVolume}}
	a := n.process("a", "write", "/data/mine")
	a.Volumes = []mesh.Mount{{Volume: "data", Path: "/data"}}
	other := n.process("a", "look")
	other.Module = "other"
	named := n.process("named", "look")
	named.Account = "helper"
	n.declare(vol, a, other, named)
	n.settled()
	n.said("m/a", "written")
	uids := func() map[string]int {
		out := map[string]int{}
		for _, k := range []string{"m", "m/helper", "other"} {
			uid, err := n.s.accounts.uid(k)
			if err != nil {
				t.Fatal(err)
			}
			out[k] = uid
		}
		return out
	}
	before := uids()
	if before["m"] == before["other"] || before["m"] == before["m/helper"] {
		t.Errorf("an account is shared: %v", before)
	}
	var st unix.Stat_t
	for _, p := range []string{"", "mine"} {
		if err := unix.Stat(filepath.Join(n.s.volumeDir("m", "data"), p), &st); err != nil || int(st.Uid) != before["m"] {
			t.Errorf("/data/%s belongs to %d, wanted %d: %v", p, st.Uid, before["m"], err)
		}
	}
	n.declare(other) // m goes away
	n.settled()
	n.reboot()
	third := n.process("a", "look")
	third.Module = "third"
	n.declare(other, third)
	n.settled()
	n.declare(vol, a, other, named, third)
	n.settled()
	if after := uids(); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("accounts were %v and are %v", before, after)
	}
}

// TestPrivateTmp: what one writes to /tmp no other sees, and the next run does not either.
func TestPrivateTmp(t *testing.T) {
	for _, form := range []mesh.Kind{mesh.KindProcess, mesh.KindContainer} {
		t.Run(string(form), func(t *testing.T) {
			n := newNode(t)
			make := n.process
			if form == mesh.KindContainer {
				make = n.container
			}
			n.declare(make("a", "write", "/tmp/secret"))
			n.settled()
			n.said("m/a", "written")
			if exists("/tmp/secret") {
				t.Error("it is on the node")
			}
			n.declare(make("a", "write", "/tmp/secret"), make("b", "look", "/tmp/secret"))
			n.settled()
			n.said("m/b", "no such file")
		})
	}
}

// TestGrandchildren: a daemon that a workload leaves behind, holding its log pipe, ends with it.
func TestGrandchildren(t *testing.T) {
	n := newNode(t)
	n.declare(n.process("a", "daemon"))
	n.said("m/a", "child")
	n.until("m/a", "started again", func(r hostapi.ResourceStatus) bool { return r.Restarts >= 1 })
	n.declare()
	n.settled()
	n.noLeftovers(0)
}
