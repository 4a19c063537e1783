package host

import (
	"context"
	"net/http"

	"kingpost/internal/host/api"
	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
)

// InstallNode is this node as an installation sees it, which the program brings.
type InstallNode struct{ h *Host }

// Boot is how the node booted.
func (n *InstallNode) Boot() mesh.BootInfo { return n.h.boot }

// Install is that section of node.yaml as it counts; nil for none.
func (n *InstallNode) Install() *mesh.InstallConfig { return n.h.settings.Install }

// Busy says why this node must not be installed elsewhere now, "" for no reason: what is installed starts as a new node, and
// a mesh would be left behind.
func (n *InstallNode) Busy() string {
	if m, _ := n.h.id.Mesh(); m != "" {
		return "this node is in the mesh " + m + ", which would stay behind; `kingpost node reset` makes it a new one"
	}
	if r := n.h.raises(); r != nil {
		switch st := r.Status(); st.State {
		case "", "none", "refused":
		default:
			return "this node is being raised as the mesh " + st.Mesh
		}
	}
	return ""
}

// Power begins to stop the node.
func (n *InstallNode) Power(action string) error { return n.h.Power(action) }

// installFirst reports whether node.yaml asks for an installation: then the node raises nothing by itself, since what it
// raised would be left behind on the medium.
func (h *Host) installFirst() bool {
	return h.installer != nil && h.installer.Status().State != hostapi.InstallNone
}

// installStatus is how the installation stands, for people; nil where there is none.
func (h *Host) installStatus() *hostapi.InstallStatus {
	if h.installer == nil {
		return nil
	}
	s := h.installer.Status()
	if s.State == hostapi.InstallNone {
		return nil
	}
	s.Plan = nil
	return &s
}

// installs is nil, and not an interface that holds nil, where this host does not install.
func (h *Host) installs() api.Installs {
	if h.installer == nil {
		return nil
	}
	return h.installer
}

// guarded is a raise that does not begin while the node is installed onto another disk.
type guarded struct {
	api.Raises
	h *Host
}

// Start implements api.Raises.
func (g guarded) Start(ctx context.Context, req hostapi.RaiseRequest) (hostapi.RaiseStatus, error) {
	if s := g.h.installStatus(); s != nil && (s.State == hostapi.InstallRunning || s.State == hostapi.InstallDone) {
		return g.Status(), &hostapi.Error{Status: http.StatusConflict, Code: mesh.CodeConflict,
			Message: "the node is being installed onto " + s.Target + "; raise it when it has started from there. Nothing was changed"}
	}
	return g.Raises.Start(ctx, req)
}
