package supervise

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"kingpost/internal/mesh"
)

// world is a runner without processes, for the state-machine test: it keeps what would be in the kernel and below
// mesh.PathRun, and writes down whatever must never happen. What a workload does is its first argument.
type world struct {
	host   int // which one lives; what an earlier one asks for is not done
	dead   bool
	cancel context.CancelFunc
	armed  int  // a crash at this write from now; 0: none
	done   bool // that write is made before the crash

	mu        sync.Mutex
	away      bool // the source of all bytes
	instances map[string]*phantom
	past      []*phantom // of this boot
	pids      int
	declared  map[string]*spec // the latest
	finished  map[string]string
	// unfinished is when a run to completion was taken back.
	unfinished map[string]time.Time
	epoch      uint64
	wrong      []string
	starts     int
	overlaps   int
}

// phantom is a workload of a world.
type phantom struct {
	run   runRecord
	since time.Time
	over  chan struct{} // closed at its end
	ended bool
	until time.Time
	code  int
}

// What workloads may do.
const (
	doesWell    = "well"    // healthy after a second, stops when told
	doesSlowly  = "slow"    // the same, but takes four seconds to stop
	doesListen  = "listens" // the same, and listens on a port of the node
	doesIgnore  = "ignores" // never stops
	doesEnd     = "ends"    // ends well after two seconds
	doesFail    = "fails"   // ends badly after a second
	doesSicken  = "sick"    // runs and is never healthy
	doesNothing = "nothing" // cannot be started
)

const warm = time.Second

var errDead = errors.New("the host is dead")

// beneath is the world as one host has it.
type beneath struct {
	*world
	host int
}

func (w *world) live(host int) bool { return w.host == host && !w.dead }

func (w *world) problem(format string, a ...any) {
	w.wrong = append(w.wrong, fmt.Sprintf(format, a...))
}

// crash ends the host that lives, at this very moment.
func (w *world) crash() {
	w.dead = true
	w.armed = 0
	w.cancel()
}

// write is atomicfile.Write without the waiting for a disk, and the place where a host may die.
func (b beneath) write(path string, data []byte, perm os.FileMode) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.live(b.host) {
		return errDead
	}
	aside := filepath.Join(filepath.Dir(path), ".kingpost-tmp-"+filepath.Base(path))
	if b.armed > 0 {
		if b.armed--; b.armed == 0 && !b.done {
			_ = os.WriteFile(aside, data[:len(data)/2], perm)
			b.crash()
			return errDead
		} else if b.armed == 0 {
			defer b.crash()
		}
	}
	if err := os.WriteFile(aside, data, perm); err != nil {
		return err
	}
	return os.Rename(aside, path)
}

func (b beneath) volume(*spec) (string, error) { return "", nil }

func (b beneath) fetch(ctx context.Context, sp *spec) (*stored, error) {
	select {
	case <-time.After(50 * time.Millisecond):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.away {
		return nil, fmt.Errorf("%w: the source is away", errSource)
	}
	return &stored{Source: mesh.SourceSeed}, nil
}

func (b beneath) start(ctx context.Context, sp *spec, st *stored, restarts int, trial bool, epoch func() (uint64, error)) (workload, error) {
	time.Sleep(100 * time.Millisecond)
	r := runRecord{Spec: sp, Source: st.Source, Since: time.Now(), Restarts: restarts, Slot: sp.slot, Trial: trial}
	if sp.controller() {
		var err error
		if r.Epoch, err = epoch(); err != nil {
			return nil, err
		}
	}
	b.mu.Lock()
	if !b.live(b.host) {
		b.mu.Unlock()
		return nil, errDead
	}
	if sp.Args[0] == doesNothing {
		b.mu.Unlock()
		return nil, errors.New("no such program")
	}
	b.judge(sp, &r)
	b.pids++
	r.PID = b.pids
	p := &phantom{run: r, since: time.Now(), over: make(chan struct{})}
	b.instances[sp.name()] = p
	b.past = append(b.past, p)
	b.starts++
	switch sp.Args[0] {
	case doesEnd:
		b.ends(p, 2*time.Second, 0)
	case doesFail:
		b.ends(p, time.Second, 3)
	}
	h := b.handle(p)
	b.mu.Unlock()
	time.Sleep(100 * time.Millisecond)
	return h, nil
}

// judge says what is wrong with a start.
func (w *world) judge(sp *spec, r *runRecord) {
	if i := w.instances[sp.name()]; i != nil {
		w.problem("%s is started over an instance of the same name", sp.name())
	}
	for _, i := range w.alive(sp.Key()) {
		x := exclusive(i.run.Spec, sp, i.listens())
		switch {
		case i.run.Spec.id() == sp.id():
			w.problem("%s runs twice", sp.Key())
		case x != "":
			w.problem("%s runs beside another one of it: %s", sp.name(), x)
		}
		w.overlaps++
	}
	if n := len(w.alive(sp.Key())); n > 1 {
		w.problem("%d instances of %s are there at its start", n, sp.Key())
	}
	if id := w.finished[sp.Key()]; id == sp.id() {
		w.problem("%s has run to completion and is run again", sp.Key())
	}
	if sp.controller() {
		if r.Epoch <= w.epoch {
			w.problem("epoch %d is given out after %d", r.Epoch, w.epoch)
		}
		w.epoch = r.Epoch
	}
	if want := w.declared[sp.Key()]; want == nil || want.id() != sp.id() {
		return // on the way back, or overtaken by a declaration: what it waited for was of then
	}
	for _, dep := range sp.AfterKeys() {
		if w.declared[dep] != nil && !w.beenReady(dep) {
			w.problem("%s is started before %s, which it comes after", sp.Key(), dep)
		}
	}
}

// beenReady says whether a resource was ready at some time of this boot.
func (w *world) beenReady(key string) bool {
	if w.finished[key] != "" {
		return true
	}
	// Who found it done just before that was taken back has its bytes fetched meanwhile, and starts.
	if at := w.unfinished[key]; !at.IsZero() && time.Since(at) < time.Second {
		return true
	}
	return slices.ContainsFunc(w.past, func(p *phantom) bool {
		sp := p.run.Spec
		end := time.Now()
		if p.ended {
			end = p.until
		}
		checked := sp.Health != nil || sp.Ready != nil
		return sp.Key() == key && (!checked || p.well() && end.Sub(p.since) >= warm)
	})
}

func (p *phantom) well() bool { return p.run.Spec.Args[0] != doesSicken }

func (w *world) alive(key string) []*phantom {
	var out []*phantom
	for _, i := range w.instances {
		if !i.ended && i.run.Spec.Key() == key {
			out = append(out, i)
		}
	}
	return out
}

// ends lets p end by itself after a time.
func (w *world) ends(p *phantom, after time.Duration, code int) {
	go func() {
		select {
		case <-time.After(after):
			w.mu.Lock()
			defer w.mu.Unlock()
			w.end(p, code)
		case <-p.over:
		}
	}()
}

func (w *world) end(p *phantom, code int) {
	if !p.ended {
		p.ended, p.code, p.until = true, code, time.Now()
		close(p.over)
	}
}

func (w *world) handle(p *phantom) *grip {
	r := p.run
	return &grip{p: p, w: w, host: w.host, run: &r, released: make(chan struct{})}
}

func (b beneath) running(ctx context.Context) []workload {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []workload
	for _, p := range b.instances {
		out = append(out, b.handle(p))
	}
	return out
}

func (b beneath) clean(_ context.Context, sp *spec) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p := b.instances[sp.name()]; p != nil && b.live(b.host) {
		b.end(p, 137)
		delete(b.instances, sp.name())
	}
}

func (b beneath) log(string) (*logWriter, error) { return nil, nil }
func (b beneath) memory(string) int64            { return 0 }
func (b beneath) collect(func(mesh.ArtifactKind, mesh.Source, string) bool) int {
	return 0
}
func (b beneath) follow(ctx context.Context) error { <-ctx.Done(); return nil }

// grip is one host's hold of a phantom.
type grip struct {
	p        *phantom
	w        *world
	host     int
	run      *runRecord
	once     sync.Once
	released chan struct{}
}

func (g *grip) record() *runRecord { return g.run }

func (g *grip) keep() error {
	g.w.mu.Lock()
	defer g.w.mu.Unlock()
	if !g.w.live(g.host) {
		return errDead
	}
	g.p.run = *g.run
	return nil
}

func (g *grip) limit(_, _ *spec) error { return nil }

func (g *grip) wait() error {
	select {
	case <-g.p.over:
		return nil
	case <-g.released:
		return os.ErrClosed
	}
}

func (g *grip) exit(context.Context) exit {
	return exit{g.p.code, true, fmt.Sprintf("exited with code %d", g.p.code)}
}

func (g *grip) signal(int) error {
	g.w.mu.Lock()
	defer g.w.mu.Unlock()
	if !g.w.live(g.host) {
		return errDead
	}
	switch g.run.Spec.Args[0] {
	case doesIgnore:
	case doesSlowly:
		g.w.ends(g.p, 4*time.Second, 0)
	default:
		g.w.ends(g.p, 200*time.Millisecond, 0)
	}
	return nil
}

func (g *grip) kill() error {
	g.w.mu.Lock()
	defer g.w.mu.Unlock()
	if !g.w.live(g.host) {
		return errDead
	}
	g.w.end(g.p, 137)
	return nil
}

func (g *grip) check(ctx context.Context, _ *mesh.Health) error {
	g.w.mu.Lock()
	defer g.w.mu.Unlock()
	switch {
	case !g.p.well():
		return errors.New("it is sick")
	case time.Since(g.p.since) < warm:
		return errors.New("not yet")
	}
	return nil
}

func (p *phantom) listens() []string {
	if p.run.Spec.Args[0] == doesListen {
		return []string{"tcp port 80"}
	}
	return nil
}

func (g *grip) listens() []string { return g.p.listens() }

func (g *grip) release() { g.once.Do(func() { close(g.released) }) }

func (g *grip) remove(ctx context.Context) {
	g.release()
	beneath{g.w, g.host}.clean(ctx, g.run.Spec)
}

// reboot ends everything that a boot holds.
func (w *world) reboot(run string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, p := range w.instances {
		w.end(p, 137)
		delete(w.instances, name)
	}
	w.past = nil
	es, _ := os.ReadDir(run)
	for _, e := range es {
		if !strings.HasPrefix(e.Name(), ".") {
			_ = os.RemoveAll(filepath.Join(run, e.Name()))
		}
	}
}
