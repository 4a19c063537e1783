package raise

import (
	"context"
	"fmt"

	"kingpost/internal/mesh"
)

// Step 3. The store comes first: everything after it is fetched by digest from where it will be fetched
// for the rest of the mesh's life.
func observeStore(ctx context.Context, w *walk) (observation, error) {
	missing, err := w.resources(ctx, moduleRegistry)
	if err != nil {
		return observation{}, err
	}
	if missing != "" {
		return waiting("%s", missing)
	}
	if err := w.node.Call(ctx, mesh.SeatStore, mesh.VerbPing, nil, nil); err != nil {
		return waiting("the store does not answer yet: %v", err)
	}
	return done()
}

func actStore(ctx context.Context, w *walk) error { return w.declare(ctx, moduleRegistry) }

// Step 4. Read back by digest, through the store's own API: that it took the bytes is not enough.
func observePopulated(ctx context.Context, w *walk) (observation, error) {
	missing := 0
	var first error
	for i, e := range w.plan.entries {
		if w.stored[storedKey(e)] {
			continue
		}
		w.say("reading back %d of %d: %s:%s", i+1, len(w.plan.entries), e.Ref, e.Tag)
		if err := w.node.ReadStored(ctx, e, w.blobs); err != nil {
			if ctx.Err() != nil {
				return observation{}, ctx.Err()
			}
			missing++
			if first == nil {
				first = fmt.Errorf("%s:%s: %w", e.Ref, e.Tag, err)
			}
			continue
		}
		w.stored[storedKey(e)] = true
	}
	if missing == 0 {
		return done()
	}
	return waiting("%d of %d artifacts are in the store; %v", len(w.plan.entries)-missing, len(w.plan.entries), first)
}

func actPopulate(ctx context.Context, w *walk) error {
	for i, e := range w.plan.entries {
		if w.stored[storedKey(e)] {
			continue
		}
		w.say("copying %d of %d into the store: %s:%s", i+1, len(w.plan.entries), e.Ref, e.Tag)
		if err := w.node.PushSeed(ctx, e); err != nil {
			return fmt.Errorf("copy %s:%s into the store: %w", e.Ref, e.Tag, err)
		}
	}
	return nil
}

// storedKey tells two artifacts with the same manifest apart: each must stand under its own name.
func storedKey(e mesh.SeedEntry) string { return e.Ref.String() + ":" + e.Tag + "@" + e.Digest }
