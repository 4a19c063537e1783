package host

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"

	"kingpost/internal/host/ports"
	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
	"kingpost/internal/mesh/tlsid"
)

// RaiseNode is this node as a raise sees it. It implements raise.Node of installer/raise, which this
// package does not import: the raise is brought by the program.
type RaiseNode struct{ h *Host }

// Call implements mesh.Caller with the node's own authority.
func (n *RaiseNode) Call(ctx context.Context, seat, verb string, params, result any, opts ...mesh.CallOption) error {
	return n.h.router.Call(ctx, seat, verb, params, result, opts...)
}

// Info is who the node is.
func (n *RaiseNode) Info(context.Context) (hostapi.Node, error) { return n.h.Node(), nil }

// Status is declared beside observed.
func (n *RaiseNode) Status(context.Context) (hostapi.Status, error) { return n.h.super.Status(), nil }

// Declaration is the newest declaration, nil when there is none.
func (n *RaiseNode) Declaration(context.Context) (*mesh.Declaration, error) {
	d, ok := n.h.super.Declaration()
	if !ok {
		return nil, nil
	}
	return &d, nil
}

// Declare takes a new declaration; an older one is an *hostapi.Error with mesh.CodeConflict.
func (n *RaiseNode) Declare(ctx context.Context, d mesh.Declaration) error {
	err := n.h.super.Declare(ctx, d)
	var ce *mesh.CallError
	if errors.As(err, &ce) {
		status := http.StatusBadRequest
		if ce.Code == mesh.CodeConflict {
			status = http.StatusConflict
		}
		return &hostapi.Error{Status: status, Code: ce.Code, Message: ce.Message}
	}
	return err
}

// Changes tells, coalesced, that Status may have changed, until ctx is done.
func (n *RaiseNode) Changes(ctx context.Context) <-chan struct{} {
	out := make(chan struct{}, 1)
	go func() {
		for {
			select {
			case <-n.h.super.Changed():
			case <-ctx.Done():
				return
			}
			select {
			case out <- struct{}{}:
			default:
			}
		}
	}()
	return out
}

// SetSeed enables or disables the seed as a source until the host ends.
func (n *RaiseNode) SetSeed(_ context.Context, enabled bool) error {
	n.h.super.SetSeed(enabled)
	return nil
}

// Restart stops a resource and starts it again.
func (n *RaiseNode) Restart(ctx context.Context, key string) error {
	return n.h.super.Restart(ctx, key)
}

// Membership is the mesh that this node is in.
func (n *RaiseNode) Membership(context.Context) (mesh.Membership, error) { return n.h.id.Membership() }

// CreateMesh makes the mesh's CA and the first certificates, and freezes node.yaml's claim.
func (n *RaiseNode) CreateMesh(_ context.Context, name, operatorKey string) error {
	operator := n.h.settings.Key
	if operatorKey != "" {
		var err error
		if operator, err = tlsid.ParsePublicKey(operatorKey); err != nil {
			return fmt.Errorf("the operator's key: %w", err)
		}
	}
	if len(operator) != ed25519.PublicKeySize {
		return errors.New("nobody has claimed this node: put the operator's key into node.yaml as claim, and restart the node")
	}
	if err := n.h.id.Create(name, n.h.Name(), n.h.self.Key, operator); err != nil {
		return err
	}
	return n.h.settings.Freeze(n.h.cfg.Paths.node())
}

// KeepCA gives the CA's key to the vault.
func (n *RaiseNode) KeepCA(ctx context.Context) error {
	return n.h.id.Keep(ctx, n.h.keeper())
}

// BrokerTrip publishes a message on the broker and gets the reply.
func (n *RaiseNode) BrokerTrip(ctx context.Context) error {
	_, err := n.h.broker.Trip(ctx)
	return err
}

// PortUser names who listens on a port and is not ours, "" when nobody is.
func (n *RaiseNode) PortUser(_ context.Context, port int) (string, error) {
	ls, err := ports.Listeners(n.h.cfg.Paths.Proc, port)
	if err != nil {
		return "", err
	}
	for _, l := range ls {
		if l.PID == os.Getpid() || ourCgroup(l.Cgroup) {
			continue
		}
		if l.PID == 0 {
			return l.Name, nil
		}
		return fmt.Sprintf("%s (pid %d)", l.Name, l.PID), nil
	}
	return "", nil
}

// ourCgroup says whether a cgroup is that of a resource of the modules registry and broker.
func ourCgroup(path string) bool {
	_, rest, ok := strings.Cut(path, "/kingpost/")
	return ok && (strings.HasPrefix(rest, "registry.") || strings.HasPrefix(rest, "broker."))
}
