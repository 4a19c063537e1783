package raise

import (
	"context"
	"fmt"

	"kingpost/internal/mesh"
)

// Step 8. The host does the handover by itself, as any other; here it is only watched. There is no
// limit: when the declared controller cannot become healthy the old one answers again, and it is a person
// who pushes a better manifest to it.
func observePivot(ctx context.Context, w *walk) (observation, error) {
	d, err := w.node.Declaration(ctx)
	if err != nil {
		return observation{}, fmt.Errorf("read the node's declaration: %w", err)
	}
	s, err := w.node.Status(ctx)
	if err != nil {
		return observation{}, fmt.Errorf("read the node's status: %w", err)
	}
	want, got := lookup(d, controllerKey), status(s, controllerKey)
	switch {
	case want == nil:
		return waiting("%s is not declared", controllerKey)
	case got == nil || !ready(*got):
		return waiting("%s", describe(got, controllerKey))
	case got.Type != want.Type || got.Digest != want.Digest || got.Source != mesh.SourceStore:
		reason := fmt.Sprintf("the temporary controller (%s from the %s) still runs, declared is a %s from the store", got.Type, sourceText(got.Source), want.Type)
		if got.Reason != "" {
			reason += ": " + got.Reason
		}
		return observation{reason: reason}, nil
	case got.Reason != "":
		// The right bytes run, but not as declared: an old environment or argument after a failed handover.
		return waiting("%s", describe(got, controllerKey))
	}
	if err := w.node.Call(ctx, mesh.SeatController, mesh.VerbPing, nil, nil); err != nil {
		return waiting("the declared controller does not answer yet: %v", err)
	}
	return done()
}

func sourceText(s mesh.Source) string {
	if s == mesh.SourceAny {
		return "disk"
	}
	return string(s)
}
