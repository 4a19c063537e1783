package controller

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/seat"
	"kingpost/internal/mesh/verbs"
)

// maxDeclared bounds the resources of one node.
const maxDeclared = mesh.MaxResources

// fresh refuses what was planned for another state. Revision 0 is "not planned".
func (t *txn) fresh(plan uint64) error {
	if plan != 0 && plan != t.meta.Revision {
		return seat.Errorf(mesh.CodeConflict, "the plan was made for revision %d of the mesh, it is at revision %d now: make the plan again", plan, t.meta.Revision)
	}
	return nil
}

// write computes the declarations of nodes and stores those that changed, under the next revision of
// this term. It returns the nodes whose declaration changed.
func (c *Controller) write(t *txn, w *world, nodes []string) (written []string, changes []verbs.Change, err error) {
	if err := w.checkController(); err != nil {
		return nil, nil, seat.Errorf(mesh.CodeConflict, "%v", err)
	}
	for _, node := range nodes {
		old, had, err := get[mesh.Declaration](t, bucketDeclared, node)
		if err != nil {
			return nil, nil, err
		}
		res, err := w.resources(node)
		if err != nil {
			return nil, nil, seat.Errorf(mesh.CodeConflict, "%v", err)
		}
		if had && sameResources(old.Resources, res) {
			continue
		}
		d := mesh.Declaration{Mesh: w.mesh, Node: node, Version: mesh.Version{Epoch: c.opt.Epoch, Revision: 1}, Writer: "controller", Resources: res}
		if had && old.Epoch == c.opt.Epoch {
			d.Revision = old.Revision + 1
		}
		if len(res) > maxDeclared {
			return nil, nil, seat.Errorf(mesh.CodeConflict, "node %s would run %d resources, at most %d are allowed", node, len(res), maxDeclared)
		}
		// What a host would refuse is refused here, where somebody is listening.
		if err := d.Validate(); err != nil {
			return nil, nil, seat.Errorf(mesh.CodeConflict, "the declaration of %s would not be valid: %v", node, err)
		}
		if err := t.put(bucketDeclared, node, d); err != nil {
			return nil, nil, err
		}
		changes = append(changes, w.diff(node, old.Resources, res)...)
		written = append(written, node)
	}
	if len(written) > 0 {
		t.meta.Revision++
	}
	return written, changes, nil
}

func sameResources(a, b []mesh.Declared) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !reflect.DeepEqual(fields(&a[i]), fields(&b[i])) {
			return false
		}
	}
	return true
}

// Plan says what a push of p would change, or without a manifest what Declare would. It changes nothing.
func (c *Controller) Plan(ctx context.Context, params *verbs.PlanParams) (*verbs.PlanResult, error) {
	var p *proposal
	if params.Manifest != nil {
		p = &proposal{manifest: *params.Manifest, digests: params.Digests, placement: params.Placement}
		if err := p.check(); err != nil {
			return nil, seat.Errorf(mesh.CodeBadParams, "%v", err)
		}
		if err := c.resolve(ctx, p); err != nil {
			return nil, err
		}
	}
	res := &verbs.PlanResult{Changes: []verbs.Change{}}
	err := c.db.view(func(t *txn) error {
		res.Revision = t.meta.Revision
		w, err := t.world()
		if err != nil {
			return err
		}
		if p == nil {
			for i := range w.modules {
				w.modules[i].promote()
			}
		} else {
			m, _, _, err := c.apply(w, p)
			if err != nil {
				return err
			}
			m.promote()
			w.set(m)
		}
		if err := w.checkSeats(); err != nil {
			return seat.Errorf(mesh.CodeConflict, "%v", err)
		}
		for _, node := range w.nodeNames() {
			old, _, err := get[mesh.Declaration](t, bucketDeclared, node)
			if err != nil {
				return err
			}
			after, err := w.resources(node)
			if err != nil {
				return seat.Errorf(mesh.CodeConflict, "%v", err)
			}
			res.Changes = append(res.Changes, w.diff(node, old.Resources, after)...)
		}
		if err := w.checkController(); err != nil {
			res.Refused = err.Error()
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return res, nil
}

// Declare lets go what was held and writes the declarations. The first one begins declaring.
func (c *Controller) Declare(_ context.Context, params *verbs.DeclareParams) (*verbs.DeclareResult, error) {
	res := &verbs.DeclareResult{Declarations: []verbs.Declared{}}
	var written []string
	err := c.db.update(func(t *txn) error {
		if err := t.fresh(params.Plan); err != nil {
			return err
		}
		w, err := t.world()
		if err != nil {
			return err
		}
		nodes := w.nodeNames()
		if params.Node != "" {
			if _, ok := w.nodes[params.Node]; !ok {
				return seat.Errorf(mesh.CodeNotFound, "there is no node %.70q", params.Node)
			}
			nodes = []string{params.Node}
		}
		for i := range w.modules {
			m := &w.modules[i]
			if m.Current == m.Latest || params.Node != "" && !m.on(params.Node) {
				continue
			}
			m.promote()
			t.meta.Revision++
			if err := t.put(bucketModules, m.Name, m.moduleRecord); err != nil {
				return err
			}
		}
		if err := w.checkSeats(); err != nil {
			return seat.Errorf(mesh.CodeConflict, "%v", err)
		}
		if !t.meta.Declaring {
			t.meta.Declaring = true
			t.meta.Revision++
		}
		if written, res.Changes, err = c.write(t, w, nodes); err != nil {
			return err
		}
		res.Revision = t.meta.Revision
		for _, node := range nodes {
			d, ok, err := get[mesh.Declaration](t, bucketDeclared, node)
			if err == nil && !ok {
				err = errors.New("it is not there")
			}
			if err != nil {
				return fmt.Errorf("read back the declaration of %s: %w", node, err)
			}
			res.Declarations = append(res.Declarations, verbs.Declared{
				Node: node, Version: d.Version, Changed: slices.Contains(written, node), Resources: len(d.Resources),
			})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	c.deliver(written)
	return res, nil
}
