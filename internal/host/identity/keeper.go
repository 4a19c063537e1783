package identity

import (
	"context"
	"fmt"

	"kingpost/internal/atomicfile"
)

// Vault keeps the CA's key for the host.
type Vault interface {
	PutKey(ctx context.Context, pem []byte) error
	GetKey(ctx context.Context) ([]byte, error)
}

// SetVault says how to reach the vault. It is called before anything is issued.
func (a *Authority) SetVault(v Vault) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fetch = v.GetKey
}

// Keep gives the CA's key to the vault, reads it back and compares, and only then removes it here. It
// does nothing when the vault has it already. Interrupted, it is simply done again.
func (a *Authority) Keep(ctx context.Context, v Vault) error {
	a.mu.Lock()
	rec := a.rec
	key, err := a.readOptional(fileCAKey)
	a.mu.Unlock()
	switch {
	case rec.Mesh == "":
		return fmt.Errorf("give the mesh CA's key to the vault: %w", ErrNoMesh)
	case rec.Keeper != "":
		return nil
	case err != nil:
		return fmt.Errorf("give the mesh CA's key to the vault: %w", err)
	}
	// The lock is not held: the vault may ask for its own certificate meanwhile.
	if err := v.PutKey(ctx, key); err != nil {
		return fmt.Errorf("give the mesh CA's key to the vault: %w", err)
	}
	back, err := v.GetKey(ctx)
	if err != nil {
		return fmt.Errorf("read the mesh CA's key back from the vault: %w", err)
	}
	if _, err := a.matchCA(back); err != nil {
		return fmt.Errorf("read the mesh CA's key back from the vault: %w", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	rec = a.rec
	rec.Keeper = "vault"
	if err := a.writeRecord(rec); err != nil {
		return fmt.Errorf("note that the vault keeps the mesh CA's key: %w", err)
	}
	a.rec = rec
	return atomicfile.Remove(a.path(fileCAKey))
}
