// Package artifact reads, checks, writes and carries artifacts: bundles, images and modules as OCI content,
// in the seed (an OCI image layout) and in the artifact store (the OCI distribution protocol).
//
// It never trusts bytes that it has not hashed: whatever a Source returns has been checked against the digest
// that was asked for, at the latest when its reader reports io.EOF. It never writes outside the folder it is
// given. It knows no roles and no policy; who may push or pull is the host's business.
//
// Start with Source (where artifacts come from), Artifact (one of them, ready to be carried) and UnpackBundle.
// OpenLayout opens a seed, Client speaks to a store, LayoutWriter writes a seed.
package artifact

import (
	"context"
	"io"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"kingpost/internal/mesh"
)

// Bounds on what is read from outside, in bytes.
const (
	// MaxManifest is what registries accept at most for a manifest; indexes and configs share the bound.
	MaxManifest = 4 << 20
	// MaxBlob bounds one blob.
	MaxBlob = 8 << 30
)

// Source is where artifacts are read from. A layout ignores ref where a digest says it all.
// What is not there is an error that wraps fs.ErrNotExist.
type Source interface {
	// Resolve finds the manifest that tag names in ref's repository.
	Resolve(ctx context.Context, ref mesh.Ref, tag string) (ocispec.Descriptor, error)
	// Manifest returns the bytes of a manifest, which hash to digest.
	Manifest(ctx context.Context, ref mesh.Ref, digest string) ([]byte, error)
	// Blob opens a blob of size bytes. The reader returns an error instead of io.EOF when the content does
	// not hash to digest or is not of that size.
	Blob(ctx context.Context, ref mesh.Ref, digest string, size int64) (io.ReadCloser, error)
}
