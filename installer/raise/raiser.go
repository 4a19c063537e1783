package raise

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
)

// States of a raise and of its steps.
const (
	StateNone    = "none"
	StatePending = "pending"
	StateRunning = "running"
	StateRefused = "refused"
	StateFailed  = "failed"
	StateDone    = "done"
)

// Config is what a Raiser is made of.
type Config struct {
	Node Node
	// Dir is its folder below mesh.PathState. It is made when it is first written to.
	Dir string
	// Mesh is the mesh that node.yaml asks to raise, empty for none.
	Mesh string
	Log  logrus.FieldLogger
	// Now is the clock, time.Now on a node.
	Now func() time.Time
}

// Raiser raises one node. Its methods may be called from many goroutines.
type Raiser struct {
	cfg   Config
	steps []step
	poke  chan struct{} // wakes Run: a request came in

	mu       sync.Mutex
	request  *savedRequest // nil: nobody asked
	unsaved  bool          // the request is not on disk yet
	status   hostapi.RaiseStatus
	began    time.Time // of the step under way
	watchers map[chan struct{}]struct{}
}

// New makes a Raiser; nothing happens until Run. It reads what an earlier one left behind. State that
// cannot be read is logged and otherwise taken as absent: the node must come up, and asking again for the
// raise observes everything anew.
func New(cfg Config) (*Raiser, error) {
	if cfg.Node == nil || cfg.Dir == "" || cfg.Log == nil || cfg.Now == nil {
		return nil, errors.New("a raise needs a node, a folder, a log and a clock")
	}
	r := &Raiser{cfg: cfg, steps: steps(), poke: make(chan struct{}, 1), watchers: map[chan struct{}]struct{}{}}
	r.reset(StateNone)
	var finished hostapi.RaiseStatus
	if r.load(fileDone, &finished) {
		r.status = finished
		return r, nil
	}
	var req savedRequest
	if r.load(fileRequest, &req) {
		// What was under way goes on as soon as Run is called.
		r.request = &req
		r.reset(StateRunning)
	}
	return r, nil
}

// reset makes the status that of a raise that has not begun.
func (r *Raiser) reset(state string) {
	r.status = hostapi.RaiseStatus{State: state, Step: 1}
	if r.request != nil {
		r.status.Mesh, r.status.Started = r.request.Mesh, r.request.Started
	}
	for i, s := range r.steps {
		r.status.Steps = append(r.status.Steps, hostapi.RaiseStep{Number: i + 1, Name: s.name, State: StatePending})
	}
}

// Start asks for a raise, or for the one under way to go on at once. It returns how that stands; State
// is "done" when the node is raised already. An *hostapi.Error with mesh.CodeConflict says that the node
// belongs to another mesh or is being raised as one; a raise that preflight refuses may get another name.
func (r *Raiser) Start(ctx context.Context, req hostapi.RaiseRequest) (hostapi.RaiseStatus, error) {
	if err := mesh.CheckName(req.Mesh); err != nil {
		return r.Status(), apiError(http.StatusBadRequest, mesh.CodeBadParams, "raise: mesh: %v", err)
	}
	for i, m := range req.Manifests {
		if err := m.Validate(); err != nil {
			return r.Status(), apiError(http.StatusBadRequest, mesh.CodeBadParams, "raise: manifest of the module %q: %v", m.Module, err)
		}
		if slices.ContainsFunc(req.Manifests[:i], func(o mesh.Manifest) bool { return o.Module == m.Module }) {
			return r.Status(), apiError(http.StatusBadRequest, mesh.CodeBadParams, "raise: the module %q is given twice", m.Module)
		}
	}
	member, err := r.cfg.Node.Membership(ctx)
	if err != nil {
		return r.Status(), fmt.Errorf("read the node's mesh: %w", err)
	}
	declared, err := r.cfg.Node.Declaration(ctx)
	if err != nil {
		return r.Status(), fmt.Errorf("read the node's declaration: %w", err)
	}
	impossible := r.impossible(ctx, req)

	r.mu.Lock()
	defer r.mu.Unlock()
	if member.Mesh != "" && member.Mesh != req.Mesh {
		return r.copy(), apiError(http.StatusConflict, mesh.CodeConflict,
			"raise %s: this node belongs to the mesh %s; use another node, or one that was installed anew", req.Mesh, member.Mesh)
	}
	if r.status.State == StateDone {
		return r.copy(), nil
	}
	// Only a raise that preflight refused, or that ended there, may get another name: a step under way may have made the mesh by now.
	if r.request != nil && r.request.Mesh != req.Mesh && (r.status.State == StateRunning || r.status.Step >= stepIdentity) {
		return r.copy(), apiError(http.StatusConflict, mesh.CodeConflict,
			"raise %s: this node is being raised as the mesh %s, step %d (%s)", req.Mesh, r.request.Mesh, r.status.Step, r.steps[r.status.Step-1].name)
	}
	if r.request != nil && r.request.Mesh == req.Mesh {
		// Who asks again without saying more asks for the same.
		if req.Operator == "" {
			req.Operator = r.request.Operator
		}
		if len(req.Manifests) == 0 {
			req.Manifests = r.request.Manifests
		}
		// Manifests may be corrected until the controller has them; then it takes corrections itself.
		if declared != nil && declared.Epoch > 0 && !reflect.DeepEqual(req.Manifests, r.request.Manifests) {
			return r.copy(), apiError(http.StatusConflict, mesh.CodeConflict,
				"raise %s: the modules are with the controller already; correct one by `kingpost module push`", req.Mesh)
		}
	}
	if r.request != nil && r.status.State == StateRunning {
		if reflect.DeepEqual(req, r.request.RaiseRequest) {
			return r.copy(), nil // going on already
		}
		if impossible != nil {
			return r.copy(), apiError(http.StatusConflict, mesh.CodeConflict, "raise %s: modules: %v; the raise goes on as it was asked for before", req.Mesh, impossible)
		}
	}
	next := &savedRequest{RaiseRequest: req, Started: r.cfg.Now().UTC()}
	if r.request != nil && r.request.Mesh == req.Mesh {
		next.Started = r.request.Started
	}
	// A node without a data partition cannot keep the request; preflight says so, which is better than an error here.
	r.request, r.unsaved = next, true
	if err := r.keepRequest(); err != nil {
		r.cfg.Log.WithError(err).Warn("the request for a raise is not on disk")
	}
	r.reset(StateRunning)
	r.notify()
	select {
	case r.poke <- struct{}{}:
	default:
	}
	return r.copy(), nil
}

// impossible is why the modules of a request cannot be raised from this node's seed; nil where they can, or where the seed
// cannot be asked. Who asks first hears it from preflight, which also sees when it is mended; a raise under way must not be
// stopped by it.
func (r *Raiser) impossible(ctx context.Context, req hostapi.RaiseRequest) error {
	if len(req.Manifests) == 0 || r.Status().State != StateRunning {
		return nil
	}
	info, err := r.cfg.Node.Info(ctx)
	if err != nil {
		return nil
	}
	entries, err := r.cfg.Node.SeedEntries(ctx)
	if err != nil {
		return nil
	}
	manifests, err := r.cfg.Node.SeedModules(ctx)
	if err != nil {
		return nil
	}
	_, why := newPlan(manifests, req.Manifests, entries, info.Release.Architecture)
	return why
}

func apiError(code int, reason, format string, args ...any) error {
	return &hostapi.Error{Status: code, Code: reason, Message: fmt.Sprintf(format, args...)}
}

// Status is how the raise stands.
func (r *Raiser) Status() hostapi.RaiseStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.copy()
}

// copy returns a status that shares nothing with r. The caller holds mu.
func (r *Raiser) copy() hostapi.RaiseStatus {
	s := r.status
	s.Steps = append([]hostapi.RaiseStep(nil), s.Steps...)
	for i := range s.Steps {
		s.Steps[i].Warnings = append([]string(nil), s.Steps[i].Warnings...)
	}
	if s.State == StateRunning && s.Step >= 1 && s.Step <= len(s.Steps) && !r.began.IsZero() {
		s.Steps[s.Step-1].Seconds = r.cfg.Now().Sub(r.began).Seconds()
	}
	return s
}

// watchEvery is how often a watcher is told, at most.
const watchEvery = 300 * time.Millisecond

// Watch sends the status, first as it is and then at every change, until ctx is done or the raise has
// ended as done or failed; then it closes the channel. A slow receiver misses statuses, never the last.
func (r *Raiser) Watch(ctx context.Context) <-chan hostapi.RaiseStatus {
	out := make(chan hostapi.RaiseStatus)
	changed := make(chan struct{}, 1)
	r.mu.Lock()
	r.watchers[changed] = struct{}{}
	r.mu.Unlock()
	go func() {
		defer close(out)
		defer func() {
			r.mu.Lock()
			delete(r.watchers, changed)
			r.mu.Unlock()
		}()
		for {
			s := r.Status()
			select {
			case out <- s:
			case <-ctx.Done():
				return
			}
			if s.State == StateDone || s.State == StateFailed || s.State == StateNone {
				return
			}
			// What comes in between is left out: on a small machine who follows must not slow down what is followed.
			select {
			case <-time.After(watchEvery):
			case <-ctx.Done():
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

// notify tells the watchers. The caller holds mu.
func (r *Raiser) notify() {
	for c := range r.watchers {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// update changes the status and tells the watchers.
func (r *Raiser) update(change func(*hostapi.RaiseStatus)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.status)
	r.notify()
}

// Run raises until ctx is done: what was under way before a reboot, what node.yaml asks for, and what
// Start brings. It returns nil when ctx is done.
func (r *Raiser) Run(ctx context.Context) error {
	if err := r.fromConfig(ctx); err != nil {
		return err
	}
	for ctx.Err() == nil {
		if r.pending() {
			err := r.walkSteps(ctx)
			switch {
			case ctx.Err() != nil:
				return nil
			case errors.Is(err, errRestart):
				continue
			case err != nil:
				r.cfg.Log.WithError(err).Error("the raise gave up for now; `kingpost raise` or a reboot goes on with it")
				r.update(func(s *hostapi.RaiseStatus) { s.State = StateFailed })
			}
		}
		select {
		case <-r.poke:
		case <-ctx.Done():
		}
	}
	return nil
}

// pending says whether there is a raise to go on with.
func (r *Raiser) pending() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.request != nil && r.status.State != StateDone
}

// fromConfig starts what node.yaml asks for, once: after that the request is on disk, and a later edit of
// the file no longer counts.
func (r *Raiser) fromConfig(ctx context.Context) error {
	s := r.Status()
	if r.cfg.Mesh == "" {
		return nil
	}
	if s.State == StateDone || r.pending() {
		if s.Mesh != "" && s.Mesh != r.cfg.Mesh {
			r.cfg.Log.WithFields(logrus.Fields{"mesh": s.Mesh, "node.yaml": r.cfg.Mesh}).Warn("node.yaml asks for another mesh; it no longer counts")
		}
		return nil
	}
	_, err := r.Start(ctx, hostapi.RaiseRequest{Mesh: r.cfg.Mesh})
	var refusal *hostapi.Error
	if errors.As(err, &refusal) {
		r.cfg.Log.WithError(err).Warn("node.yaml asks for a raise that cannot be")
		return nil
	}
	return err
}
