package host

import (
	"context"
	"errors"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/verbs"
)

// secretCA is the name under which the vault keeps the mesh CA's key: a secret of the component host.
const secretCA = mesh.HostModule + "/mesh-ca"

// keeper keeps the CA's key in the vault, as the component host, whose own secret it is.
func (h *Host) keeper() vaultKeeper {
	return vaultKeeper{h.router.As(func() mesh.Identity {
		m, _ := h.id.Mesh()
		return mesh.Identity{Mesh: m, Role: mesh.RoleComponent, Name: mesh.HostModule}
	})}
}

// vaultKeeper keeps the mesh CA's key in the vault's seat.
type vaultKeeper struct{ caller mesh.Caller }

// PutKey implements identity.Vault.
func (v vaultKeeper) PutKey(ctx context.Context, pem []byte) error {
	return v.caller.Call(ctx, mesh.SeatVault, "put", verbs.PutParams{Name: secretCA, Value: string(pem)}, nil)
}

// GetKey implements identity.Vault.
func (v vaultKeeper) GetKey(ctx context.Context) ([]byte, error) {
	var r verbs.GetResult
	if err := v.caller.Call(ctx, mesh.SeatVault, "get", verbs.GetParams{Name: secretCA}, &r); err != nil {
		return nil, err
	}
	if r.Value == "" {
		return nil, errors.New("the vault has no text under " + secretCA)
	}
	return []byte(r.Value), nil
}

// secret reads a module's secret for a start of one of its resources on this node. The host asks as the module: the vault
// gives nobody else's.
func (h *Host) secret(ctx context.Context, module, name string, version uint64) ([]byte, error) {
	m, _ := h.id.Mesh()
	if m == "" {
		return nil, errors.New("this node is in no mesh yet, so there is no vault to ask")
	}
	as := h.router.As(func() mesh.Identity { return mesh.Identity{Mesh: m, Role: mesh.RoleComponent, Name: module} })
	var r verbs.GetResult
	if err := as.Call(ctx, mesh.SeatVault, verbs.Get, verbs.GetParams{Name: module + "/" + name, Version: version}, &r); err != nil {
		return nil, err
	}
	if r.Value != "" {
		return []byte(r.Value), nil
	}
	return r.Bytes, nil
}
