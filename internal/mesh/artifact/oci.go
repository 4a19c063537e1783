package artifact

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"kingpost/internal/mesh"
)

// Media types that other tools write and that are read here as their OCI equals.
const (
	dockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	dockerList     = "application/vnd.docker.distribution.manifest.list.v2+json"
)

// Artifact is one artifact, ready to be carried: its manifest, and how to open each blob it names.
type Artifact struct {
	Ref      mesh.Ref
	Tag      string
	Arch     string // empty for a module
	Manifest []byte
	Desc     ocispec.Descriptor // of Manifest
	Blobs    []Blob             // config first, then the layers; each digest once
}

// Blob is one blob of an artifact.
type Blob struct {
	ocispec.Descriptor
	Open func(ctx context.Context) (io.ReadCloser, error)
}

// ParseManifest reads an OCI image manifest (or Docker's schema 2, which has the same shape) strictly enough
// that every descriptor in it can be used: known digests, sizes within bounds.
func ParseManifest(b []byte) (*ocispec.Manifest, error) {
	if len(b) > MaxManifest {
		return nil, fmt.Errorf("manifest has %d bytes, at most %d are allowed", len(b), MaxManifest)
	}
	var m ocispec.Manifest
	d := json.NewDecoder(bytes.NewReader(b))
	if err := d.Decode(&m); err != nil {
		return nil, fmt.Errorf("manifest is no JSON of an OCI image manifest: %w", err)
	}
	if d.More() {
		return nil, errors.New("manifest is followed by more data")
	}
	if m.SchemaVersion != 2 {
		return nil, fmt.Errorf("manifest has schemaVersion %d, only 2 is known", m.SchemaVersion)
	}
	switch m.MediaType {
	case "", ocispec.MediaTypeImageManifest, dockerManifest:
	default:
		return nil, fmt.Errorf("media type %q is no image manifest", m.MediaType)
	}
	for _, desc := range append([]ocispec.Descriptor{m.Config}, m.Layers...) {
		if err := checkDescriptor(desc); err != nil {
			return nil, err
		}
	}
	return &m, nil
}

func checkDescriptor(d ocispec.Descriptor) error {
	if err := CheckDigest(string(d.Digest)); err != nil {
		return err
	}
	if d.Size < 0 || d.Size > MaxBlob {
		return fmt.Errorf("blob %s claims %d bytes, at most %d are allowed", d.Digest, d.Size, int64(MaxBlob))
	}
	return nil
}

// Load reads the manifest digest of ref from src and makes an Artifact whose blobs are opened from src.
func Load(ctx context.Context, src Source, ref mesh.Ref, tag, digest string) (*Artifact, error) {
	raw, err := src.Manifest(ctx, ref, digest)
	if err != nil {
		return nil, fmt.Errorf("read manifest of %s: %w", ref, err)
	}
	m, err := ParseManifest(raw)
	if err != nil {
		return nil, fmt.Errorf("%s@%s: %w", ref, digest, err)
	}
	a := &Artifact{Ref: ref, Tag: tag, Manifest: raw, Desc: describe(m, raw)}
	for _, d := range append([]ocispec.Descriptor{m.Config}, m.Layers...) {
		if slices.ContainsFunc(a.Blobs, func(b Blob) bool { return b.Digest == d.Digest }) {
			continue
		}
		a.Blobs = append(a.Blobs, Blob{d, func(ctx context.Context) (io.ReadCloser, error) {
			return src.Blob(ctx, ref, string(d.Digest), d.Size)
		}})
	}
	return a, nil
}

// describe is the descriptor of a manifest.
func describe(m *ocispec.Manifest, raw []byte) ocispec.Descriptor {
	mt := m.MediaType
	if mt == "" {
		mt = ocispec.MediaTypeImageManifest
	}
	return ocispec.Descriptor{MediaType: mt, ArtifactType: m.ArtifactType, Digest: digestOf(raw), Size: int64(len(raw))}
}

// Check reads an artifact whole, its manifest and every blob, and reports what is missing or damaged.
// Digests in done are taken as checked; those that were read are added. done may be nil.
func Check(ctx context.Context, src Source, ref mesh.Ref, digest string, done map[string]bool) error {
	if done[digest] {
		return nil
	}
	a, err := Load(ctx, src, ref, "", digest)
	if err != nil {
		return err
	}
	for _, b := range a.Blobs {
		if done[string(b.Digest)] {
			continue
		}
		if err := readWhole(ctx, b); err != nil {
			return fmt.Errorf("%s@%s: blob %s: %w", ref, digest, b.Digest, err)
		}
		if done != nil {
			done[string(b.Digest)] = true
		}
	}
	if done != nil {
		done[digest] = true
	}
	return nil
}

func readWhole(ctx context.Context, b Blob) error {
	rc, err := b.Open(ctx)
	if err != nil {
		return err
	}
	defer rc.Close()
	_, err = io.Copy(io.Discard, contextReader{ctx, rc})
	return err
}

// ReadBlob reads a small blob (a config, a module.json) into memory: at most MaxManifest bytes.
func ReadBlob(ctx context.Context, src Source, ref mesh.Ref, d ocispec.Descriptor) ([]byte, error) {
	if d.Size > MaxManifest {
		return nil, fmt.Errorf("blob %s has %d bytes, at most %d are read into memory", d.Digest, d.Size, MaxManifest)
	}
	rc, err := src.Blob(ctx, ref, string(d.Digest), d.Size)
	if err != nil {
		return nil, err
	}
	defer rc.Close()
	return io.ReadAll(rc)
}

// marshalManifest writes a manifest as this project does: OCI 1.1, compact, annotations in sorted order.
func marshalManifest(artifactType string, config ocispec.Descriptor, layers []ocispec.Descriptor, annotations map[string]string) ([]byte, ocispec.Descriptor, error) {
	m := ocispec.Manifest{
		Versioned:    specs.Versioned{SchemaVersion: 2},
		MediaType:    ocispec.MediaTypeImageManifest,
		ArtifactType: artifactType,
		Config:       config,
		Layers:       layers,
		Annotations:  maps.Clone(annotations),
	}
	raw, err := json.Marshal(&m)
	if err != nil {
		return nil, ocispec.Descriptor{}, err
	}
	return raw, describe(&m, raw), nil
}

// memBlob is a blob that lies in memory.
func memBlob(mediaType string, b []byte) Blob {
	return Blob{
		Descriptor: ocispec.Descriptor{MediaType: mediaType, Digest: digestOf(b), Size: int64(len(b))},
		Open: func(context.Context) (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(b)), nil
		},
	}
}

// contextReader ends a long copy when ctx ends.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, context.Cause(c.ctx)
	}
	return c.r.Read(p)
}
