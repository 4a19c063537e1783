package artifact

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// LayoutWriter writes an OCI image layout into a folder. Nothing in it is a layout until Close wrote the
// index, which it does last. It is for one goroutine.
type LayoutWriter struct {
	dir     string
	entries map[string]ocispec.Descriptor
}

// NewLayoutWriter starts a layout in dir, which must be empty or absent.
func NewLayoutWriter(dir string) (*LayoutWriter, error) {
	if err := os.MkdirAll(filepath.Join(dir, ocispec.ImageBlobsDir, "sha256"), 0o755); err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(dir, ocispec.ImageIndexFile)); err == nil {
		return nil, fmt.Errorf("%s holds a layout already", dir)
	}
	return &LayoutWriter{dir: dir, entries: map[string]ocispec.Descriptor{}}, nil
}

// Add writes an artifact's manifest and those of its blobs that are not there yet, each checked by digest.
func (w *LayoutWriter) Add(ctx context.Context, a *Artifact) error {
	name := a.Ref.Repository() + ":" + a.Tag
	if _, _, err := ParseRef(name); err != nil {
		return err
	}
	if _, ok := w.entries[name]; ok {
		return fmt.Errorf("%s is in the layout already", name)
	}
	for _, b := range a.Blobs {
		if err := w.addBlob(ctx, b); err != nil {
			return fmt.Errorf("%s: blob %s: %w", name, b.Digest, err)
		}
	}
	manifest := memBlob(a.Desc.MediaType, a.Manifest)
	if manifest.Digest != a.Desc.Digest {
		return fmt.Errorf("%s: manifest: %w", name, &DigestError{Want: string(a.Desc.Digest), Got: string(manifest.Digest)})
	}
	if err := w.addBlob(ctx, manifest); err != nil {
		return fmt.Errorf("%s: manifest: %w", name, err)
	}
	d := a.Desc
	d.Annotations = map[string]string{ocispec.AnnotationRefName: name}
	if a.Arch != "" {
		d.Platform = &ocispec.Platform{Architecture: a.Arch, OS: "linux"}
	}
	w.entries[name] = d
	return nil
}

func (w *LayoutWriter) addBlob(ctx context.Context, b Blob) (err error) {
	if err := checkDescriptor(b.Descriptor); err != nil {
		return err
	}
	name := filepath.Join(w.dir, filepath.FromSlash(blobPath(string(b.Digest))))
	if st, err := os.Stat(name); err == nil && st.Size() == b.Size {
		return nil
	}
	rc, err := b.Open(ctx)
	if err != nil {
		return err
	}
	defer rc.Close()
	f, err := os.CreateTemp(filepath.Dir(name), ".new-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	_, err = io.Copy(f, contextReader{ctx, VerifyReader(rc, string(b.Digest), b.Size)})
	if err := errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}

// Close writes the index, sorted by name. Without it the folder is no layout.
func (w *LayoutWriter) Close() error {
	idx := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{}}
	for _, name := range slices.SortedFunc(maps.Keys(w.entries), strings.Compare) {
		idx.Manifests = append(idx.Manifests, w.entries[name])
	}
	raw, err := json.Marshal(&idx)
	if err != nil {
		return err
	}
	marker, err := json.Marshal(ocispec.ImageLayout{Version: ocispec.ImageLayoutVersion})
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(w.dir, ocispec.ImageLayoutFile), marker, 0o644); err != nil {
		return err
	}
	tmp := filepath.Join(w.dir, ".index.new")
	if err := os.WriteFile(tmp, raw, 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(w.dir, ocispec.ImageIndexFile))
}
