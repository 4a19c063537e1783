package supervise

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"kingpost/internal/mesh"
)

// launch makes a start: cgroup, epoch, preparation, and the workload itself.
func (s *Supervisor) launch(ctx context.Context, sp *spec, st *stored, restarts int) (*instance, error) {
	if err := s.cgroups.create(sp.name(), sp.Limits, sp.Critical); err != nil {
		return nil, err
	}
	l, err := s.prepare(ctx, sp, st)
	if err != nil {
		return nil, err
	}
	l.restarts = restarts
	if sp.controller() {
		// The last thing before the start, so that a start that was not made takes no term.
		if l.epoch, err = s.state.nextEpoch(); err != nil {
			return nil, err
		}
		l.env = environment(l.env, mesh.EnvEpoch+"="+formatUint(l.epoch))
	}
	if err := makeFIFO(s.fifoPath(sp.name())); err != nil {
		return nil, err
	}
	var p *proc
	if sp.Type == mesh.KindContainer {
		p, err = s.startContainer(ctx, l)
	} else {
		p, err = s.startProcess(ctx, l)
	}
	if err != nil {
		return nil, err
	}
	r, err := l.dir.readRecord()
	if err == nil && r == nil {
		err = errors.New("the run record is not there")
	}
	if err != nil {
		p.close()
		return nil, err
	}
	r.Spec = sp
	return &instance{run: r, proc: p}, nil
}

// adopt takes over what the host before has left running, and removes what it has left unfinished. It
// runs before any unit does.
func (s *Supervisor) adopt(ctx context.Context) {
	es, err := os.ReadDir(filepath.Join(s.cfg.Run, "instances"))
	if err != nil {
		s.warn("look for running workloads: %v", err)
	}
	adopted := map[string]bool{}
	for _, e := range es {
		s.awaitStart(e.Name())
		r, err := s.rundir(e.Name()).readRecord()
		if err != nil {
			s.warn("%v; what it stands for is stopped", err)
			continue
		}
		if r == nil || r.Spec.name() != e.Name() || !s.begun(r) {
			continue
		}
		id := procID{r.PID, r.Start}
		s.exits.watch(id)
		p, err := openProc(r.PID, r.Start)
		if errors.Is(err, unix.ESRCH) {
			p, err = &proc{pid: r.PID, start: r.Start}, nil // it ended while there was no host
		}
		if err != nil {
			s.warn("take over %s: %v", r.Spec.Key(), err)
			continue
		}
		adopted[e.Name()] = true
		s.takeOver(ctx, r, p)
	}
	s.sweep(ctx, adopted)
}

// awaitStart waits until a stub that the host before has started is through, or gone.
func (s *Supervisor) awaitStart(name string) {
	f, err := os.OpenFile(s.lockPath(name), os.O_RDWR, 0)
	if err != nil {
		return
	}
	defer f.Close()
	_ = unix.Flock(int(f.Fd()), unix.LOCK_EX)
}

// begun reports whether a container got past its creation: the runtime's exec.fifo is there until it does.
func (s *Supervisor) begun(r *runRecord) bool {
	return r.Spec.Type != mesh.KindContainer || !exists(filepath.Join(s.cfg.Run, "runc", r.Spec.name(), "exec.fifo"))
}

func (s *Supervisor) takeOver(ctx context.Context, r *runRecord, p *proc) {
	key := r.Spec.Key()
	if r.Address.IsValid() {
		_, _ = s.network.take(key, r.Address)
	}
	s.mu.Lock()
	u := s.units[key]
	if u == nil {
		u = newUnit(s, key)
		s.units[key] = u
		if s.corrupt {
			u.want = r.Spec
		}
	}
	s.mu.Unlock()
	u.mu.Lock()
	u.starts = uint64(r.Restarts) + 1
	u.active = r.Spec
	u.mu.Unlock()
	u.hold(ctx, &instance{run: r, proc: p})
	s.info(key, "adopted process %d", r.PID)
}

// sweep ends what has a cgroup but no run record that could be adopted, and removes run files of nobody.
func (s *Supervisor) sweep(ctx context.Context, adopted map[string]bool) {
	names, err := s.cgroups.names()
	if err != nil {
		s.warn("look for left-over cgroups: %v", err)
	}
	for _, dir := range []string{"instances", "seats", "runc"} {
		es, _ := os.ReadDir(filepath.Join(s.cfg.Run, dir))
		for _, e := range es {
			names = append(names, e.Name())
		}
	}
	ups, _ := os.ReadDir(filepath.Join(s.cfg.State, "upper"))
	for _, e := range ups {
		names = append(names, e.Name())
	}
	seen := map[string]bool{}
	for _, n := range names {
		if adopted[n] || seen[n] {
			continue
		}
		seen[n] = true
		module, id, ok := cutName(n)
		if !ok {
			continue
		}
		sp := &spec{Declared: mesh.Declared{Module: module, Resource: mesh.Resource{ID: id}}}
		s.clean(ctx, sp)
	}
}
