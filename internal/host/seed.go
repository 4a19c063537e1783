package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/artifact"
)

func (n *RaiseNode) layout() (*artifact.Layout, error) {
	l, err := artifact.OpenLayout(os.DirFS(n.h.cfg.Paths.Seed))
	if err != nil {
		return nil, fmt.Errorf("open the seed in %s: %w", n.h.cfg.Paths.Seed, err)
	}
	return l, nil
}

// VerifySeed reads every blob of the seed and compares it with its digest.
func (n *RaiseNode) VerifySeed(ctx context.Context, progress func(done, total int64)) error {
	l, err := n.layout()
	if err != nil {
		return err
	}
	return l.Verify(ctx, progress)
}

// SeedEntries lists the seed's artifacts in the order of its index.
func (n *RaiseNode) SeedEntries(ctx context.Context) ([]mesh.SeedEntry, error) {
	l, err := n.layout()
	if err != nil {
		return nil, err
	}
	var out []mesh.SeedEntry
	for _, e := range l.Entries() {
		a, err := artifact.Load(ctx, l, e.Ref, e.Tag, e.Digest)
		if err != nil {
			return nil, fmt.Errorf("seed: %s: %w", e, err)
		}
		size := int64(len(a.Manifest))
		for _, b := range a.Blobs {
			size += b.Size
		}
		out = append(out, mesh.SeedEntry{Ref: e.Ref, Tag: e.Tag, Arch: e.Arch, Digest: e.Digest, Size: size})
	}
	return out, nil
}

// SeedModules reads the module manifests of the seed.
func (n *RaiseNode) SeedModules(ctx context.Context) ([]mesh.Manifest, error) {
	l, err := n.layout()
	if err != nil {
		return nil, err
	}
	var out []mesh.Manifest
	for _, e := range l.Entries() {
		if e.Ref.Kind != mesh.ArtifactModule {
			continue
		}
		b, err := artifact.ReadModule(ctx, l, e.Ref, e.Digest)
		if err != nil {
			return nil, fmt.Errorf("seed: %s: %w", e, err)
		}
		m, err := mesh.DecodeManifest(bytes.NewReader(b))
		if err != nil {
			return nil, fmt.Errorf("seed: %s: %w", e, err)
		}
		out = append(out, m)
	}
	return out, nil
}

// PushSeed copies one artifact from the seed into the store. A component's bundle and image share their
// layer, which is then mounted and not sent twice.
func (n *RaiseNode) PushSeed(ctx context.Context, e mesh.SeedEntry) error {
	l, err := n.layout()
	if err != nil {
		return err
	}
	c := artifact.NewClient(n.h.dialStore)
	defer c.HTTP.CloseIdleConnections()
	var twin []mesh.Ref
	switch e.Kind {
	case mesh.ArtifactBundle:
		twin = []mesh.Ref{{Kind: mesh.ArtifactImage, Name: e.Name}}
	case mesh.ArtifactImage:
		twin = []mesh.Ref{{Kind: mesh.ArtifactBundle, Name: e.Name}}
	}
	return c.Copy(ctx, l, e.Ref, e.Tag, e.Digest, artifact.MountFrom(twin...))
}

// ReadStored reads an artifact back from the store: the manifest under its tag, and every blob whole. Blobs
// in read were read already, from whichever repository: there is one copy of each, which must only be linked here.
func (n *RaiseNode) ReadStored(ctx context.Context, e mesh.SeedEntry, read map[string]bool) error {
	c := artifact.NewClient(n.h.dialStore)
	defer c.HTTP.CloseIdleConnections()
	d, err := c.Resolve(ctx, e.Ref, e.Tag)
	if err != nil {
		return err
	}
	if string(d.Digest) != e.Digest {
		return fmt.Errorf("the store has %s under %s:%s, want %s", d.Digest, e.Ref, e.Tag, e.Digest)
	}
	a, err := artifact.Load(ctx, c, e.Ref, e.Tag, e.Digest)
	if err != nil {
		return err
	}
	for _, b := range a.Blobs {
		if read[string(b.Digest)] {
			if ok, err := c.HasBlob(ctx, e.Ref, string(b.Digest)); err != nil || !ok {
				return fmt.Errorf("the store does not have %s in %s: %w", b.Digest, e.Ref, errors.Join(err, fs.ErrNotExist))
			}
			continue
		}
		if err := readBlob(ctx, b); err != nil {
			return fmt.Errorf("read %s of %s back from the store: %w", b.Digest, e.Ref, err)
		}
		read[string(b.Digest)] = true
	}
	return nil
}

// readBlob reads a blob to its end; the reader compares the digest.
func readBlob(ctx context.Context, b artifact.Blob) error {
	rc, err := b.Open(ctx)
	if err != nil {
		return err
	}
	defer rc.Close()
	_, err = io.Copy(io.Discard, rc)
	return err
}
