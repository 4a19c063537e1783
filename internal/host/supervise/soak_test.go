package supervise

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kingpost/internal/mesh"
)

// TestSoak runs 200 resources and kills processes, containers and the host at random. At the end what is declared is what
// is observed, and nothing is left over: no process, mount, cgroup, file or goroutine.
func TestSoak(t *testing.T) {
	if *soak == 0 {
		t.Skip("-soak DURATION runs it")
	}
	h := newRealHost(t)
	var rs []mesh.Declared
	const processes, containers, files = 150, 20, 30
	for i := range processes {
		rs = append(rs, h.n.process(fmt.Sprintf("p%d", i), "idle"))
	}
	for i := range containers {
		rs = append(rs, h.n.container(fmt.Sprintf("c%d", i), "idle"))
	}
	for i := range files {
		rs = append(rs, mesh.Declared{Module: "m", Resource: mesh.Resource{ID: fmt.Sprintf("f%d", i), Type: mesh.KindFile, Content: "text"}})
	}
	h.declare(rs)
	h.settled(5 * time.Minute)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	deaths, hosts := 0, 0
	pids := func() []int {
		es, _ := os.ReadDir(h.n.cfg.Cgroups)
		var out []int
		for _, e := range es {
			if e.IsDir() {
				c := cgroups{dir: h.n.cfg.Cgroups}
				out = append(out, c.pids(e.Name())...)
			}
		}
		return out
	}
	end := time.Now().Add(*soak)
	for time.Now().Before(end) {
		switch r.IntN(20) {
		case 0:
			h.kill(unix.SIGKILL)
			time.Sleep(time.Duration(r.IntN(300)) * time.Millisecond)
			h.start()
			hosts++
		case 1: // a new version of one resource
			i := r.IntN(processes + containers)
			rs[i].Env = map[string]string{"VERSION": fmt.Sprint(deaths)}
			h.declare(rs)
		case 2: // one goes and comes back
			i := r.IntN(processes)
			h.declare(append(append([]mesh.Declared{}, rs[:i]...), rs[i+1:]...))
			time.Sleep(time.Duration(r.IntN(200)) * time.Millisecond)
			h.declare(rs)
		default:
			if ps := pids(); len(ps) > 0 && unix.Kill(ps[r.IntN(len(ps))], unix.SIGKILL) == nil {
				deaths++
			}
		}
		time.Sleep(time.Duration(r.IntN(150)) * time.Millisecond)
	}
	t.Logf("%d workloads and %d hosts were killed", deaths, hosts)
	// What was killed often waits up to a minute before it is started again, and longer than that for nothing.
	for i := range processes + containers {
		_ = h.client.Clear(t.Context(), rs[i].Key())
	}
	st := h.settled(5 * time.Minute)
	if len(st.Resources) != len(rs) {
		t.Errorf("%d resources are there, wanted %d", len(st.Resources), len(rs))
	}
	time.Sleep(2 * time.Second) // those that were taken over from are gone
	seen := map[int]string{}
	for _, s := range st.Resources {
		if s.PID == 0 {
			continue
		}
		if other := seen[s.PID]; other != "" {
			t.Errorf("%s and %s have one process", s.Key, other)
		}
		seen[s.PID] = s.Key
	}
	for _, pid := range pids() {
		if seen[pid] == "" {
			cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			t.Errorf("process %d is nobody's: %q", pid, cmdline)
		}
	}
	want := processes + containers
	dirs := func(dir string) int {
		es, _ := os.ReadDir(dir)
		k := 0
		for _, e := range es {
			if e.IsDir() {
				k++
			}
		}
		return k
	}
	if n := dirs(h.n.cfg.Cgroups); n != want {
		t.Errorf("%d cgroups, wanted %d", n, want)
	}
	if n := dirs(filepath.Join(h.dir, mesh.PathRun, "instances")); n != want {
		t.Errorf("%d run folders, wanted %d", n, want)
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	mounted := 0 // an overlay's line has the folder more than once
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, h.dir) && strings.Fields(line)[4] != filepath.Join(h.dir, mesh.PathRun) {
			mounted++
		}
	}
	if mounted != containers {
		t.Errorf("%d mounts, wanted %d", mounted, containers)
	}
	open := h.files()
	busy, dump := h.goroutines()
	h.start()
	h.settled(time.Minute)
	time.Sleep(time.Second)
	fresh := h.files()
	idle, _ := h.goroutines()
	h.start()
	t.Logf("the host that lived through it had %d files and %d goroutines, a new one has %d and %d", open, busy, fresh, idle)
	if open > fresh+8 || fresh < want {
		t.Errorf("%d files are open, in a new host %d", open, fresh)
	}
	if busy > idle+10 || idle < want {
		t.Errorf("%d goroutines are there, in a new host %d:\n%.20000s", busy, idle, dump)
	}
}
