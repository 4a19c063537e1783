package raise

import (
	"context"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
)

// Node is what a raise needs of the node that it runs on. The host implements it (in internal/host, which
// does not import this package: every type here is of mesh or hostapi); tests model it.
//
// Every method may be called at any time, also after a crash in the middle of an earlier call, and every
// method that changes something is idempotent: asked again for what is already so, it does nothing and
// returns nil. None of them waits for a resource to become healthy; the raise observes that itself.
type Node interface {
	// Call reaches the seats that are held here. The host answers ping and describe of store, registry
	// and broker itself, by a real request.
	mesh.Caller

	// Info is who the node is, its claim (Claim is the fingerprint of the claim key, "" when unclaimed),
	// its mesh, its data partition (Boot.Data, DataSize) and the clock warning (Boot.Clock).
	Info(ctx context.Context) (hostapi.Node, error)
	// Status is declared beside observed.
	Status(ctx context.Context) (hostapi.Status, error)
	// Declaration is the newest declaration on disk, nil when there is none.
	Declaration(ctx context.Context) (*mesh.Declaration, error)
	// Declare takes a new declaration: on disk when it returns, applied afterwards. A lower version than
	// the newest, or an epoch lower than the last one given out, is a *hostapi.Error with mesh.CodeConflict.
	Declare(ctx context.Context, d mesh.Declaration) error
	// Changes sends (never blocking, coalesced) when something in Status may have changed, until ctx is
	// done. A caller that misses one still polls.
	Changes(ctx context.Context) <-chan struct{}

	// VerifySeed reads every blob of the seed and compares it with its digest, and checks the closure. The
	// error names the first blob that is missing or wrong. progress may be nil; it is told bytes.
	VerifySeed(ctx context.Context, progress func(done, total int64)) error
	// SeedEntries lists the seed's artifacts, in the order of its index.
	SeedEntries(ctx context.Context) ([]mesh.SeedEntry, error)
	// SeedModules reads the module manifests of the seed.
	SeedModules(ctx context.Context) ([]mesh.Manifest, error)
	// SetSeed(false) makes every start of a resource behave as if there were no seed, until SetSeed(true),
	// the end of the host or a reboot: it is never remembered on disk.
	SetSeed(ctx context.Context, enabled bool) error

	// PushSeed copies one artifact from the seed into the store, blobs first, the tagged manifest last.
	PushSeed(ctx context.Context, e mesh.SeedEntry) error
	// ReadStored reads the artifact's manifest and every blob of it back from the store and compares them
	// with their digests. An artifact that is not there is an error like any other. Blobs in read were read
	// back as part of another artifact and must only be there; those that are read are added to it.
	ReadStored(ctx context.Context, e mesh.SeedEntry, read map[string]bool) error

	// Membership is the mesh that this node is in; the zero value when it is in none.
	Membership(ctx context.Context) (mesh.Membership, error)
	// CreateMesh makes the mesh's CA, this node's certificate and the operator's from operatorKey
	// ("ed25519:..." as in mesh.NodeConfig.Claim; "" is the claim key). It fails when the node is in another mesh.
	CreateMesh(ctx context.Context, name, operatorKey string) error
	// KeepCA gives the CA's key to the vault, reads it back, and from then on the vault is where it is
	// kept. Nil when that is so already.
	KeepCA(ctx context.Context) error

	// PortUser says what listens on a TCP port and is not ours: "" when the port is free, or held by the
	// host itself or by a resource of the modules registry and broker.
	PortUser(ctx context.Context, port int) (string, error)
	// BrokerTrip publishes a message on the broker, with the node's own certificate, and gets the reply.
	BrokerTrip(ctx context.Context) error
	// Restart stops a running resource ("MODULE/ID") and starts it again from what its declaration says,
	// a controller under the next epoch. It returns when the new one has been started.
	Restart(ctx context.Context, key string) error
}
