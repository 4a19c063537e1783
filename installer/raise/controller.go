package raise

import (
	"context"
	"fmt"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/verbs"
)

// Step 6. A declaration of the first epoch or later proves that a controller has been here, so nothing
// is asked of a temporary one any more: in the middle of the pivot none may be running.
func observeTemporary(ctx context.Context, w *walk) (observation, error) {
	d, err := w.node.Declaration(ctx)
	if err != nil {
		return observation{}, fmt.Errorf("read the node's declaration: %w", err)
	}
	if d != nil && d.Epoch > 0 {
		return done()
	}
	missing, err := w.resources(ctx, moduleController)
	if err != nil {
		return observation{}, err
	}
	if missing != "" {
		return waiting("%s", missing)
	}
	s, err := w.node.Status(ctx)
	if err != nil {
		return observation{}, fmt.Errorf("read the node's status: %w", err)
	}
	if st := status(s, controllerKey); st == nil || st.Epoch < 1 {
		return waiting("%s has no epoch yet", controllerKey)
	}
	var described []mesh.VerbInfo
	if err := w.node.Call(ctx, mesh.SeatController, mesh.VerbDescribe, nil, &described); err != nil {
		return waiting("the temporary controller does not answer yet: %v", err)
	}
	for _, v := range described {
		if err := w.node.Call(ctx, mesh.SeatController, v.Name, nil, nil, mesh.Probe()); err != nil {
			return waiting("the temporary controller does not answer %s yet: %v", v.Name, err)
		}
	}
	return done()
}

func actTemporary(ctx context.Context, w *walk) error {
	return w.declare(ctx, moduleRegistry, moduleBroker, moduleController)
}

// Step 7. The controller writes the first declaration of its own; it is on the host's disk when this is
// done. Whether what it says works is the pivot's question.
func observeDeclared(ctx context.Context, w *walk) (observation, error) {
	d, err := w.node.Declaration(ctx)
	if err != nil {
		return observation{}, fmt.Errorf("read the node's declaration: %w", err)
	}
	if d == nil || d.Epoch == 0 {
		return waiting("the controller has not declared this node yet")
	}
	r := lookup(d, controllerKey)
	switch {
	case r == nil:
		return waiting("the declaration (%d,%d) has no %s", d.Epoch, d.Revision, controllerKey)
	case r.Source != mesh.SourceStore:
		return waiting("the declaration (%d,%d) does not take %s from the store", d.Epoch, d.Revision, controllerKey)
	}
	return done()
}

func actDeclare(ctx context.Context, w *walk) error {
	if err := w.warnForeign(ctx); err != nil {
		return err
	}
	for i, m := range w.plan.modules {
		name := m.manifest.Module
		w.say("pushing %d of %d modules: %s", i+1, len(w.plan.modules), name)
		params := verbs.PushParams{Manifest: m.manifest, Digests: m.digests, Hold: true}
		if err := w.node.Call(ctx, mesh.SeatController, verbs.Push, params, nil); err != nil {
			return fmt.Errorf("push the module %s to the controller: %w", name, err)
		}
	}
	w.say("declaring this node")
	if err := w.node.Call(ctx, mesh.SeatController, verbs.Declare, verbs.DeclareParams{}, nil); err != nil {
		return fmt.Errorf("have the controller declare this node: %w", err)
	}
	return nil
}

// warnForeign names the modules that were declared on this node before the raise and are not part of
// it: the controller does not know them, so its declaration ends them.
func (w *walk) warnForeign(ctx context.Context) error {
	d, err := w.node.Declaration(ctx)
	if err != nil {
		return fmt.Errorf("read the node's declaration: %w", err)
	}
	if d == nil {
		return nil
	}
	for i := range d.Resources {
		if name := d.Resources[i].Module; w.plan.module(name) == nil {
			w.warn(fmt.Sprintf("the module %s was declared before the raise and ends with it; push it to the controller to have it again", name))
		}
	}
	return nil
}
