package raise

import (
	"context"
	"fmt"

	"kingpost/internal/mesh"
)

// Step 10. Nothing of the temporary controller is left, and the seed is whole: it stays in the image as
// what a node can always start again from.
func observeParked(ctx context.Context, w *walk) (observation, error) {
	s, err := w.node.Status(ctx)
	if err != nil {
		return observation{}, fmt.Errorf("read the node's status: %w", err)
	}
	for _, r := range s.Resources {
		if r.Module == moduleController && r.Source == mesh.SourceSeed && r.PID != 0 {
			return waiting("%s still runs from the seed", r.Key)
		}
	}
	entries, err := w.node.SeedEntries(ctx)
	if err != nil {
		return observation{}, fmt.Errorf("read the seed's index: %w", err)
	}
	if len(entries) != len(w.plan.entries) {
		return waiting("the seed has %d artifacts, it had %d", len(entries), len(w.plan.entries))
	}
	return done()
}

func actPark(ctx context.Context, w *walk) error { return w.node.SetSeed(ctx, true) }
