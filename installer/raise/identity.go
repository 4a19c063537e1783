package raise

import (
	"context"
	"fmt"
)

// Step 2. From here on the node belongs to its mesh, and only certificates of the mesh are accepted.
func observeIdentity(ctx context.Context, w *walk) (observation, error) {
	m, err := w.node.Membership(ctx)
	if err != nil {
		return observation{}, fmt.Errorf("read the node's mesh: %w", err)
	}
	if m.Mesh == w.request.Mesh && m.CA != "" && m.Operator != "" {
		return done()
	}
	return waiting("the mesh CA and the first certificates are made")
}

func actIdentity(ctx context.Context, w *walk) error {
	if err := w.node.CreateMesh(ctx, w.request.Mesh, w.request.Operator); err != nil {
		return fmt.Errorf("make the identity of the mesh %s: %w", w.request.Mesh, err)
	}
	return nil
}
