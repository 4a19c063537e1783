package artifact

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"kingpost/internal/mesh"
)

// Layout is an OCI image layout that is read: the seed. It implements Source.
type Layout struct {
	fsys    fs.FS
	entries []Entry
}

// Entry is one named artifact of a layout.
type Entry struct {
	Ref    mesh.Ref           `json:"ref"`
	Tag    string             `json:"tag"`
	Arch   string             `json:"arch,omitempty"` // empty for a module
	Digest string             `json:"digest"`
	Desc   ocispec.Descriptor `json:"-"`
}

// String is the entry's reference name: "bundle/mesh-controller:0.1.0-amd64".
func (e Entry) String() string { return e.Ref.Repository() + ":" + e.Tag }

// OpenLayout reads the index of the layout at the root of fsys and checks its shape. Blobs are checked
// when they are read, or all at once by Verify.
func OpenLayout(fsys fs.FS) (*Layout, error) {
	marker, err := readBounded(fsys, ocispec.ImageLayoutFile, 4096)
	if err != nil {
		return nil, fmt.Errorf("this is no OCI image layout: %w", err)
	}
	index, err := readBounded(fsys, ocispec.ImageIndexFile, MaxManifest)
	if err != nil {
		return nil, fmt.Errorf("this is no OCI image layout: %w", err)
	}
	entries, err := parseIndex(marker, index)
	if err != nil {
		return nil, err
	}
	return &Layout{fsys: fsys, entries: entries}, nil
}

func parseIndex(marker, index []byte) ([]Entry, error) {
	var layout ocispec.ImageLayout
	if err := json.Unmarshal(marker, &layout); err != nil {
		return nil, fmt.Errorf("%s: %w", ocispec.ImageLayoutFile, err)
	}
	if layout.Version != ocispec.ImageLayoutVersion {
		return nil, fmt.Errorf("%s: version %.20q, only %s is known", ocispec.ImageLayoutFile, layout.Version, ocispec.ImageLayoutVersion)
	}
	var idx ocispec.Index
	if err := json.Unmarshal(index, &idx); err != nil {
		return nil, fmt.Errorf("%s: %w", ocispec.ImageIndexFile, err)
	}
	if idx.SchemaVersion != 2 {
		return nil, fmt.Errorf("%s: schemaVersion %d, only 2 is known", ocispec.ImageIndexFile, idx.SchemaVersion)
	}
	var entries []Entry
	seen := map[string]bool{}
	for i, d := range idx.Manifests {
		e, err := parseEntry(d)
		if err != nil {
			return nil, fmt.Errorf("%s: manifest %d: %w", ocispec.ImageIndexFile, i, err)
		}
		if seen[e.String()] {
			return nil, fmt.Errorf("%s: %s is there twice", ocispec.ImageIndexFile, e)
		}
		seen[e.String()] = true
		entries = append(entries, e)
	}
	return entries, nil
}

func parseEntry(d ocispec.Descriptor) (Entry, error) {
	if err := checkDescriptor(d); err != nil {
		return Entry{}, err
	}
	if d.MediaType != ocispec.MediaTypeImageManifest {
		return Entry{}, fmt.Errorf("%s has media type %.80q, wanted %s", d.Digest, d.MediaType, ocispec.MediaTypeImageManifest)
	}
	ref, tag, err := ParseRef(d.Annotations[ocispec.AnnotationRefName])
	if err != nil {
		return Entry{}, fmt.Errorf("%s: annotation %s: %w", d.Digest, ocispec.AnnotationRefName, err)
	}
	e := Entry{Ref: ref, Tag: tag, Digest: string(d.Digest), Desc: d}
	if d.Platform != nil {
		e.Arch = d.Platform.Architecture
	}
	return e, nil
}

// ParseRef reads "KIND/NAME:TAG".
func ParseRef(s string) (mesh.Ref, string, error) {
	repo, tag, ok := strings.Cut(s, ":")
	kind, name, ok2 := strings.Cut(repo, "/")
	if !ok || !ok2 {
		return mesh.Ref{}, "", fmt.Errorf("%.100q is not KIND/NAME:TAG", s)
	}
	switch mesh.ArtifactKind(kind) {
	case mesh.ArtifactBundle, mesh.ArtifactImage, mesh.ArtifactModule:
	default:
		return mesh.Ref{}, "", fmt.Errorf("%.100q has the unknown kind %q; bundle, image and module are known", s, kind)
	}
	if err := mesh.CheckName(name); err != nil {
		return mesh.Ref{}, "", err
	}
	if err := checkTag(tag); err != nil {
		return mesh.Ref{}, "", err
	}
	return mesh.Ref{Kind: mesh.ArtifactKind(kind), Name: name}, tag, nil
}

// checkTag accepts a tag of the distribution specification: [a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}.
func checkTag(tag string) error {
	if tag == "" || len(tag) > 128 {
		return fmt.Errorf("tag %.40q must have 1 to 128 characters", tag)
	}
	for i, c := range tag {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', i > 0 && (c == '.' || c == '-'):
		default:
			return fmt.Errorf("tag %.40q has %q in it", tag, c)
		}
	}
	return nil
}

// Entries lists what the layout names, in the index's order.
func (l *Layout) Entries() []Entry { return slices.Clone(l.entries) }

// Find returns the entry of ref for an architecture ("" for a module). With several versions the last one counts.
func (l *Layout) Find(ref mesh.Ref, arch string) (Entry, error) {
	for _, e := range slices.Backward(l.entries) {
		if e.Ref == ref && e.Arch == arch {
			return e, nil
		}
	}
	return Entry{}, fmt.Errorf("%s for %q is not in the layout: %w", ref, arch, fs.ErrNotExist)
}

// Digests binds every bundle and image of the layout to its digest, as a push carries them.
func (l *Layout) Digests() mesh.Digests {
	out := mesh.Digests{}
	for _, e := range l.entries {
		if e.Ref.Kind == mesh.ArtifactModule {
			continue
		}
		if out[e.Ref.String()] == nil {
			out[e.Ref.String()] = map[string]string{}
		}
		out[e.Ref.String()][e.Arch] = e.Digest
	}
	return out
}

// Resolve implements Source.
func (l *Layout) Resolve(_ context.Context, ref mesh.Ref, tag string) (ocispec.Descriptor, error) {
	for _, e := range l.entries {
		if e.Ref == ref && e.Tag == tag {
			return e.Desc, nil
		}
	}
	return ocispec.Descriptor{}, fmt.Errorf("%s:%s is not in the layout: %w", ref, tag, fs.ErrNotExist)
}

// Manifest implements Source.
func (l *Layout) Manifest(_ context.Context, _ mesh.Ref, digest string) ([]byte, error) {
	f, err := l.open(digest)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readAll(f, digest, MaxManifest)
}

// Blob implements Source.
func (l *Layout) Blob(_ context.Context, _ mesh.Ref, digest string, size int64) (io.ReadCloser, error) {
	f, err := l.open(digest)
	if err != nil {
		return nil, err
	}
	return VerifyReader(f, digest, size), nil
}

func (l *Layout) open(digest string) (fs.File, error) {
	if err := CheckDigest(digest); err != nil {
		return nil, err
	}
	f, err := l.fsys.Open(blobPath(digest))
	if err != nil {
		return nil, fmt.Errorf("blob %s is not in the layout: %w", digest, err)
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = errors.New("is no regular file")
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("blob %s: %w", digest, err)
	}
	return f, nil
}

func blobPath(digest string) string {
	return path.Join(ocispec.ImageBlobsDir, "sha256", strings.TrimPrefix(digest, "sha256:"))
}

// Verify reads the layout whole: every entry's closure, each blob once, and that no file lies among the blobs
// that does not hash to its own name. progress, if not nil, is told the bytes read so far and in all.
func (l *Layout) Verify(ctx context.Context, progress func(done, total int64)) error {
	dir := path.Join(ocispec.ImageBlobsDir, "sha256")
	files, err := fs.ReadDir(l.fsys, dir)
	if err != nil {
		return fmt.Errorf("list the layout's blobs: %w", err)
	}
	var total, sofar int64
	sizes := map[string]int64{}
	for _, f := range files {
		digest := "sha256:" + f.Name()
		if err := CheckDigest(digest); err != nil {
			return fmt.Errorf("%s/%s does not belong there: %w", dir, f.Name(), err)
		}
		st, err := f.Info()
		if err != nil {
			return err
		}
		sizes[digest] = st.Size()
		total += st.Size()
	}
	for _, f := range files {
		digest := "sha256:" + f.Name()
		r, err := l.Blob(ctx, mesh.Ref{}, digest, sizes[digest])
		if err != nil {
			return err
		}
		n, err := io.Copy(io.Discard, contextReader{ctx, r})
		r.Close()
		if err != nil {
			return fmt.Errorf("blob %s: %w", digest, err)
		}
		sofar += n
		if progress != nil {
			progress(sofar, total)
		}
	}
	for _, e := range l.entries {
		if err := l.closed(ctx, e, sizes); err != nil {
			return fmt.Errorf("%s: %w", e, err)
		}
	}
	return nil
}

// closed checks that all that e names is there in the right size; the bytes were hashed already.
func (l *Layout) closed(ctx context.Context, e Entry, sizes map[string]int64) error {
	a, err := Load(ctx, l, e.Ref, e.Tag, e.Digest)
	if err != nil {
		return err
	}
	if e.Desc.Size != int64(len(a.Manifest)) {
		return fmt.Errorf("its manifest has %d bytes, the index says %d", len(a.Manifest), e.Desc.Size)
	}
	for _, b := range a.Blobs {
		size, ok := sizes[string(b.Digest)]
		if !ok {
			return fmt.Errorf("blob %s is not in the layout: %w", b.Digest, fs.ErrNotExist)
		}
		if size != b.Size {
			return fmt.Errorf("blob %s has %d bytes, its manifest says %d", b.Digest, size, b.Size)
		}
	}
	return nil
}

func readBounded(fsys fs.FS, name string, limit int64) ([]byte, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("%s has more than %d bytes", name, limit)
	}
	return b, err
}
