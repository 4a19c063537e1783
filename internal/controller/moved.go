package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/seat"
	"kingpost/internal/mesh/verbs"
)

// maxOperations bounds how many moves are remembered; the oldest are forgotten first.
const maxOperations = 1000

// operationRecord is a move that was recorded.
type operationRecord struct {
	Module    string    `json:"module"`
	From      string    `json:"from"`
	To        string    `json:"to"`
	At        time.Time `json:"at"`
	Placement []string  `json:"placement"`
}

func notFoundModule(name string, w *world) error {
	if w == nil {
		return seat.Errorf(mesh.CodeNotFound, "there is no module %.70q; `modules` lists what there is", name)
	}
	return seat.Errorf(mesh.CodeNotFound, "there is no module %.70q; there are: %s", name, names(w.modules))
}

func checkMoved(p *verbs.ModuleMovedParams) error {
	for what, name := range map[string]string{"module": p.Module, "from": p.From, "to": p.To} {
		if err := mesh.CheckName(name); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	if n := len(p.Operation); n == 0 || n > 128 || strings.ContainsFunc(p.Operation, func(r rune) bool { return r < '!' || r > '~' }) {
		return errors.New("operation: 1 to 128 printable ASCII characters without spaces are needed; they make the same move harmless when it is said twice")
	}
	return nil
}

// ModuleMoved records that a module runs on another node now, and declares both nodes anew.
func (c *Controller) ModuleMoved(ctx context.Context, p *verbs.ModuleMovedParams) (*verbs.ModuleMovedResult, error) {
	if err := checkMoved(p); err != nil {
		return nil, seat.Errorf(mesh.CodeBadParams, "%v", err)
	}
	digests, err := c.rebind(ctx, p)
	if err != nil {
		return nil, err
	}
	res := &verbs.ModuleMovedResult{}
	var touched []string
	err = c.db.update(func(t *txn) error {
		known, err := t.known(p, res)
		if err != nil || known {
			return err
		}
		w, err := t.world()
		if err != nil {
			return err
		}
		m, err := w.movable(p)
		if err != nil {
			return err
		}
		m.Placement = union(slices.DeleteFunc(slices.Clone(m.Placement), func(n string) bool { return n == p.From }), []string{p.To})
		if digests != nil && m.latest != nil {
			v := *m.latest
			v.Digests, v.At = digests, c.opt.Now().UTC()
			held := m.Current != m.Latest
			if err := t.store(&m, &v); err != nil {
				return err
			}
			if !held {
				m.promote()
			}
		}
		w.set(m)
		if err := w.checkSeats(); err != nil {
			return seat.Errorf(mesh.CodeConflict, "%v", err)
		}
		t.meta.Revision++
		if err := t.put(bucketModules, m.Name, m.moduleRecord); err != nil {
			return err
		}
		if err := t.remember(p, m.Placement, c.opt.Now().UTC()); err != nil {
			return err
		}
		if t.meta.Declaring {
			if touched, _, err = c.write(t, w, union([]string{p.From}, []string{p.To})); err != nil {
				return err
			}
		}
		res.Placement, res.Revision = m.Placement, t.meta.Revision
		return nil
	})
	if err != nil {
		return nil, err
	}
	c.deliver(touched)
	return res, nil
}

// known answers an operation that was recorded before.
func (t *txn) known(p *verbs.ModuleMovedParams, res *verbs.ModuleMovedResult) (bool, error) {
	o, ok, err := get[operationRecord](t, bucketOperations, p.Operation)
	if err != nil || !ok {
		return false, err
	}
	if o.Module != p.Module || o.From != p.From || o.To != p.To {
		return false, seat.Errorf(mesh.CodeConflict, "operation %s was another one: module %s from %s to %s; use a new name for a new move", p.Operation, o.Module, o.From, o.To)
	}
	res.Placement, res.Revision, res.Again = o.Placement, t.meta.Revision, true
	return true, nil
}

// movable finds the module, if it can move as p says.
func (w *world) movable(p *verbs.ModuleMovedParams) (module, error) {
	m, ok := w.find(p.Module)
	if !ok {
		return m, notFoundModule(p.Module, w)
	}
	for _, n := range []string{p.From, p.To} {
		if _, ok := w.nodes[n]; !ok {
			return m, seat.Errorf(mesh.CodeNotFound, "there is no node %.70q; there are %s", n, strings.Join(w.nodeNames(), ", "))
		}
	}
	if !m.on(p.From) {
		return m, seat.Errorf(mesh.CodeConflict, "module %s is not on %s but on %v", p.Module, p.From, m.Placement)
	}
	// From and To may be the same: nothing moves then, and that is recorded.
	if m.on(p.To) && p.From != p.To {
		return m, seat.Errorf(mesh.CodeConflict, "module %s is on %s already", p.Module, p.To)
	}
	return m, nil
}

// rebind asks for the digests that the module lacks for its new node; nil when it lacks none.
func (c *Controller) rebind(ctx context.Context, p *verbs.ModuleMovedParams) (mesh.Digests, error) {
	var digests mesh.Digests
	var need [][2]string
	err := c.db.view(func(t *txn) error {
		if _, known, err := get[operationRecord](t, bucketOperations, p.Operation); err != nil || known {
			return err
		}
		w, err := t.world()
		if err != nil {
			return err
		}
		m, err := w.movable(p)
		if err != nil {
			return err
		}
		digests = m.latest.Digests
		need = missing(w, &m.latest.Manifest, []string{p.To}, digests)
		return nil
	})
	if err != nil || len(need) == 0 {
		return nil, err
	}
	return c.bind(ctx, digests, need)
}

// remember records a move, and forgets the oldest beyond maxOperations.
func (t *txn) remember(p *verbs.ModuleMovedParams, placement []string, at time.Time) error {
	if err := t.put(bucketOperations, p.Operation, operationRecord{Module: p.Module, From: p.From, To: p.To, At: at, Placement: placement}); err != nil {
		return err
	}
	n, oldest, when := 0, "", time.Time{}
	err := each(t, bucketOperations, func(key string, o operationRecord) error {
		if n++; oldest == "" || o.At.Before(when) {
			oldest, when = key, o.At
		}
		return nil
	})
	if err != nil || n <= maxOperations {
		return err
	}
	return t.tx.Bucket(bucketOperations).Delete([]byte(oldest))
}
