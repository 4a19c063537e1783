package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"

	bolterrors "go.etcd.io/bbolt/errors"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/seat"
	"kingpost/internal/mesh/verbs"
)

// baseSeats are the seats without which there is no mesh. A module that holds one may be replaced by a push, never removed.
func baseSeats() []string {
	return []string{mesh.SeatController, mesh.SeatStore, mesh.SeatRegistry, mesh.SeatBroker, mesh.SeatCatalogue, mesh.SeatBuilder, mesh.SeatVault}
}

func checkRemove(p *verbs.RemoveParams) error {
	if err := mesh.CheckName(p.Module); err != nil {
		return fmt.Errorf("module: %w", err)
	}
	return nil
}

// removable tells why m must stay, nil when nothing says so. The seat decides, not the module's name: a mesh may have
// another store than ours, and another module may be called registry.
func (m *module) removable() error {
	if m.Name == mesh.HostModule {
		return seat.Errorf(mesh.CodeConflict, "remove %s: it is the host of every node, which a push replaces and nothing removes", m.Name)
	}
	for _, v := range []*moduleVersion{m.current, m.latest} {
		if v == nil {
			continue
		}
		for _, r := range v.Manifest.Resources {
			for _, s := range r.Seats {
				if slices.Contains(baseSeats(), s) {
					return seat.Errorf(mesh.CodeConflict, "remove %s: %s/%s holds the seat %s, which the mesh cannot be without; push another version of the module instead", m.Name, m.Name, r.ID, s)
				}
			}
		}
	}
	return nil
}

// Remove takes a module and its history out of the mesh and declares the nodes anew that it was on, whose hosts then stop
// what it ran. Hosts keep what volumes hold, so a push of the same module finds it again.
func (c *Controller) Remove(_ context.Context, p *verbs.RemoveParams) (*verbs.RemoveResult, error) {
	if err := checkRemove(p); err != nil {
		return nil, seat.Errorf(mesh.CodeBadParams, "%v", err)
	}
	res := &verbs.RemoveResult{Module: p.Module}
	var touched []string
	err := c.db.update(func(t *txn) error {
		if err := t.fresh(p.Plan); err != nil {
			return err
		}
		w, err := t.world()
		if err != nil {
			return err
		}
		m, ok := w.find(p.Module)
		if !ok {
			return notFoundModule(p.Module, w)
		}
		if err := m.removable(); err != nil {
			return err
		}
		if res.Kept, err = t.volumes(&m); err != nil {
			return err
		}
		w.modules = slices.DeleteFunc(w.modules, func(o module) bool { return o.Name == m.Name })
		if err := t.tx.Bucket(bucketModules).Delete([]byte(m.Name)); err != nil {
			return err
		}
		if err := t.tx.Bucket(bucketHistory).DeleteBucket([]byte(m.Name)); err != nil && !errors.Is(err, bolterrors.ErrBucketNotFound) {
			return err
		}
		t.meta.Revision++
		if t.meta.Declaring {
			// Not its placement alone: a node that it was taken off may still have it declared.
			nodes, err := t.declaring(m.Name)
			if err != nil {
				return err
			}
			if touched, res.Changes, err = c.write(t, w, nodes); err != nil {
				return err
			}
		}
		res.Revision = t.meta.Revision
		return nil
	})
	if err != nil {
		return nil, err
	}
	c.deliver(touched)
	return res, nil
}

// declaring lists the nodes whose declaration has a resource of the module, sorted.
func (t *txn) declaring(name string) ([]string, error) {
	var nodes []string
	err := each(t, bucketDeclared, func(node string, d mesh.Declaration) error {
		if slices.ContainsFunc(d.Resources, func(r mesh.Declared) bool { return r.Module == name }) {
			nodes = append(nodes, node)
		}
		return nil
	})
	return nodes, err
}

// volumes lists the volumes of m that are declared, "MODULE/ID on NODE", by node.
func (t *txn) volumes(m *module) ([]string, error) {
	var out []string
	err := each(t, bucketDeclared, func(node string, d mesh.Declaration) error {
		for i := range d.Resources {
			if r := &d.Resources[i]; r.Module == m.Name && r.Type == mesh.KindVolume {
				out = append(out, r.Key()+" on "+node)
			}
		}
		return nil
	})
	return out, err
}
