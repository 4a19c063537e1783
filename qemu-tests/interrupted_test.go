package qemutests

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
	"kingpost/internal/mesh/verbs"
	"kingpost/internal/qemu"
	"kingpost/qemu-tests/lab"
)

// moments are the points of a step at which the power is cut.
var moments = []string{"start", "middle", "end"}

// sampled are the cuts that `make test` has time for, spread over the steps and what they write. -long makes all thirty.
var sampled = []string{"2-identity/end", "4-store-populated/middle", "8-pivot/middle"}

// TestRaiseInterrupted cuts the power at the start, in the middle and at the end of each of the ten steps. Every time the
// node, booted again on what the cut left of its disk, finishes the raise by itself, and the result is that of a raise
// that nothing interrupted.
//
// One raise is recorded, write by write, with how far the recording was at each change of the raise's status. Each cut
// builds its disk from the recording up to one of these points, without what no flush had made safe by then: to a disk
// that is what a machine without power leaves, and no kill of QEMU could be nearer to it.
func TestRaiseInterrupted(t *testing.T) {
	r := recordRaise(t)
	for _, c := range r.cuts {
		name := fmt.Sprintf("%d-%s/%s", c.step, strings.ReplaceAll(c.name, " ", "-"), c.moment)
		if !*long && !slices.Contains(sampled, name) {
			continue
		}
		t.Run(name, func(t *testing.T) { r.resume(t, c) })
	}
}

// cut is a point in the recording.
type cut struct {
	step     int
	name     string // of the step
	moment   string
	recorded int64 // bytes
}

// recording is a raise that was recorded and what it led to.
type recording struct {
	base, log string
	cuts      []cut
	want      outcome
	creds     *hostapi.RaiseStatus
}

// recordRaise raises a node whose node.yaml asks for it, so that it goes on by itself after a cut.
func recordRaise(t *testing.T) *recording {
	t.Helper()
	dir, err := theLab.Dir("recorded")
	need(t, err, "a folder")
	t.Cleanup(func() { os.RemoveAll(dir) })
	r := &recording{base: filepath.Join(dir, "base.img"), log: filepath.Join(dir, "writes")}
	spec := lab.Spec{Name: "alpha", Config: &mesh.NodeConfig{Hostname: "alpha", Claim: theLab.Claim, Mesh: mesh.MeshConfig{Raise: lab.MeshName}}}
	need(t, theLab.NewDisk(t.Context(), r.base, spec), "the disk")
	disk := filepath.Join(dir, "disk.img")
	need(t, qemu.Copy(t.Context(), disk, r.base, 0), "the disk")
	n := boot(t, lab.Spec{Name: "alpha", Disk: disk, Record: true})

	var mu sync.Mutex
	type span struct{ first, last int64 }
	spans := map[int]*span{}
	names := map[int]string{}
	s, err := n.FollowRaise(t.Context(), func(s hostapi.RaiseStatus) {
		at, err := n.Recorded()
		if err != nil {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		for _, st := range s.Steps {
			names[st.Number] = st.Name
			if st.State == "pending" {
				continue
			}
			if spans[st.Number] == nil {
				spans[st.Number] = &span{first: at, last: at}
			}
			if st.State != "done" || spans[st.Number].last == spans[st.Number].first {
				spans[st.Number].last = at
			}
		}
	})
	logSteps(t, s)
	need(t, err, "the raise that is recorded")
	r.creds = s
	r.want = outcomeOf(t, n)
	// Order: a raise that is done has everything of it on disk, or it is not done.
	for i := 1; i <= len(s.Steps); i++ {
		sp := spans[i]
		if sp == nil {
			t.Fatalf("step %d was never seen", i)
		}
		end := sp.last
		if next := spans[i+1]; next != nil {
			end = max(end, next.first)
		}
		for j, at := range []int64{sp.first, (sp.first + end) / 2, end} {
			r.cuts = append(r.cuts, cut{i, names[i], moments[j], at})
		}
	}
	need(t, os.Rename(n.Log, r.log), "the recording")
	n.Discard()
	os.Remove(disk)
	return r
}

// resume boots what a cut left and waits for the raise to finish with nobody helping.
func (r *recording) resume(t *testing.T, c cut) {
	disk := filepath.Join(t.TempDir(), "disk.img")
	report, err := lab.CutDisk(t.Context(), disk, r.base, r.log, c.recorded, *seed)
	need(t, err, "build the disk of the cut")
	t.Logf("-seed %d: %v", *seed, report)
	n := boot(t, lab.Spec{Name: "alpha", Disk: disk})
	s, err := n.FollowRaise(t.Context(), nil)
	logSteps(t, s)
	need(t, err, "the raise after the cut")
	if d := cmp.Diff(r.want, outcomeOf(t, n)); d != "" {
		t.Errorf("the result differs from that of a raise that nothing interrupted (- uninterrupted, + interrupted):\n%s", d)
	}
	controllerFromStore(t, n, mesh.KindProcess)
	described(t, n, mesh.SeatController)
}

// outcome is what a raise led to, without what may differ: times, process ids, terms.
type outcome struct {
	Modules   []string // name, digests, placement, state
	Seats     []string
	Resources []string // key, kind, digest, source, state
	Declared  []string // key, kind, digest, source
	Held      []string
}

func outcomeOf(t *testing.T, n *lab.Node) outcome {
	t.Helper()
	var o outcome
	need(t, n.UntilStatus(t.Context(), lab.StepTime, lab.Settled), "the node to settle")
	ctx, cancel := context.WithTimeout(t.Context(), lab.StepTime)
	defer cancel()
	var s verbs.StatusResult
	need(t, lab.Until(ctx, lab.StepTime, func(ctx context.Context) error {
		s = verbs.StatusResult{}
		if err := n.Client().Call(ctx, mesh.SeatController, verbs.Status, nil, &s); err != nil {
			return err
		}
		if !s.Settled {
			return fmt.Errorf("the controller says that the mesh is not settled: %s", lab.JSON(s))
		}
		return nil
	}), "the mesh to settle")
	var m verbs.ModulesResult
	call(t, n, mesh.SeatController, verbs.Modules, nil, &m)
	for _, d := range m.Modules {
		o.Modules = append(o.Modules, fmt.Sprintf("%s %s %v %v", d.Module, upOr(d.State), d.Placement, d.Digests))
	}
	for _, q := range s.Seats {
		o.Seats = append(o.Seats, q.Seat+" "+q.Node+" "+q.Key)
	}
	for _, q := range s.Held {
		o.Held = append(o.Held, q.What+": "+q.Why)
	}
	for _, q := range status(t, n).Resources {
		o.Resources = append(o.Resources, fmt.Sprintf("%s %s %s %s %s", q.Key, q.Type, q.Digest, q.Source, upOr(q.State)))
	}
	d, err := n.Client().Declaration(t.Context())
	need(t, err, "declaration")
	for _, q := range d.Resources {
		o.Declared = append(o.Declared, fmt.Sprintf("%s %s %s %s", q.Key(), q.Type, q.Digest, q.Source))
	}
	for _, list := range [][]string{o.Modules, o.Seats, o.Resources, o.Declared, o.Held} {
		sort.Strings(list)
	}
	return o
}

// upOr is "up" for every state that is one, since healthy or running is a question of the moment.
func upOr(state string) string {
	if lab.Up(hostapi.ResourceStatus{State: state}) {
		return "up"
	}
	return state
}

// TestRaiseKilled really kills a machine in the middle of a raise, once: what the recording makes of that is what the test
// above relies on.
func TestRaiseKilled(t *testing.T) {
	dir, err := theLab.Dir("killed")
	need(t, err, "a folder")
	t.Cleanup(func() { os.RemoveAll(dir) })
	base, disk, after := filepath.Join(dir, "base.img"), filepath.Join(dir, "disk.img"), filepath.Join(dir, "after.img")
	spec := lab.Spec{Name: "alpha", Config: &mesh.NodeConfig{Hostname: "alpha", Claim: theLab.Claim, Mesh: mesh.MeshConfig{Raise: lab.MeshName}}}
	need(t, theLab.NewDisk(t.Context(), base, spec), "the disk")
	need(t, qemu.Copy(t.Context(), disk, base, 0), "the disk")
	n := boot(t, lab.Spec{Name: "alpha", Disk: disk, UEFI: true, Record: true})
	need(t, lab.Until(t.Context(), lab.RaiseTime, func(ctx context.Context) error {
		s, err := n.Client().Raise(ctx)
		if err == nil && s.Step < 4 {
			err = fmt.Errorf("the raise stands at %s", lab.Step(*s))
		}
		return err
	}), "the raise to reach step 4")
	time.Sleep(2 * time.Second) // into the step
	n.Kill()
	recorded, err := n.Recorded()
	need(t, err, "the recording")
	report, err := lab.CutDisk(t.Context(), after, base, n.Log, recorded, *seed)
	need(t, err, "build the disk of the cut")
	t.Logf("-seed %d: %v", *seed, report)
	n.Discard()

	n = boot(t, lab.Spec{Name: "alpha", Disk: after, UEFI: true})
	s, err := n.FollowRaise(t.Context(), nil)
	logSteps(t, s)
	need(t, err, "the raise after the kill")
	controllerFromStore(t, n, mesh.KindProcess)
}
