package supervise

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"kingpost/internal/atomicfile"
	"kingpost/internal/host/privnet"
	"kingpost/internal/mesh"
	"kingpost/internal/mesh/artifact"
	"kingpost/internal/mesh/hostapi"
)

// Supervisor applies declarations. Make it with New.
type Supervisor struct {
	cfg   Config
	state *stateFile
	below runner

	// Of the machine.
	accounts *accounts
	cgroups  *cgroups
	exits    *exits
	content  *content
	network  *privnet.Network
	quota    sync.Mutex // of the projects of volumes
	offers   sync.Mutex // of the host's socket

	mu       sync.Mutex
	decl     *mesh.Declaration
	declText []byte // of decl, as it is on disk
	corrupt  bool   // there was a declaration that could not be read: nothing that runs is stopped for its absence
	units    map[string]*unit
	order    []string
	changed  chan struct{}
	halting  bool
	seedOff  bool
	running  context.Context // of Run, nil before
	goods    map[string]*spec
	collects chan struct{}
	turns    turns
	held     []*os.File // log pipes, from New until Run reads them
	layout   *artifact.Layout
	troubles troubles
	wg       sync.WaitGroup
}

var _ API = (*Supervisor)(nil)

// New reads the state that the last host left and adopts nothing yet; Run does.
func New(cfg Config) (*Supervisor, error) {
	cfg = cfg.withDefaults()
	host := filepath.Join(cfg.State, "host")
	for _, d := range []string{host, filepath.Join(host, "good"), filepath.Join(cfg.Run, "instances"), filepath.Join(cfg.Run, "seats"), filepath.Join(cfg.Run, "start"), filepath.Join(cfg.Run, "log"), filepath.Join(cfg.Run, "finished")} {
		if err := os.MkdirAll(d, 0o755); err != nil && !noRoom(err) {
			return nil, fmt.Errorf("make the host's folder %s: %w", d, err)
		}
	}
	// On a disk that takes no writes the folder is as it was, and the host comes up to say what is wrong.
	if err := os.Chmod(host, 0o700); err != nil && !noRoom(err) && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	atomicfile.Clean(host)
	s := &Supervisor{
		cfg: cfg, units: map[string]*unit{}, changed: make(chan struct{}),
		goods: map[string]*spec{}, collects: make(chan struct{}, 1),
	}
	var err error
	var warning string
	if s.state, warning, err = openState(filepath.Join(host, "state.json")); err != nil {
		return nil, err
	}
	if warning != "" {
		s.trouble("%s", warning)
	}
	s.state.write = cfg.write
	if cfg.below != nil {
		s.below = cfg.below(s)
	} else if err := s.openMachine(host); err != nil {
		return nil, err
	}
	return s, s.readDeclaration()
}

// openMachine makes the machine below the supervisor.
func (s *Supervisor) openMachine(host string) (err error) {
	var warning string
	if s.accounts, warning, err = openAccounts(filepath.Join(host, "accounts.json"), filepath.Join(s.cfg.State, "volumes"), s.runRecords()); err != nil {
		return err
	}
	if warning != "" {
		s.trouble("%s", warning)
	}
	var warnings []string
	if s.cgroups, warnings, err = openCgroups(s.cfg.Cgroups, s.cfg.CgroupsOptional); err != nil {
		return err
	}
	for _, w := range warnings {
		s.warn("%s", w)
	}
	if s.exits, err = newExits(filepath.Join(s.cfg.Run, "exits")); err != nil {
		return err
	}
	s.content = &content{dir: s.cfg.State, seed: s.seedSource, store: s.storeSource, keep: s.kept, floor: s.cfg.MinFree, warn: s.warn}
	s.content.clean()
	s.network = privnet.New(privnet.Config{ResolvConf: s.cfg.ResolvConf, Log: s.cfg.Log})
	// PID 1 lets go of the log pipes as soon as the host says that it is ready, which may be before Run: what a
	// workload that has ended left in one would be lost.
	fifos, _ := filepath.Glob(filepath.Join(s.cfg.Run, "log", "*.fifo"))
	for _, p := range fifos {
		if f, err := os.OpenFile(p, os.O_RDWR|unix.O_NONBLOCK, 0); err == nil {
			s.held = append(s.held, f)
		}
	}
	s.below = machine{s}
	return nil
}

func (c Config) withDefaults() Config {
	def := func(p *string, v string) {
		if *p == "" {
			*p = v
		}
	}
	def(&c.State, mesh.PathState)
	def(&c.Run, mesh.PathRun)
	def(&c.Cgroups, mesh.PathCgroups)
	def(&c.Seed, mesh.PathSeed)
	def(&c.Runc, mesh.PathRunc)
	def(&c.ResolvConf, "/etc/resolv.conf")
	def(&c.HostSocket, mesh.PathHostSocket)
	if len(c.Stub) == 0 {
		c.Stub = stubCommand()
	}
	if c.write == nil {
		c.write = atomicfile.Write
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = logrus.New()
	}
	if c.Mesh == nil {
		c.Mesh = func() (string, string) { return "", "" }
	}
	return c
}

func (s *Supervisor) warn(format string, a ...any) { s.cfg.Log.Warnf(format, a...) }

func (s *Supervisor) info(key, format string, a ...any) {
	s.cfg.Log.WithField("resource", key).Infof(format, a...)
}

func (s *Supervisor) declarationPath() string {
	return filepath.Join(s.cfg.State, "host", "declaration.json")
}

func (s *Supervisor) readDeclaration() error {
	b, err := os.ReadFile(s.declarationPath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the last declaration: %w", err)
	}
	d, err := mesh.DecodeDeclaration(bytes.NewReader(b))
	if err != nil {
		// Set aside, and what still runs goes on: to stop everything would be worse than to know nothing.
		s.corrupt = true
		s.trouble("the last declaration %s cannot be read (%v), %s; what runs goes on, and the node waits for the next", s.declarationPath(), err, setAside(s.declarationPath(), ".bad"))
		return nil
	}
	s.state.atLeast(d.Epoch)
	// As this host would write it: what an earlier one wrote may look different and say the same.
	text, err := json.MarshalIndent(&d, "", " ")
	if err != nil {
		return err
	}
	s.setDeclaration(&d, text)
	return nil
}

// setDeclaration makes units for what d declares and takes it from those that it does not.
func (s *Supervisor) setDeclaration(d *mesh.Declaration, text []byte) {
	specs := specsOf(d)
	s.mu.Lock()
	s.decl, s.declText, s.corrupt = d, text, false
	s.order = s.order[:0]
	for i := range d.Resources {
		s.order = append(s.order, d.Resources[i].Key())
	}
	var poke []*unit
	for key, sp := range specs {
		u := s.units[key]
		if u == nil {
			u = newUnit(s, key)
			u.want = sp
			u.view.Module, u.view.ID, u.view.Type, u.view.Digest = sp.Module, sp.ID, sp.Type, sp.Digest
			u.view.Seats, u.view.Critical = sp.Seats, sp.Critical
			s.units[key] = u
			s.launchUnit(u)
			continue
		}
		poke = append(poke, u)
	}
	var gone []*unit
	for key, u := range s.units {
		if specs[key] == nil {
			gone = append(gone, u)
		}
	}
	s.mu.Unlock()
	for _, u := range poke {
		sp := specs[u.key]
		u.mu.Lock()
		same := u.want != nil && u.want.equal(sp)
		u.mu.Unlock()
		if !same {
			u.post(func() { u.want, u.settled = sp, false })
		}
	}
	for _, u := range gone {
		u.post(func() { u.want, u.settled = nil, false })
	}
	s.notify()
}

// launchUnit starts a unit's goroutine once Run has begun. s.mu is held.
func (s *Supervisor) launchUnit(u *unit) {
	if s.running == nil || s.running.Err() != nil {
		return
	}
	ctx := s.running
	s.wg.Go(func() { u.loop(ctx) })
}

func (s *Supervisor) fifoPath(name string) string {
	return filepath.Join(s.cfg.Run, "log", resourceName(name)+".fifo") // one log, whichever instance writes it
}
func (s *Supervisor) lockPath(name string) string {
	return filepath.Join(s.cfg.Run, "start", name+".lock")
}

// Run implements API.
func (s *Supervisor) Run(ctx context.Context) error {
	s.mu.Lock()
	if s.running != nil {
		s.mu.Unlock()
		return errors.New("the supervisor runs already")
	}
	s.mu.Unlock()
	s.adopt(ctx)
	s.mu.Lock()
	s.running = ctx
	for _, u := range s.units {
		s.launchUnit(u)
	}
	s.mu.Unlock()
	opens := time.AfterFunc(turnsGather, s.turns.open)
	defer opens.Stop()
	s.wg.Go(func() {
		if err := s.below.follow(ctx); err != nil {
			s.warn("%v", err)
		}
	})
	s.wg.Go(func() { s.settle(ctx) })
	s.wg.Go(func() { s.collect(ctx) })
	<-ctx.Done()
	s.wg.Wait()
	return nil
}

// notify tells everybody who waits that something changed.
func (s *Supervisor) notify() {
	s.mu.Lock()
	close(s.changed)
	s.changed = make(chan struct{})
	s.mu.Unlock()
}

// Changed implements API.
func (s *Supervisor) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

func (s *Supervisor) stopping() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.halting
}

// Declare implements API.
func (s *Supervisor) Declare(ctx context.Context, d mesh.Declaration) error {
	if err := d.Validate(); err != nil {
		return &mesh.CallError{Code: mesh.CodeBadParams, Message: "the declaration is refused:\n" + err.Error()}
	}
	conflict := func(format string, a ...any) error {
		return &mesh.CallError{Code: mesh.CodeConflict, Message: "the declaration is refused: " + fmt.Sprintf(format, a...)}
	}
	if m, n := s.cfg.Mesh(); m != "" && m != d.Mesh {
		return conflict("it is for the mesh %q, this node is in %q", d.Mesh, m)
	} else if n != "" && n != d.Node {
		return conflict("it is for the node %q, this is %q", d.Node, n)
	}
	b, err := json.MarshalIndent(&d, "", " ")
	if err != nil {
		return err
	}
	s.mu.Lock()
	old, was := s.decl, s.declText
	s.mu.Unlock()
	if old != nil {
		switch {
		case bytes.Equal(was, b):
			return nil
		case d.Version.Less(old.Version):
			return conflict("its version is epoch %d revision %d, the node has epoch %d revision %d", d.Epoch, d.Revision, old.Epoch, old.Revision)
		case d.Version == old.Version:
			return conflict("the node has another declaration of the same version, epoch %d revision %d; the revision must grow", d.Epoch, d.Revision)
		}
	}
	if e := s.state.epoch(); d.Epoch < e {
		return conflict("its epoch is %d, the controller's is %d by now", d.Epoch, e)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := s.cfg.write(s.declarationPath(), b, 0o600); err != nil {
		return &mesh.CallError{Code: mesh.CodeFailed, Message: "keep the declaration: " + err.Error()}
	}
	s.setDeclaration(&d, b)
	return nil
}

// Declaration implements API.
func (s *Supervisor) Declaration() (mesh.Declaration, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.decl == nil {
		return mesh.Declaration{}, false
	}
	return *s.decl, true
}

// Epoch implements API.
func (s *Supervisor) Epoch() uint64 { return s.state.epoch() }

// AccountOf implements API.
func (s *Supervisor) AccountOf(uid int) (string, bool) { return s.accounts.module(uid) }

// SetSeed implements API.
func (s *Supervisor) SetSeed(enabled bool) {
	s.mu.Lock()
	s.seedOff = !enabled
	s.mu.Unlock()
	s.notify()
}

// Status implements API.
func (s *Supervisor) Status() hostapi.Status { return s.status(true) }

// status leaves out what each resource uses, which has to be read from its cgroup, unless it is asked for.
func (s *Supervisor) status(usage bool) hostapi.Status {
	var out hostapi.Status
	s.mu.Lock()
	if s.decl != nil {
		out.Declared = s.decl.Version
	}
	out.Settled = s.decl != nil
	decl := s.decl
	keys := append([]string(nil), s.order...)
	units := make(map[string]*unit, len(s.units))
	var extra []string
	for k, u := range s.units {
		units[k] = u
		extra = append(extra, k)
	}
	s.mu.Unlock()
	out.Applied = s.state.applied()
	own, ownSettled := s.own(decl)
	out.Settled = out.Settled && ownSettled
	sort.Strings(extra)
	for _, k := range append(keys, extra...) {
		u := units[k]
		if k == mesh.HostKey && own != nil {
			out.Resources = append(out.Resources, *own)
		}
		if u == nil {
			continue
		}
		delete(units, k)
		u.mu.Lock()
		v, ok, active := u.view, u.settled && u.want != nil, u.active
		u.mu.Unlock()
		if v.PID != 0 && active != nil && usage {
			v.Memory = s.below.memory(active.name())
		}
		out.Settled = out.Settled && ok
		out.Resources = append(out.Resources, v)
	}
	return out
}
