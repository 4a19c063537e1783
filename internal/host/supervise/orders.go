package supervise

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"time"

	"kingpost/internal/atomicfile"
	"kingpost/internal/mesh"
)

func (sp *spec) equal(o *spec) bool { return sp == o || reflect.DeepEqual(sp, o) }

// unready names the first resource that sp waits for, and why.
func (s *Supervisor) unready(sp *spec) (key, why string) {
	for _, dep := range sp.AfterKeys() {
		s.mu.Lock()
		u := s.units[dep]
		s.mu.Unlock()
		if u == nil {
			continue // not declared on this node: it holds nothing up
		}
		u.mu.Lock()
		ready, view, wanted := u.ready, u.view, u.want != nil
		u.mu.Unlock()
		if !wanted || ready {
			continue
		}
		why := view.State
		if view.Reason != "" {
			why += ", " + view.Reason
		}
		return dep, why
	}
	return "", ""
}

// dependentAlive names a resource that is being stopped too and must be gone before u stops.
func (s *Supervisor) dependentAlive(u *unit) string {
	s.mu.Lock()
	others := make([]*unit, 0, len(s.units))
	for _, o := range s.units {
		if o != u {
			others = append(others, o)
		}
	}
	halting := s.halting
	s.mu.Unlock()
	for _, o := range others {
		o.mu.Lock()
		active, leaving := o.active, halting || o.want == nil
		o.mu.Unlock()
		if active != nil && leaving && slices.Contains(active.AfterKeys(), u.key) {
			return o.key
		}
	}
	return ""
}

func (s *Supervisor) unit(key string) (*unit, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if u := s.units[key]; u != nil {
		return u, nil
	}
	return nil, &mesh.CallError{Code: mesh.CodeNotFound, Message: "there is no resource " + key + " on this node"}
}

// Clear implements API.
func (s *Supervisor) Clear(key string) error {
	if d, ok := s.Declaration(); ok && key == mesh.HostKey && s.cfg.Own != nil && d.Host() != nil {
		return s.cfg.Own.Clear()
	}
	u, err := s.unit(key)
	if err != nil {
		return err
	}
	u.post(func() { u.retry = true })
	return nil
}

// Restart implements API.
func (s *Supervisor) Restart(ctx context.Context, key string) error {
	u, err := s.unit(key)
	if err != nil {
		return err
	}
	u.mu.Lock()
	before := u.starts
	u.mu.Unlock()
	u.post(func() { u.restart = true })
	for {
		changed := s.Changed()
		u.mu.Lock()
		fresh, ready, view, pending := u.starts > before, u.ready, u.view, u.restart
		u.mu.Unlock()
		if fresh && ready {
			return nil
		}
		if !pending && (view.State == "held" || view.State == "failed") {
			return &mesh.CallError{Code: mesh.CodeFailed, Message: fmt.Sprintf("restart %s: it is %s: %s", key, view.State, view.Reason)}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("restart %s: it is %s (%s): %w", key, view.State, view.Reason, ctx.Err())
		case <-changed:
		}
	}
}

// StopAll implements API.
func (s *Supervisor) StopAll(ctx context.Context) error {
	s.mu.Lock()
	s.halting = true
	units := make([]*unit, 0, len(s.units))
	for _, u := range s.units {
		units = append(units, u)
	}
	s.mu.Unlock()
	for _, u := range units {
		u.post(func() {})
	}
	for {
		changed := s.Changed()
		alive := ""
		for _, u := range units {
			u.mu.Lock()
			if u.active != nil {
				alive = u.key
			}
			u.mu.Unlock()
		}
		if alive == "" {
			return nil
		}
		select {
		case <-ctx.Done():
			// Time is up: what is left is killed, so that the data partition can be unmounted.
			names, _ := s.cgroups.names()
			for _, n := range names {
				_ = s.cgroups.kill(n, time.Second)
			}
			return fmt.Errorf("stop everything: %s did not stop in time and was killed: %w", alive, ctx.Err())
		case <-changed:
		}
	}
}

// forget ends a unit that is no longer declared. False: it is declared again.
func (s *Supervisor) forget(u *unit) bool {
	s.mu.Lock()
	u.mu.Lock()
	if u.want != nil {
		u.mu.Unlock()
		s.mu.Unlock()
		return false
	}
	u.active, u.beside = nil, nil // who waits for what runs may still hold the unit
	u.mu.Unlock()
	delete(s.units, u.key)
	delete(s.goods, u.key)
	s.mu.Unlock()
	// What is not declared is not remembered; a volume's data and the log stay.
	u.save(func(st *unitState) { *st = unitState{} })
	if err := atomicfile.Remove(s.goodPath(u.key)); err != nil {
		s.warn("forget %s: %v", u.key, err)
	}
	if l := u.log.Swap(nil); l != nil {
		l.close()
	}
	os.Remove(s.fifoPath(u.name))
	for _, slot := range []string{"", "." + otherSlot} {
		os.Remove(s.lockPath(u.name + slot))
	}
	u.unfinish()
	s.notify()
	s.collectSoon()
	return true
}

func (s *Supervisor) goodPath(key string) string {
	return filepath.Join(s.cfg.State, "host", "good", nameOf(key)+".json")
}

// good is the last good spec of a resource; nil when there is none.
func (s *Supervisor) good(key string) *spec {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sp, ok := s.goods[key]; ok {
		return sp
	}
	var sp *spec
	if b, err := os.ReadFile(s.goodPath(key)); err == nil {
		sp = &spec{}
		if err := json.Unmarshal(b, sp); err != nil {
			s.warn("the last good form of %s cannot be read: %v", key, err)
			sp = nil
		}
	}
	s.goods[key] = sp
	return sp
}

func (s *Supervisor) setGood(key string, sp *spec) error {
	if have := s.good(key); have != nil && have.equal(sp) {
		return nil
	}
	b, err := json.Marshal(sp)
	if err != nil {
		return err
	}
	if err := s.cfg.write(s.goodPath(key), b, 0o600); err != nil {
		return err
	}
	s.mu.Lock()
	s.goods[key] = sp
	s.mu.Unlock()
	return nil
}

// settle writes down the last version of which everything was reached.
func (s *Supervisor) settle(ctx context.Context) {
	for {
		changed := s.Changed()
		if st := s.status(false); st.Settled && st.Declared != st.Applied {
			s.cfg.Log.WithFields(map[string]any{"epoch": st.Declared.Epoch, "revision": st.Declared.Revision}).Info("everything is as declared")
			if err := s.state.update(func(d *diskState) { d.Applied = st.Declared }); err != nil {
				s.warn("keep the applied version: %v", err)
			}
			s.notify()
			s.collectSoon()
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

func (s *Supervisor) collectSoon() {
	select {
	case s.collects <- struct{}{}:
	default:
	}
}

// collect removes bundles and images that nothing refers to, some time after something changed.
func (s *Supervisor) collect(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.collects:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(collectDelay):
		}
		// Only when all is as declared: before that, what looks unused may be the way back.
		if !s.status(false).Settled {
			continue
		}
		if n := s.below.collect(s.kept()); n > 0 {
			s.cfg.Log.WithField("artifacts", n).Info("removed what nothing refers to")
		}
	}
}

const collectDelay = 30 * time.Second

type reference struct {
	kind   mesh.ArtifactKind
	digest string
}

// kept says of an artifact whether anything refers to it now.
func (s *Supervisor) kept() func(kind mesh.ArtifactKind, source mesh.Source, digest string) bool {
	keep := s.references()
	return func(kind mesh.ArtifactKind, _ mesh.Source, digest string) bool { return keep[reference{kind, digest}] }
}

// references are the artifacts that are wanted, run, or are the last good ones.
func (s *Supervisor) references() map[reference]bool {
	s.mu.Lock()
	units := make([]*unit, 0, len(s.units))
	for _, u := range s.units {
		units = append(units, u)
	}
	decl := s.decl
	s.mu.Unlock()
	keep := map[reference]bool{}
	if s.cfg.Own != nil {
		for _, d := range s.cfg.Own.Keep() {
			keep[reference{mesh.ArtifactBundle, d}] = true
		}
	}
	if decl != nil && decl.Host() != nil {
		keep[reference{mesh.ArtifactBundle, decl.Host().Digest}] = true
	}
	for _, u := range units {
		u.mu.Lock()
		specs := append([]*spec{u.want, u.active}, u.beside...)
		u.mu.Unlock()
		for _, sp := range append(specs, s.good(u.key)) {
			if sp != nil {
				keep[reference{sp.Artifact().Kind, sp.Digest}] = true
			}
		}
	}
	return keep
}
