package raise

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
	"kingpost/internal/mesh/verbs"
)

// disk is what of a modelled node survives a power cut.
type disk struct {
	declaration *mesh.Declaration
	epoch       uint64
	member      mesh.Membership
	stored      map[string]bool
	good        map[string]mesh.Declared    // what was healthy last
	failed      map[string]string           // spec that did not get healthy
	modules     map[string]verbs.PushParams // the controller's database
	fence       uint64                      // the epoch in it
	vaultCA     bool
}

// instance is a running resource.
type instance struct {
	spec  mesh.Declared
	since time.Time
	epoch uint64
	trial bool // in a handover, not healthy yet
}

// fake models a node: a supervisor that applies declarations, a store, a broker and a controller. It can
// be cut at any call, before or after its effect.
type fake struct {
	mu   sync.Mutex
	disk *disk
	run  map[string]*instance
	seed bool
	// what a test bends
	info      hostapi.Node
	entries   []mesh.SeedEntry
	manifests []mesh.Manifest
	damaged   string // names a blob that is wrong
	port      string
	slow      map[string]time.Duration // until a module is healthy, by its name; startDelay for others
	seedLog   []bool                   // seed state at every start of a controller

	calls   int
	crashAt int // number of the call at which power goes; 0 never
	cut     context.CancelFunc
	dead    bool
}

const (
	startDelay   = 2 * time.Second
	healthWindow = 20 * time.Second
)

func newDisk() *disk {
	return &disk{stored: map[string]bool{}, good: map[string]mesh.Declared{}, failed: map[string]string{}, modules: map[string]verbs.PushParams{}}
}

// boot is the node after power-on.
func boot(d *disk) *fake {
	f := &fake{disk: d, run: map[string]*instance{}, seed: true}
	f.info = hostapi.Node{Name: "alpha", Claimed: true, Claim: testFingerprint, DataSize: 4 << 30, DataFree: 3 << 30}
	f.info.Release.Architecture = "amd64"
	f.info.Boot.Data = "/dev/vda4"
	f.entries, f.manifests = testSeed()
	return f
}

// enter is one crash point before the effect of a call and, by the function it returns, one after it.
func (f *fake) enter(ctx context.Context) (leave func(*error), err error) {
	f.mu.Lock()
	if err := f.point(ctx); err != nil {
		f.mu.Unlock()
		return nil, err
	}
	f.apply()
	return func(err *error) {
		f.apply()
		if e := f.point(ctx); e != nil {
			*err = e
		}
		f.mu.Unlock()
	}, nil
}

func (f *fake) point(ctx context.Context) error {
	f.calls++
	if f.dead || f.calls == f.crashAt {
		f.dead = true
		f.cut()
		return context.Canceled
	}
	return ctx.Err()
}

// apply is the supervisor: start what is declared, stop what is not, hand over the controller.
func (f *fake) apply() {
	d := f.disk.declaration
	if d == nil {
		return
	}
	for key := range f.run {
		if lookup(d, key) == nil {
			delete(f.run, key)
		}
	}
	for _, want := range d.Resources {
		key := want.Key()
		cur := f.run[key]
		if cur == nil {
			if good, ok := f.disk.good[key]; ok && spec(want) == f.disk.failed[key] {
				want = good
			}
			f.start(want, false)
			continue
		}
		if cur.healthy() {
			f.disk.good[key], cur.trial = cur.spec, false
		} else if cur.bad() && time.Since(cur.since) > healthWindow {
			f.disk.failed[key] = spec(cur.spec)
			if good, ok := f.disk.good[key]; ok {
				f.start(good, false)
				continue
			}
		}
		if spec(cur.spec) != spec(want) && spec(want) != f.disk.failed[key] && !cur.trial {
			f.start(want, true)
		}
	}
}

// start fails silently where the bytes are not to be had; apply tries again.
func (f *fake) start(r mesh.Declared, trial bool) {
	i := &instance{spec: r, since: time.Now().Add(f.slow[r.Module]), trial: trial}
	if !r.Artifact().IsZero() {
		if r.Source == mesh.SourceSeed && !f.seed || r.Source == mesh.SourceStore && !f.inStore(r.Digest) {
			return
		}
	}
	if r.Key() == controllerKey {
		f.disk.epoch++
		i.epoch = f.disk.epoch
		f.seedLog = append(f.seedLog, f.seed)
	}
	f.run[r.Key()] = i
}

func (f *fake) inStore(digest string) bool {
	for _, e := range f.entries {
		if e.Digest == digest && f.disk.stored[storedKey(e)] {
			return true
		}
	}
	return false
}

func (i *instance) bad() bool { return slices.Contains(i.spec.Args, "broken") }

func (i *instance) healthy() bool {
	return !i.bad() && time.Since(i.since) >= startDelay
}

func spec(r mesh.Declared) string {
	b, _ := json.Marshal(r)
	return string(b)
}

func (f *fake) up(module string) *instance {
	i := f.run[module+"/"+controllerID]
	if i == nil || !i.healthy() {
		return nil
	}
	return i
}

func (f *fake) Info(ctx context.Context) (info hostapi.Node, err error) {
	leave, err := f.enter(ctx)
	if err != nil {
		return info, err
	}
	defer leave(&err)
	return f.info, nil
}

func (f *fake) Status(ctx context.Context) (s hostapi.Status, err error) {
	leave, err := f.enter(ctx)
	if err != nil {
		return s, err
	}
	defer leave(&err)
	return f.state(), nil
}

func (f *fake) state() (s hostapi.Status) {
	d := f.disk.declaration
	if d == nil {
		return s
	}
	for _, r := range d.Resources {
		st := hostapi.ResourceStatus{Key: r.Key(), Module: r.Module, ID: r.ID, Type: r.Type, State: "waiting"}
		if i := f.run[r.Key()]; i != nil {
			st.Type, st.Digest, st.Source, st.Epoch, st.PID, st.Seats = i.spec.Type, i.spec.Digest, i.spec.Source, i.epoch, 1, i.spec.Seats
			st.State = "starting"
			if r.Type == mesh.KindVolume {
				st.State, st.PID = "present", 0
			} else if i.healthy() {
				st.State = "healthy"
			}
			if spec(r) == f.disk.failed[r.Key()] {
				st.Reason = "the declared one did not get healthy within 20s: it exited with 1; the old one runs"
			}
		}
		s.Resources = append(s.Resources, st)
	}
	return s
}

func (f *fake) Declaration(ctx context.Context) (d *mesh.Declaration, err error) {
	leave, err := f.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave(&err)
	return clone(f.disk.declaration), nil
}

func clone(d *mesh.Declaration) *mesh.Declaration {
	if d == nil {
		return nil
	}
	c := *d
	c.Resources = slices.Clone(d.Resources)
	return &c
}

func (f *fake) Declare(ctx context.Context, d mesh.Declaration) (err error) {
	leave, err := f.enter(ctx)
	if err != nil {
		return err
	}
	defer leave(&err)
	return f.declare(d)
}

func (f *fake) declare(d mesh.Declaration) error {
	if err := d.Validate(); err != nil {
		return err
	}
	if cur := f.disk.declaration; cur != nil && d.Version.Less(cur.Version) || d.Epoch < f.disk.epoch {
		return &hostapi.Error{Status: 409, Code: mesh.CodeConflict, Message: "an older declaration"}
	}
	f.disk.declaration = clone(&d)
	return nil
}

func (f *fake) Changes(context.Context) <-chan struct{} { return make(chan struct{}) }

func (f *fake) VerifySeed(ctx context.Context, progress func(done, total int64)) (err error) {
	leave, err := f.enter(ctx)
	if err != nil {
		return err
	}
	defer leave(&err)
	progress(1, 2)
	if f.damaged != "" {
		return fmt.Errorf("blob %s does not match its digest", f.damaged)
	}
	return nil
}

func (f *fake) SeedEntries(ctx context.Context) (e []mesh.SeedEntry, err error) {
	leave, err := f.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave(&err)
	return f.entries, nil
}

func (f *fake) SeedModules(ctx context.Context) (m []mesh.Manifest, err error) {
	leave, err := f.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave(&err)
	return f.manifests, nil
}

func (f *fake) SetSeed(ctx context.Context, enabled bool) (err error) {
	leave, err := f.enter(ctx)
	if err != nil {
		return err
	}
	defer leave(&err)
	f.seed = enabled
	return nil
}

func (f *fake) PushSeed(ctx context.Context, e mesh.SeedEntry) (err error) {
	leave, err := f.enter(ctx)
	if err != nil {
		return err
	}
	defer leave(&err)
	if f.up(moduleRegistry) == nil {
		return errors.New("the store does not answer")
	}
	f.disk.stored[storedKey(e)] = true
	return nil
}

func (f *fake) ReadStored(ctx context.Context, e mesh.SeedEntry, _ map[string]bool) (err error) {
	leave, err := f.enter(ctx)
	if err != nil {
		return err
	}
	defer leave(&err)
	if f.up(moduleRegistry) == nil || !f.disk.stored[storedKey(e)] {
		return errors.New("not there")
	}
	return nil
}

func (f *fake) Membership(ctx context.Context) (m mesh.Membership, err error) {
	leave, err := f.enter(ctx)
	if err != nil {
		return m, err
	}
	defer leave(&err)
	return f.disk.member, nil
}

func (f *fake) CreateMesh(ctx context.Context, name, _ string) (err error) {
	leave, err := f.enter(ctx)
	if err != nil {
		return err
	}
	defer leave(&err)
	if m := f.disk.member.Mesh; m != "" && m != name {
		return errors.New("another mesh")
	}
	f.disk.member = mesh.Membership{Mesh: name, Node: "alpha", CA: "CA", Operator: "CERT"}
	return nil
}

func (f *fake) KeepCA(ctx context.Context) (err error) {
	leave, err := f.enter(ctx)
	if err != nil {
		return err
	}
	defer leave(&err)
	if f.up("vault") == nil {
		return errors.New("no vault")
	}
	f.disk.vaultCA = true
	return nil
}

func (f *fake) PortUser(ctx context.Context, _ int) (user string, err error) {
	leave, err := f.enter(ctx)
	if err != nil {
		return "", err
	}
	defer leave(&err)
	return f.port, nil
}

func (f *fake) BrokerTrip(ctx context.Context) (err error) {
	leave, err := f.enter(ctx)
	if err != nil {
		return err
	}
	defer leave(&err)
	if f.up(moduleBroker) == nil {
		return errors.New("connection refused")
	}
	return nil
}

func (f *fake) Restart(ctx context.Context, key string) (err error) {
	leave, err := f.enter(ctx)
	if err != nil {
		return err
	}
	defer leave(&err)
	cur := f.run[key]
	if cur == nil {
		return errors.New("does not run")
	}
	f.start(cur.spec, false)
	return nil
}

func (f *fake) Call(ctx context.Context, seat, verb string, params, result any, opts ...mesh.CallOption) (err error) {
	leave, err := f.enter(ctx)
	if err != nil {
		return err
	}
	defer leave(&err)
	module := seat
	if seat == mesh.SeatStore {
		module = moduleRegistry
	}
	holder := f.up(module)
	if holder == nil {
		return &mesh.CallError{Code: mesh.CodeUnavailable, Message: "nobody holds the seat " + seat}
	}
	var req mesh.CallRequest
	for _, o := range opts {
		o(&req)
	}
	if verb == mesh.VerbDescribe && !req.Probe {
		described := []mesh.VerbInfo{{Name: "describe"}, {Name: "ping"}, {Name: "show"}, {Name: "status"}}
		if seat == mesh.SeatController {
			described = append(described, mesh.VerbInfo{Name: verbs.Declare, Changes: true}, mesh.VerbInfo{Name: verbs.Push, Changes: true})
		}
		if out, ok := result.(*[]mesh.VerbInfo); ok {
			*out = described
		}
		return nil
	}
	if verb == "show" && params == nil && !req.Probe {
		return &mesh.CallError{Code: mesh.CodeBadParams, Message: "a name is missing"}
	}
	if seat != mesh.SeatController || req.Probe {
		return nil
	}
	switch verb {
	case verbs.Push:
		p := params.(verbs.PushParams)
		f.disk.modules[p.Manifest.Module] = p
		if !p.Hold {
			return f.controllerDeclares(holder.epoch)
		}
	case verbs.Declare:
		return f.controllerDeclares(holder.epoch)
	}
	return nil
}

// controllerDeclares is the controller's declare: its epoch, everything by digest, itself from the store.
func (f *fake) controllerDeclares(epoch uint64) error {
	if epoch < f.disk.fence {
		return &mesh.CallError{Code: mesh.CodeConflict, Message: "an older epoch"}
	}
	f.disk.fence = epoch
	d := mesh.Declaration{Mesh: f.disk.member.Mesh, Node: "alpha", Writer: "controller"}
	for _, name := range sortedModules(f.disk.modules) {
		p := f.disk.modules[name]
		for _, r := range p.Manifest.Resources {
			if ref := r.Artifact(); !ref.IsZero() {
				r.Digest = p.Digests[ref.String()]["amd64"]
				r.Source = mesh.SourceStore
				if name == moduleRegistry || name == moduleBroker {
					r.Source = mesh.SourceSeed
				}
			}
			d.Resources = append(d.Resources, mesh.Declared{Module: name, Resource: r})
		}
	}
	d.Epoch, d.Revision = epoch, 1
	if cur := f.disk.declaration; cur != nil && cur.Epoch == epoch {
		d.Revision = cur.Revision + 1
	}
	return f.declare(d)
}
