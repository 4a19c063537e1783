package supervise

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"kingpost/internal/mesh"
)

// machine is the runner of a real node: cgroups, processes, containers, and the files that they need.
type machine struct{ s *Supervisor }

var _ runner = machine{}

func (m machine) volume(sp *spec) (string, error) {
	if err := m.s.ensureVolume(sp); err != nil {
		return "", err
	}
	return m.s.limitVolume(sp)
}

func (m machine) fetch(ctx context.Context, sp *spec) (*stored, error) {
	st, err := m.s.content.ensure(ctx, sp.Artifact(), sp.Digest, sp.Source)
	if err == nil {
		st.Secrets, err = m.s.secrets(ctx, sp)
	}
	return st, err
}

// start makes a start: cgroup, preparation, epoch, and the workload itself.
func (m machine) start(ctx context.Context, sp *spec, st *stored, restarts int, trial bool, epoch func() (uint64, error)) (workload, error) {
	s := m.s
	if err := s.cgroups.create(sp.name(), sp.Limits, sp.Critical); err != nil {
		return nil, err
	}
	l, err := s.prepare(ctx, sp, st)
	if err != nil {
		return nil, err
	}
	l.restarts, l.trial = restarts, trial
	if sp.controller() {
		// The last thing before the start, so that a start that was not made takes no term.
		if l.epoch, err = epoch(); err != nil {
			return nil, err
		}
		l.env = environment(l.env, mesh.EnvEpoch+"="+formatUint(l.epoch))
	}
	if err := makeFIFO(s.fifoPath(sp.name())); err != nil {
		return nil, err
	}
	var p *proc
	if sp.Type == mesh.KindContainer {
		s.modules(ctx, "overlay")
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
	return &task{s: s, run: r, proc: p}, nil
}

func (m machine) clean(ctx context.Context, sp *spec) { m.s.clean(ctx, sp) }

func (m machine) log(key string) (*logWriter, error) {
	warn := func(f string, a ...any) { m.s.warn(key+": "+f, a...) }
	return startLog(m.s.fifoPath(nameOf(key)), m.s.logDir(key), m.s.cfg.Now, warn)
}

func (m machine) memory(instance string) int64 { return m.s.cgroups.memory(instance) }

func (m machine) collect(keep func(mesh.ArtifactKind, mesh.Source, string) bool) int {
	return m.s.content.collect(keep)
}

func (m machine) follow(ctx context.Context) error {
	for _, f := range m.s.held {
		f.Close()
	}
	m.s.held = nil
	if err := m.s.offerSocket(); err != nil {
		m.s.warn("%v", err)
	}
	m.s.wg.Go(func() {
		if err := m.s.network.Run(ctx); err != nil {
			m.s.warn("%v", err)
		}
	})
	if err := m.s.exits.run(ctx); err != nil {
		return fmt.Errorf("%w; the exit codes of workloads are read late", err)
	}
	return nil
}

// running finds each workload by its run record and cgroup.
func (m machine) running(ctx context.Context) []workload {
	s := m.s
	es, err := os.ReadDir(filepath.Join(s.cfg.Run, "instances"))
	if err != nil {
		s.warn("look for running workloads: %v", err)
	}
	var out []workload
	found := map[string]bool{}
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
		s.exits.watch(procID{r.PID, r.Start})
		p, err := openProc(r.PID, r.Start)
		if errors.Is(err, unix.ESRCH) {
			p, err = &proc{pid: r.PID, start: r.Start}, nil // it ended while there was no host
		}
		if err != nil {
			s.warn("take over %s: %v", r.Spec.Key(), err)
			continue
		}
		found[e.Name()] = true
		if r.Address.IsValid() {
			if err := s.network.Adopt(endpoint(r)); err != nil {
				s.warn("%v", err)
			}
		}
		out = append(out, &task{s: s, run: r, proc: p})
	}
	s.sweep(ctx, found)
	return out
}

// task is a workload of a real node.
type task struct {
	s    *Supervisor
	run  *runRecord
	proc *proc
	let  sync.Once
}

var _ workload = (*task)(nil)

func (t *task) record() *runRecord { return t.run }

func (t *task) keep() error {
	err := t.run.write(t.s.rundir(t.run.Spec.name()).record())
	if t.run.Address.IsValid() && !t.run.Trial {
		err = errors.Join(err, t.s.network.Promote(t.run.Spec.name()))
	}
	return err
}

func (t *task) limit(from, to *spec) error {
	if from.Critical != to.Critical {
		_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", t.run.PID), []byte(strconv.Itoa(oomScore(to.Critical))), 0)
	}
	if from.Limits == to.Limits {
		return nil
	}
	return t.s.cgroups.limit(to.name(), to.Limits)
}

func (t *task) wait() error { return t.proc.wait() }

func (t *task) exit(ctx context.Context) exit {
	r, ok := t.s.exits.take(ctx, procID{t.run.PID, t.run.Start}, exitRecordLimit)
	switch {
	case !ok:
		return exit{-1, false, "ended; PID 1 has not recorded how"}
	case r.Signal == int(unix.SIGKILL) && t.s.cgroups.outOfMemory(t.run.Spec.name()) != "":
		return exit{128 + r.Signal, true, "was killed: " + t.s.cgroups.outOfMemory(t.run.Spec.name())}
	case r.Signal != 0:
		return exit{128 + r.Signal, true, fmt.Sprintf("was killed by signal %d", r.Signal)}
	}
	return exit{r.Code, true, fmt.Sprintf("exited with code %d", r.Code)}
}

func (t *task) signal(sig int) error { return t.proc.signal(sig) }

func (t *task) kill() error { return t.s.cgroups.kill(t.run.Spec.name(), killLimit) }

func (t *task) check(ctx context.Context, h *mesh.Health) error {
	c := &checker{s: t.s, sp: t.run.Spec, pid: t.run.PID, start: t.run.Start, uid: t.run.UID, name: t.run.Spec.name()}
	return c.check(ctx, h)
}

func (t *task) release() {
	t.let.Do(t.proc.close)
}

func (t *task) remove(ctx context.Context) {
	t.release()
	if t.run.Address.IsValid() {
		t.s.disconnect(t.run.Spec.name())
	}
	t.s.clean(ctx, t.run.Spec)
	t.s.exits.drop(procID{t.run.PID, t.run.Start})
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

// sweep ends what has a cgroup but no run record that could be adopted, and removes run files of nobody.
func (s *Supervisor) sweep(ctx context.Context, adopted map[string]bool) {
	names, err := s.cgroups.names()
	if err != nil {
		s.warn("look for left-over cgroups: %v", err)
	}
	for _, dir := range []string{filepath.Join(s.cfg.Run, "instances"), filepath.Join(s.cfg.Run, "seats"), filepath.Join(s.cfg.Run, "runc"), filepath.Join(s.cfg.State, "upper")} {
		es, _ := os.ReadDir(dir)
		for _, e := range es {
			names = append(names, e.Name())
		}
	}
	seen := map[string]bool{}
	for _, n := range names {
		if adopted[n] || seen[n] {
			continue
		}
		seen[n] = true
		if module, id, slot, ok := cutName(n); ok {
			s.clean(ctx, &spec{Declared: mesh.Declared{Module: module, Resource: mesh.Resource{ID: id}}, slot: slot})
		}
	}
}

// clean removes the run files, the cgroup and what the container runtime keeps. The seat folder goes too:
// a socket without a server would only make callers wait.
func (s *Supervisor) clean(ctx context.Context, sp *spec) {
	name := sp.name()
	if err := s.cgroups.kill(name, killLimit); err != nil {
		s.warn("%v", err)
	}
	if err := s.cleanContainer(ctx, name); err != nil {
		s.warn("clean up the container %s: %v", name, err)
	}
	if err := s.cgroups.remove(name); err != nil {
		s.warn("%v", err)
	}
	for _, dir := range []string{s.seatDir(name), string(s.rundir(name))} {
		if err := os.RemoveAll(dir); err != nil {
			s.warn("clean up %s: %v", sp.Key(), err)
		}
	}
}
