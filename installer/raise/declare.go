package raise

import (
	"context"
	"encoding/json"
	"fmt"

	"kingpost/internal/mesh"
)

// writer marks the declarations of epoch 0 that a raise wrote.
const writer = "raise"

// nextDeclaration adds what is ours (modules declared up to now) to what the node has. Foreign modules,
// which an operator may have declared at epoch 0 before the raise, stay. So do our own later modules
// when an earlier raise declared them already. It returns nil when there is nothing to declare.
func nextDeclaration(cur *mesh.Declaration, m mesh.Membership, p *plan, modules ...string) *mesh.Declaration {
	if cur != nil && cur.Epoch > 0 {
		return nil // the controller's word counts from now on
	}
	next := &mesh.Declaration{Mesh: m.Mesh, Node: m.Node, Writer: writer}
	ours := map[string]bool{}
	for _, name := range modules {
		ours[name] = true
	}
	if cur != nil {
		// Once the temporary controller has been declared it may own epoch 1, and a declaration of epoch 0
		// would be refused. What is still to be corrected then is corrected by the push of step 7.
		if cur.Writer == writer && has(cur, controllerKey) {
			return nil
		}
		next.Version = cur.Version
		for _, r := range cur.Resources {
			if p.module(r.Module) == nil || (cur.Writer == writer && !ours[r.Module]) {
				next.Resources = append(next.Resources, r)
			}
		}
	}
	for _, name := range modules {
		next.Resources = append(next.Resources, p.declared(name)...)
	}
	if cur != nil && same(cur, next) {
		return nil
	}
	next.Revision++
	return next
}

func has(d *mesh.Declaration, key string) bool { return lookup(d, key) != nil }

func lookup(d *mesh.Declaration, key string) *mesh.Declared {
	if d == nil {
		return nil
	}
	for i := range d.Resources {
		if d.Resources[i].Key() == key {
			return &d.Resources[i]
		}
	}
	return nil
}

// same compares two declarations as they are sent: nil and empty lists are equal there.
func same(a, b *mesh.Declaration) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && string(x) == string(y)
}

// declare makes sure that the node's declaration holds these modules; see nextDeclaration.
func (w *walk) declare(ctx context.Context, modules ...string) error {
	cur, err := w.node.Declaration(ctx)
	if err != nil {
		return fmt.Errorf("read the node's declaration: %w", err)
	}
	member, err := w.node.Membership(ctx)
	if err != nil {
		return fmt.Errorf("read the node's mesh: %w", err)
	}
	next := nextDeclaration(cur, member, w.plan, modules...)
	if next == nil {
		return nil
	}
	if err := w.node.Declare(ctx, *next); err != nil {
		return fmt.Errorf("declare %s at (%d,%d): %w", modules[len(modules)-1], next.Epoch, next.Revision, err)
	}
	return nil
}
