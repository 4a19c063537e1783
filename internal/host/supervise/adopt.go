package supervise

import (
	"context"
	"sort"
)

// adopt takes over what the host before has left running. It runs before any unit does.
func (s *Supervisor) adopt(ctx context.Context) {
	byKey := map[string][]workload{}
	for _, w := range s.below.running(ctx) {
		key := w.record().Spec.Key()
		byKey[key] = append(byKey[key], w)
	}
	for key, ws := range byKey {
		s.takeOver(ctx, key, ws)
	}
}

// takeOver gives a resource what runs of it. Of two that host died in a handover: the one that is still on trial is its
// new one; of two that are not, the later has taken over already and the other is to go.
func (s *Supervisor) takeOver(ctx context.Context, key string, ws []workload) {
	sort.Slice(ws, func(a, b int) bool {
		ra, rb := ws[a].record(), ws[b].record()
		if ra.Trial != rb.Trial {
			return rb.Trial
		}
		if !ra.Since.Equal(rb.Since) {
			return ra.Since.After(rb.Since)
		}
		return ra.Restarts > rb.Restarts // a clock may stand still, or go back
	})
	main := ws[0].record()
	s.mu.Lock()
	u := s.units[key]
	if u == nil {
		u = newUnit(s, key)
		s.units[key] = u
		if s.corrupt {
			u.want = main.Spec.in("")
		}
	}
	s.mu.Unlock()
	u.mu.Lock()
	for _, w := range ws {
		u.starts = max(u.starts, uint64(w.record().Restarts)+1)
	}
	u.active = main.Spec
	u.mu.Unlock()
	s.state.atLeast(main.Epoch)
	u.inst = u.watch(ctx, ws[0], nil)
	s.info(key, "adopted process %d", main.PID)
	u.tries(main.Spec)
	for _, w := range ws[1:] {
		if r := w.record(); r.Trial {
			u.next = u.watch(ctx, w, nil)
			u.tries(r.Spec)
			s.info(key, "adopted process %d, which is to take over from process %d", r.PID, main.PID)
			continue
		}
		u.leaveBehind(ctx, u.watch(ctx, w, nil), "process "+formatUint(uint64(main.PID))+" has taken over from it")
	}
	if main.Trial {
		// The old one is gone: it takes over.
		main.Trial = false
		if err := ws[0].keep(); err != nil {
			s.warn("%v", err)
		}
	}
}
