// Package imagetest makes OCI images for tests, layer by layer, with what images of others have and ours do not: hard
// links, whiteouts, setuid bits, owners and extended attributes.
//
// It is for tests alone. Start with New.
package imagetest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/artifact"
)

// Entry is one entry of a layer. Without Type it is a regular file.
type Entry struct {
	Name    string
	Type    byte   // of archive/tar
	Link    string // of a hard or symbolic link
	Mode    int64  // with setuid bits; 0 is 0644, or 0755 for a folder
	UID     int
	Content []byte
	Xattrs  map[string]string
}

// Whiteout removes name, which a layer below has.
func Whiteout(dir, name string) Entry { return Entry{Name: dir + "/.wh." + name} }

// Opaque removes everything that layers below have in a folder.
func Opaque(dir string) Entry { return Entry{Name: dir + "/.wh..wh..opq"} }

// Layer packs entries as a gzipped tar, and returns it with the digest of the tar.
func Layer(entries ...Entry) (packed []byte, diffID digest.Digest, err error) {
	var plain bytes.Buffer
	w := tar.NewWriter(&plain)
	for _, e := range entries {
		h := &tar.Header{
			Name: e.Name, Typeflag: e.Type, Linkname: e.Link, Mode: e.Mode, Uid: e.UID, Gid: e.UID, Size: int64(len(e.Content)),
			ModTime: time.Unix(1, 0), Format: tar.FormatPAX,
		}
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Mode == 0 {
			h.Mode = 0o644
			if h.Typeflag == tar.TypeDir {
				h.Mode = 0o755
			}
		}
		for k, v := range e.Xattrs {
			if h.PAXRecords == nil {
				h.PAXRecords = map[string]string{}
			}
			h.PAXRecords["SCHILY.xattr."+k] = v
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, "", fmt.Errorf("pack %s: %w", e.Name, err)
		}
		if _, err := w.Write(e.Content); err != nil {
			return nil, "", fmt.Errorf("pack %s: %w", e.Name, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, "", err
	}
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	_, err = z.Write(plain.Bytes())
	if err := errors.Join(err, z.Close()); err != nil {
		return nil, "", err
	}
	return out.Bytes(), digest.FromBytes(plain.Bytes()), nil
}

// New makes the image name for an architecture out of layers, lowest first.
func New(name, arch string, config ocispec.ImageConfig, layers ...[]Entry) (*artifact.Artifact, error) {
	image := ocispec.Image{Platform: ocispec.Platform{Architecture: arch, OS: "linux"}, Config: config, RootFS: ocispec.RootFS{Type: "layers"}}
	m := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest}
	a := &artifact.Artifact{Ref: mesh.Ref{Kind: mesh.ArtifactImage, Name: name}, Arch: arch}
	var blobs []artifact.Blob
	for _, entries := range layers {
		b, diffID, err := Layer(entries...)
		if err != nil {
			return nil, err
		}
		d := describe(ocispec.MediaTypeImageLayerGzip, b)
		image.RootFS.DiffIDs = append(image.RootFS.DiffIDs, diffID)
		m.Layers = append(m.Layers, d)
		blobs = append(blobs, blob(d, b))
	}
	b, err := json.Marshal(image)
	if err != nil {
		return nil, err
	}
	m.Config = describe(ocispec.MediaTypeImageConfig, b)
	a.Blobs = append([]artifact.Blob{blob(m.Config, b)}, blobs...)
	if a.Manifest, err = json.Marshal(m); err != nil {
		return nil, err
	}
	a.Desc = describe(ocispec.MediaTypeImageManifest, a.Manifest)
	return a, nil
}

func describe(mediaType string, b []byte) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(b), Size: int64(len(b))}
}

func blob(d ocispec.Descriptor, b []byte) artifact.Blob {
	return artifact.Blob{Descriptor: d, Open: func(context.Context) (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(b)), nil
	}}
}
