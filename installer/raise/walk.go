package raise

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/sirupsen/logrus"

	"kingpost/internal/mesh/hostapi"
)

// How often things are looked at while nothing is notified, and how an act that fails is retried.
const (
	pollEvery    = time.Second
	refusedEvery = 3 * time.Second
	retryFirst   = time.Second
	retryMost    = 30 * time.Second
)

// errRestart ends a walk because a new request came in: everything is observed again, from step 1.
var errRestart = errors.New("a new request came in")

// errNotYet is what an act returns that could do nothing so far: it is called again at the next change.
var errNotYet = errors.New("not yet")

// walkSteps goes through all steps, from the first, whatever was reached before.
func (r *Raiser) walkSteps(ctx context.Context) error {
	// The channel may hold a poke from the request that this walk is about to read.
	select {
	case <-r.poke:
	default:
	}
	r.mu.Lock()
	r.reset(StateRunning)
	asked := r.request
	w := &walk{node: bounded{r.cfg.Node}, request: asked.RaiseRequest, saved: r.saveRequest, stored: map[string]bool{}, blobs: map[string]bool{}}
	r.notify()
	r.mu.Unlock()
	log := r.cfg.Log.WithField("mesh", w.request.Mesh)

	watch, cancel := context.WithCancel(ctx)
	defer cancel()
	changes := r.cfg.Node.Changes(watch)

	// The seed is never left disabled by a walk that was cut off between two steps.
	if err := w.node.SetSeed(ctx, true); err != nil {
		return fmt.Errorf("enable the seed: %w", err)
	}
	for i, s := range r.steps {
		r.enter(i)
		w.say = func(format string, args ...any) { r.reason(i, fmt.Sprintf(format, args...)) }
		w.warn = func(warnings ...string) { r.warn(log, i, warnings) }
		w.pause = func(ctx context.Context) error { return pause(ctx, changes, nil, pollEvery) }
		if err := r.walkStep(ctx, w, i, s, changes); err != nil {
			return err
		}
		if err := r.leave(log, i, asked); err != nil {
			return err
		}
	}
	return r.finish(log)
}

// walkStep observes and acts until the step is done.
func (r *Raiser) walkStep(ctx context.Context, w *walk, i int, s step, changes <-chan struct{}) error {
	log := r.cfg.Log.WithFields(logrus.Fields{"mesh": w.request.Mesh, "step": i + 1, "name": s.name})
	began := r.cfg.Now()
	var nextAct time.Time
	retry := retryFirst
	failure, logged := "", ""
	for {
		o, err := s.observe(ctx, w)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			o = observation{reason: err.Error()}
		}
		if o.done {
			return nil
		}
		if failure != "" {
			o.reason = failure
		}
		r.waiting(i, o)
		if o.reason != logged {
			log.WithField("refused", o.refused).Info(o.reason)
			logged = o.reason
		}
		if s.limit > 0 && r.cfg.Now().Sub(began) > s.limit {
			return fmt.Errorf("step %d (%s) was not done within %s: %s", i+1, s.name, s.limit, o.reason)
		}
		if s.act != nil && !r.cfg.Now().Before(nextAct) {
			failure = ""
			actErr := s.act(ctx, w)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if errors.Is(actErr, errNotYet) {
				failure = ""
			} else if actErr == nil {
				// What acted is observed at once; it acts again, if it must, after the usual time.
				retry = retryFirst
				nextAct = r.cfg.Now().Add(retryMost)
				if o, err := s.observe(ctx, w); err == nil && o.done {
					return nil
				}
			} else {
				failure = actErr.Error()
				r.reason(i, failure)
				nextAct = r.cfg.Now().Add(retry)
				retry = min(2*retry, retryMost)
			}
		}
		every := pollEvery
		if o.refused {
			every = refusedEvery
		}
		if err := pause(ctx, changes, r.poke, every); err != nil {
			return err
		}
	}
}

// pause waits until something may have changed, at most so long; a poke is errRestart. In the middle of
// an act poke is nil: a new request must not cut it off.
func pause(ctx context.Context, changes, poke <-chan struct{}, most time.Duration) error {
	t := time.NewTimer(most)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-poke:
		return errRestart
	case <-changes:
	case <-t.C:
	}
	return nil
}

func (r *Raiser) enter(i int) {
	r.update(func(s *hostapi.RaiseStatus) {
		r.began = r.cfg.Now()
		s.Step = i + 1
		s.Steps[i].State = StateRunning
	})
}

// leave marks a step as done and keeps how long it took. It returns errRestart when another request than
// the one that the walk began with counts by now: what is left of it must not be done.
func (r *Raiser) leave(log logrus.FieldLogger, i int, asked *savedRequest) error {
	var took float64
	stale := false
	r.update(func(s *hostapi.RaiseStatus) {
		if stale = r.request != asked; stale {
			return
		}
		took = r.cfg.Now().Sub(r.began).Seconds()
		s.State = StateRunning
		s.Steps[i].State, s.Steps[i].Reason, s.Steps[i].Seconds = StateDone, "", took
	})
	if stale {
		return errRestart
	}
	log.WithFields(logrus.Fields{"step": i + 1, "name": r.steps[i].name, "seconds": took}).Info("step done")
	if i+1 >= stepIdentity {
		r.credentials()
	}
	return nil
}

// stepIdentity is the step from which on a status carries the operator's certificate.
const stepIdentity = 2

func (r *Raiser) credentials() {
	m, err := r.cfg.Node.Membership(context.Background())
	if err != nil {
		r.cfg.Log.WithError(err).Warn("read the mesh's certificates")
		return
	}
	r.update(func(s *hostapi.RaiseStatus) { s.Certificate, s.CA = m.Operator, m.CA })
}

func (r *Raiser) waiting(i int, o observation) {
	r.update(func(s *hostapi.RaiseStatus) {
		s.State, s.Steps[i].State = StateRunning, StateRunning
		if o.refused {
			s.State, s.Steps[i].State = StateRefused, StateRefused
		}
		s.Steps[i].Reason = o.reason
	})
}

func (r *Raiser) reason(i int, reason string) {
	r.update(func(s *hostapi.RaiseStatus) { s.Steps[i].Reason = reason })
}

// warn adds what is not there yet.
func (r *Raiser) warn(log logrus.FieldLogger, i int, warnings []string) {
	fresh := map[string]bool{}
	r.update(func(s *hostapi.RaiseStatus) {
		for _, text := range warnings {
			if !slices.Contains(s.Steps[i].Warnings, text) {
				s.Steps[i].Warnings = append(s.Steps[i].Warnings, text)
				fresh[text] = true
			}
		}
	})
	for _, text := range slices.Sorted(maps.Keys(fresh)) {
		log.WithField("step", i+1).Warn(text)
	}
}

// finish remembers on disk that the raise is confirmed, then says so.
func (r *Raiser) finish(log logrus.FieldLogger) error {
	r.mu.Lock()
	final := r.copy()
	r.mu.Unlock()
	final.State, final.Ended = StateDone, r.cfg.Now().UTC()
	if err := r.save(fileDone, final); err != nil {
		return err
	}
	r.update(func(s *hostapi.RaiseStatus) { *s = final })
	log.Info("the mesh is raised")
	return nil
}
