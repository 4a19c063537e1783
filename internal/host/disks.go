package host

import (
	"context"
	"time"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
)

// disksTime bounds a look at all disks; those that are not reached within it are told of as unread.
const disksTime = 40 * time.Second

// Disks is what disks the machine has, and what an installation by node.yaml would do with them. Disks are read by one
// caller at a time, so that nobody can keep them busy by asking often.
func (h *Host) Disks(ctx context.Context) (hostapi.Disks, error) {
	if h.cfg.Disks == nil {
		return hostapi.Disks{}, &mesh.CallError{Code: mesh.CodeUnavailable, Message: "this host does not look at disks; ask one that runs on a node"}
	}
	select {
	case h.looking <- struct{}{}:
		defer func() { <-h.looking }()
	case <-ctx.Done():
		return hostapi.Disks{}, &mesh.CallError{Code: mesh.CodeUnavailable, Message: "the disks are being looked at for somebody else; ask again"}
	}
	ctx, cancel := context.WithTimeout(ctx, disksTime)
	defer cancel()
	return h.cfg.Disks(ctx, h.boot, h.settings.Install)
}
