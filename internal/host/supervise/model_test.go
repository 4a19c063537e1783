package supervise

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	"pgregory.net/rapid"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
)

// act is one thing that happens to a host, drawn before it is run: time is not the machine's in a run.
type act struct {
	Do        string
	Resources []mesh.Declared
	Key       string
	Wait      time.Duration
	Write     int  // at which write from now the host dies
	Done      bool // after that write, not before
}

var modelKeys = []string{"a", "b", "c", "d", "e"}

func drawResources(t *rapid.T) []mesh.Declared {
	var out []mesh.Declared
	var ids []string
	volume := false
	for i, id := range modelKeys {
		if rapid.IntRange(0, 3).Draw(t, "absent "+id) == 0 {
			continue
		}
		r := mesh.Declared{Module: "m", Resource: mesh.Resource{
			ID: id, Type: mesh.KindProcess, Bundle: "demo", Digest: "sha256:" + strings.Repeat("0", 64),
			Args: []string{rapid.SampledFrom([]string{
				doesWell, doesWell, doesWell, doesSlowly, doesListen, doesIgnore, doesEnd, doesFail, doesSicken, doesNothing,
			}).Draw(t, "does")},
			Env:    map[string]string{"VERSION": fmt.Sprint(rapid.IntRange(1, 3).Draw(t, "version"))},
			Policy: rapid.SampledFrom([]mesh.Policy{"", "", "", mesh.PolicyOnFailure, mesh.PolicyOnce, mesh.PolicyNever}).Draw(t, "policy"),
			Stop:   mesh.Stop{Grace: mesh.Duration(3 * time.Second)},
		}}
		if rapid.Bool().Draw(t, "health") {
			r.Health = &mesh.Health{HTTP: "unix:/x:/", Start: mesh.Duration(8 * time.Second)}
			if rapid.IntRange(0, 3).Draw(t, "by port") == 0 {
				r.Health = &mesh.Health{TCP: "127.0.0.1:1", Start: mesh.Duration(8 * time.Second)}
			}
		}
		if rapid.IntRange(0, 3).Draw(t, "ready") == 0 {
			r.Ready = &mesh.Health{HTTP: "unix:/x:/", Start: mesh.Duration(8 * time.Second)}
		}
		if rapid.IntRange(0, 3).Draw(t, "volume") == 0 {
			r.Volumes, volume = []mesh.Mount{{Volume: "data", Path: "/data"}}, true
		}
		if i == 2 && rapid.Bool().Draw(t, "controller") {
			r.Seats = []string{mesh.SeatController}
		}
		if len(ids) > 0 && rapid.IntRange(0, 2).Draw(t, "after") == 0 {
			r.After = []string{rapid.SampledFrom(ids).Draw(t, "after which")}
		}
		ids = append(ids, id)
		out = append(out, r)
	}
	if volume {
		out = append(out, mesh.Declared{Module: "m", Resource: mesh.Resource{ID: "data", Type: mesh.KindVolume}})
	}
	return out
}

func drawAct(t *rapid.T) act {
	a := act{Do: rapid.SampledFrom([]string{
		"declare", "declare", "declare", "wait", "wait", "kill", "kill", "crash", "crash at a write", "reboot", "source", "restart", "clear",
	}).Draw(t, "act")}
	// Times around those after which something is decided.
	a.Wait = time.Duration(rapid.SampledFrom([]int{0, 20, 120, 260, 1100, 2500, 6000, 9000, 70_000}).Draw(t, "milliseconds")) * time.Millisecond
	switch a.Do {
	case "declare":
		a.Resources = drawResources(t)
	case "kill", "restart", "clear":
		a.Key = "m/" + rapid.SampledFrom(modelKeys).Draw(t, "key")
	case "crash at a write":
		a.Write, a.Done = rapid.IntRange(1, 6).Draw(t, "write"), rapid.Bool().Draw(t, "written")
	}
	return a
}

// TestModel drives a supervisor through random declarations, exits, crashes of the host and reboots. Whatever happens no
// resource runs twice, none is forgotten, order is kept, and the last declaration is there and whole.
func TestModel(t *testing.T) {
	starts, overlaps := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		acts := rapid.SliceOfN(rapid.Custom(drawAct), 1, 25).Draw(rt, "acts")
		var wrong []string
		synctest.Test(t, func(t *testing.T) {
			m, err := newModel()
			if err != nil {
				wrong = []string{err.Error()}
				return
			}
			defer os.RemoveAll(m.dir)
			wrong = m.play(acts)
			starts, overlaps = starts+m.w.starts, overlaps+m.w.overlaps
		})
		if len(wrong) > 0 {
			b, _ := json.MarshalIndent(acts, "", " ")
			rt.Fatalf("%s\nafter %s", strings.Join(wrong, "\n"), b)
		}
	})
	t.Logf("%d starts, %d of them beside another one", starts, overlaps)
	if starts == 0 || overlaps == 0 {
		t.Error("the runs have not come to what they are to test")
	}
}

// model is what must be true of a host, beside one that runs in a world.
type model struct {
	dir   string
	w     *world
	s     *Supervisor
	over  chan struct{}
	decl  mesh.Declaration // the last that was taken
	maybe *mesh.Declaration
}

func newModel() (*model, error) {
	parent := "/dev/shm"
	if st, err := os.Stat(parent); err != nil || !st.IsDir() {
		parent = ""
	}
	dir, err := os.MkdirTemp(parent, "kp-model-")
	if err != nil {
		return nil, err
	}
	return &model{
		dir: dir, decl: mesh.Declaration{Mesh: "home", Node: "alpha"},
		w: &world{dead: true, instances: map[string]*phantom{}, declared: map[string]*spec{}, finished: map[string]string{}, unfinished: map[string]time.Time{}},
	}, nil
}

func (m *model) play(acts []act) []string {
	m.start()
	for _, a := range acts {
		m.do(a)
		time.Sleep(a.Wait)
		m.observe()
		m.revive()
		if len(m.w.wrong) > 0 {
			break
		}
	}
	if len(m.w.wrong) == 0 {
		m.rest()
	}
	m.stop()
	// What still runs ends with the run.
	m.w.reboot(filepath.Join(m.dir, "run"))
	return m.w.wrong
}

// start begins a host's life.
func (m *model) start() {
	w := m.w
	ctx, cancel := context.WithCancel(context.Background())
	w.mu.Lock()
	w.host++
	w.dead, w.cancel, w.armed = false, cancel, 0
	b := beneath{w, w.host}
	w.mu.Unlock()
	log := logrus.New()
	log.SetOutput(io.Discard)
	if os.Getenv("KINGPOST_MODEL_LOG") != "" {
		log.SetOutput(os.Stderr)
	}
	s, err := New(Config{
		State: filepath.Join(m.dir, "state"), Run: filepath.Join(m.dir, "run"), Log: log,
		below: func(*Supervisor) runner { return b }, write: b.write,
	})
	if err != nil {
		w.problem("a host does not start: %v", err)
		cancel()
		return
	}
	m.s, m.over = s, make(chan struct{})
	over := m.over
	go func() { defer close(over); _ = s.Run(ctx) }()
	m.whole()
}

// whole checks the declaration that a new host has.
func (m *model) whole() {
	d, ok := m.s.Declaration()
	same := func(o mesh.Declaration) bool {
		a, _ := json.Marshal(d)
		b, _ := json.Marshal(o)
		return string(a) == string(b)
	}
	switch {
	case m.maybe != nil && ok && same(*m.maybe):
		m.taken(*m.maybe)
	case !ok && m.decl.Revision > 0:
		m.w.problem("the declaration is lost")
	case ok && !same(m.decl):
		m.w.problem("the declaration is %+v, wanted %+v", d, m.decl)
	}
	m.maybe = nil
}

func (m *model) taken(d mesh.Declaration) {
	m.decl = d
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	m.w.declared = specsOf(&d)
	for key, id := range m.w.finished {
		if sp := m.w.declared[key]; sp == nil || sp.id() != id || sp.Policy != mesh.PolicyOnce {
			delete(m.w.finished, key)
		}
	}
}

func (m *model) stop() {
	m.w.mu.Lock()
	if !m.w.dead {
		m.w.crash()
	}
	m.w.mu.Unlock()
	if m.over != nil {
		<-m.over
	}
	m.s, m.over = nil, nil
}

// revive starts a host where the last one has died.
func (m *model) revive() {
	m.w.mu.Lock()
	dead := m.w.dead
	m.w.mu.Unlock()
	if dead {
		m.stop()
		m.start()
	}
}

func (m *model) do(a act) {
	switch a.Do {
	case "declare":
		d := m.decl
		d.Revision++
		d.Epoch = max(d.Epoch, m.s.Epoch())
		d.Resources = a.Resources
		m.maybe = &d
		if err := m.s.Declare(context.Background(), d); err == nil {
			m.taken(d)
			m.maybe = nil
		} else if !strings.Contains(err.Error(), errDead.Error()) && !strings.Contains(err.Error(), "epoch") {
			m.w.problem("a declaration is refused: %v", err)
		}
	case "kill":
		m.w.mu.Lock()
		for _, p := range m.w.alive(a.Key) {
			m.w.end(p, 137)
		}
		m.w.mu.Unlock()
	case "crash":
		m.stop()
	case "crash at a write":
		m.w.mu.Lock()
		m.w.armed, m.w.done = a.Write, a.Done
		m.w.mu.Unlock()
	case "reboot":
		m.stop()
		m.w.reboot(filepath.Join(m.dir, "run"))
	case "source":
		m.w.mu.Lock()
		m.w.away = !m.w.away
		m.w.mu.Unlock()
	case "restart", "clear":
		m.w.mu.Lock()
		if sp := m.w.declared[a.Key]; sp != nil && (a.Do == "clear" || sp.Policy != mesh.PolicyOnce) {
			if m.w.finished[a.Key] != "" {
				m.w.unfinished[a.Key] = time.Now()
			}
			delete(m.w.finished, a.Key)
		}
		m.w.mu.Unlock()
		if a.Do == "clear" {
			_ = m.s.Clear(a.Key)
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		_ = m.s.Restart(ctx, a.Key)
	}
}

// observe notes what the host says is done: from then on it must not be run again.
func (m *model) observe() {
	if m.s == nil {
		return
	}
	st := m.s.Status()
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	if m.w.dead || m.maybe != nil {
		return
	}
	for _, r := range st.Resources {
		sp := m.w.declared[r.Key]
		if sp == nil || sp.Policy != mesh.PolicyOnce || r.State != "done" {
			continue
		}
		if kept := m.s.state.get(r.Key).Done; kept == sp.id() {
			m.w.finished[r.Key] = kept
		}
	}
}

// rest ends all trouble, waits until nothing more can come, and compares what is with what must be.
func (m *model) rest() {
	m.w.mu.Lock()
	m.w.away, m.w.armed = false, 0
	m.w.mu.Unlock()
	m.revive()
	// What was killed last is seen before it is cleared.
	time.Sleep(5 * time.Second)
	for key := range m.w.declared {
		m.w.mu.Lock()
		delete(m.w.finished, key)
		m.w.mu.Unlock()
		_ = m.s.Clear(key)
	}
	time.Sleep(2 * time.Hour)
	st := m.s.Status()
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	states := map[string]hostapi.ResourceStatus{}
	for _, r := range st.Resources {
		states[r.Key] = r
	}
	for _, p := range m.w.instances {
		if m.w.declared[p.run.Spec.Key()] == nil {
			m.w.problem("%s runs and is not declared", p.run.Spec.name())
		}
	}
	settled, open := true, false
	for key, sp := range m.w.declared {
		r, ok := states[key]
		if !ok {
			m.w.problem("%s is declared and the status does not have it", key)
			continue
		}
		if !sp.runs() {
			continue
		}
		can, why := m.can(sp, states)
		alive := m.w.alive(key)
		open = open || why == moment
		if len(alive) > 1 {
			m.w.problem("%d instances of %s are left", len(alive), key)
		}
		settled = settled && can
		switch {
		case why == moment:
		case can && !lasts(sp):
			if r.State != "done" || len(alive) != 0 {
				m.w.problem("%s is %s (%s), wanted done", key, r.State, r.Reason)
			}
		case can:
			if len(alive) != 1 || alive[0].run.Spec.id() != sp.id() || alive[0].run.Trial || !r.Ready || !slices.Contains([]string{"running", "healthy"}, r.State) || r.PID != alive[0].run.PID {
				m.w.problem("%s is %s (%s) with %d instances, wanted one that is well", key, r.State, r.Reason, len(alive))
			}
		case r.Reason == "":
			m.w.problem("%s is %s, cannot be what is declared (%s), and there is no reason", key, r.State, why)
		case len(alive) == 1 && alive[0].run.Spec.id() == sp.id() && sp.Args[0] != doesSicken:
			m.w.problem("%s cannot be (%s), and is %s (%s)", key, why, r.State, r.Reason)
		}
	}
	if !open && st.Settled != (settled && m.decl.Revision > 0) {
		m.w.problem("settled is %t, wanted %t", st.Settled, settled)
	}
	if st.Declared != m.decl.Version || !open && settled && m.decl.Revision > 0 && st.Applied != st.Declared {
		m.w.problem("declared %v and applied %v, wanted %v", st.Declared, st.Applied, m.decl.Version)
	}
}

// lasts says whether a workload runs for good.
func lasts(sp *spec) bool { return sp.Args[0] != doesEnd }

// moment is why nothing can be said of a resource: what it comes after was ready for a while, and it may have been started then.
const moment = "what it comes after is ready at times"

// can says whether a spec can be as declared in a world without trouble.
func (m *model) can(sp *spec, states map[string]hostapi.ResourceStatus) (bool, string) {
	for _, dep := range sp.AfterKeys() {
		d := m.w.declared[dep]
		if d == nil {
			continue
		}
		if ok, why := m.can(d, states); !ok && !states[dep].Ready {
			// Where it had been started before what it comes after failed, it runs on.
			if a := m.w.alive(sp.Key()); len(a) == 1 && a[0].run.Spec.id() == sp.id() {
				break
			}
			if why == moment || m.w.beenReady(dep) {
				return false, moment
			}
			return false, dep + " is not ready: " + why
		}
	}
	switch sp.Args[0] {
	case doesFail, doesNothing:
		return false, "it " + sp.Args[0]
	case doesSicken:
		if sp.Health != nil || sp.Ready != nil {
			return false, "it is sick"
		}
	case doesEnd:
		if sp.Policy == "" || sp.Policy == mesh.PolicyAlways {
			return false, "it ends and is to run always"
		}
		if sp.Health != nil {
			return true, ""
		}
	}
	return true, ""
}
