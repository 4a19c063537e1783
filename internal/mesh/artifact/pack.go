package artifact

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
	godigest "github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"kingpost/internal/fsverity"
	"kingpost/internal/mesh"
)

func digestOf(b []byte) godigest.Digest { return godigest.Digest(DigestOf(b)) }

// File is one file of a bundle that is being packed.
type File struct {
	Path string // clean, relative, slash-separated
	Mode uint32 // 0o644 or 0o755
	Link string // target of a symbolic link, relative and inside the bundle; then Size and Open are not used
	Size int64
	Open func() (io.ReadCloser, error)
}

// FileFromDisk packs the file name as p.
func FileFromDisk(p, name string, mode uint32) (File, error) {
	st, err := os.Stat(name)
	if err != nil {
		return File{}, err
	}
	if !st.Mode().IsRegular() {
		return File{}, fmt.Errorf("%s is no regular file", name)
	}
	return File{Path: p, Mode: mode, Size: st.Size(), Open: func() (io.ReadCloser, error) { return os.Open(name) }}, nil
}

// Layer is a packed layer: a zstd-compressed tar, and what a bundle's config and an image's config say of it.
type Layer struct {
	Digest string            `json:"digest"` // of the compressed bytes
	Size   int64             `json:"size"`   // of the compressed bytes
	DiffID string            `json:"diffID"` // digest of the tar itself
	Media  string            `json:"mediaType"`
	Files  []mesh.BundleFile `json:"files"`
}

func (l *Layer) descriptor() ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: l.Media, Digest: godigest.Digest(l.Digest), Size: l.Size}
}

// LayerWindow is the zstd window of layers, in bytes: what a node needs to unpack one is little more.
const LayerWindow = 8 << 20

// PackLayer writes files as a layer to w. The same files and time give the same bytes: entries are sorted,
// owned by root, and carry mtime alone. Parent directories are written as 0755.
func PackLayer(ctx context.Context, w io.Writer, files []File, mtime time.Time) (*Layer, error) {
	files = slices.Clone(files)
	slices.SortFunc(files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	paths := map[string]bool{}
	for _, f := range files {
		paths[f.Path] = true
	}
	for i, f := range files {
		if err := checkBundlePath(f.Path); err != nil {
			return nil, err
		}
		if i > 0 && files[i-1].Path == f.Path {
			return nil, fmt.Errorf("%s is in the bundle twice", f.Path)
		}
		for dir := path.Dir(f.Path); dir != "."; dir = path.Dir(dir) {
			if paths[dir] {
				return nil, &EntryError{f.Path, fmt.Sprintf("%.100q is a file or a link of the same bundle and no folder", dir)}
			}
		}
		if f.Link != "" {
			if err := checkBundleLink(f.Path, f.Link); err != nil {
				return nil, err
			}
		} else if f.Mode != 0o644 && f.Mode != 0o755 {
			return nil, fmt.Errorf("%s has mode %04o; a bundle's files are 0644 or 0755", f.Path, f.Mode)
		}
	}

	outer := &countingHash{h: sha256.New(), w: w}
	// One goroutine: the caller packs several layers at once, and the bytes are the same at any number.
	z, err := zstd.NewWriter(outer, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(LayerWindow))
	if err != nil {
		return nil, err
	}
	inner := &countingHash{h: sha256.New(), w: z}
	tw := tar.NewWriter(inner)
	l := &Layer{Media: ocispec.MediaTypeImageLayerZstd}
	made := map[string]bool{".": true}
	for _, f := range files {
		if err := writeParents(tw, f.Path, mtime, made); err != nil {
			return nil, err
		}
		bf, err := writeFile(ctx, tw, f, mtime)
		if err != nil {
			return nil, fmt.Errorf("pack %s: %w", f.Path, err)
		}
		l.Files = append(l.Files, bf)
	}
	if err := errors.Join(tw.Close(), z.Close()); err != nil {
		return nil, err
	}
	l.Digest, l.Size, l.DiffID = digestString(outer.h), outer.n, digestString(inner.h)
	return l, nil
}

func writeParents(tw *tar.Writer, p string, mtime time.Time, made map[string]bool) error {
	dir := path.Dir(p)
	if made[dir] {
		return nil
	}
	if err := writeParents(tw, dir, mtime, made); err != nil {
		return err
	}
	made[dir] = true
	return tw.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755, ModTime: mtime, Format: tar.FormatPAX})
}

func writeFile(ctx context.Context, tw *tar.Writer, f File, mtime time.Time) (mesh.BundleFile, error) {
	if f.Link != "" {
		err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: f.Path, Linkname: f.Link, Mode: 0o777, ModTime: mtime, Format: tar.FormatPAX})
		return mesh.BundleFile{Path: f.Path, Mode: 0o777, Link: f.Link}, err
	}
	h := &tar.Header{Typeflag: tar.TypeReg, Name: f.Path, Mode: int64(f.Mode), Size: f.Size, ModTime: mtime, Format: tar.FormatPAX}
	if err := tw.WriteHeader(h); err != nil {
		return mesh.BundleFile{}, err
	}
	rc, err := f.Open()
	if err != nil {
		return mesh.BundleFile{}, err
	}
	defer rc.Close()
	sum, verity := sha256.New(), fsverity.New()
	n, err := io.Copy(io.MultiWriter(tw, sum, verity), contextReader{ctx, rc})
	if err != nil {
		return mesh.BundleFile{}, err
	}
	if n != f.Size {
		return mesh.BundleFile{}, fmt.Errorf("has %d bytes, not %d: it changed while it was packed", n, f.Size)
	}
	return mesh.BundleFile{
		Path: f.Path, Mode: f.Mode, Size: n,
		SHA256: hex.EncodeToString(sum.Sum(nil)), FSVerity: hex.EncodeToString(verity.Sum(nil)),
	}, nil
}

// Origin is what an artifact says about where it comes from; none of it decides anything.
type Origin struct {
	Version string
	Arch    string // Go's name: "amd64"
	Created time.Time
}

func (o Origin) annotations(name string) map[string]string {
	return map[string]string{
		ocispec.AnnotationTitle:   name,
		ocispec.AnnotationVersion: o.Version,
		ocispec.AnnotationCreated: o.Created.UTC().Format(time.RFC3339),
	}
}

// NewBundle makes the bundle name over layer, whose bytes open returns.
func NewBundle(name string, o Origin, layer *Layer, open func(context.Context) (io.ReadCloser, error)) (*Artifact, error) {
	cfg, err := json.Marshal(mesh.BundleConfig{Architecture: o.Arch, Files: layer.Files})
	if err != nil {
		return nil, err
	}
	return assemble(mesh.Ref{Kind: mesh.ArtifactBundle, Name: name}, o, mesh.TypeBundle, memBlob(mesh.TypeBundleConfig, cfg), Blob{layer.descriptor(), open})
}

// ImageConfig is what an image runs.
type ImageConfig struct {
	Entrypoint []string
	Cmd        []string
	Env        []string
	User       string
	WorkingDir string
}

// NewImage makes the image name over layer, whose bytes open returns.
func NewImage(name string, o Origin, run ImageConfig, layer *Layer, open func(context.Context) (io.ReadCloser, error)) (*Artifact, error) {
	created := o.Created.UTC()
	cfg, err := json.Marshal(ocispec.Image{
		Created:  &created,
		Platform: ocispec.Platform{Architecture: o.Arch, OS: "linux"},
		Config: ocispec.ImageConfig{
			Entrypoint: run.Entrypoint, Cmd: run.Cmd, Env: run.Env, User: run.User, WorkingDir: run.WorkingDir,
		},
		RootFS: ocispec.RootFS{Type: "layers", DiffIDs: []godigest.Digest{godigest.Digest(layer.DiffID)}},
	})
	if err != nil {
		return nil, err
	}
	return assemble(mesh.Ref{Kind: mesh.ArtifactImage, Name: name}, o, "", memBlob(ocispec.MediaTypeImageConfig, cfg), Blob{layer.descriptor(), open})
}

// NewModule makes the module artifact of a module.json, whose bytes are kept as they are.
func NewModule(name string, o Origin, manifest []byte) (*Artifact, error) {
	o.Arch = ""
	empty := memBlob(ocispec.MediaTypeEmptyJSON, []byte("{}"))
	return assemble(mesh.Ref{Kind: mesh.ArtifactModule, Name: name}, o, mesh.TypeModule, empty, memBlob(mesh.TypeModuleJSON, manifest))
}

// ReadModule returns the module.json of a module artifact.
func ReadModule(ctx context.Context, src Source, ref mesh.Ref, digest string) ([]byte, error) {
	raw, err := src.Manifest(ctx, ref, digest)
	if err != nil {
		return nil, err
	}
	m, err := ParseManifest(raw)
	if err != nil {
		return nil, err
	}
	if m.ArtifactType != mesh.TypeModule || len(m.Layers) != 1 || m.Layers[0].MediaType != mesh.TypeModuleJSON {
		return nil, fmt.Errorf("%s@%s is no module artifact", ref, digest)
	}
	return ReadBlob(ctx, src, ref, m.Layers[0])
}

func assemble(ref mesh.Ref, o Origin, artifactType string, blobs ...Blob) (*Artifact, error) {
	if err := mesh.CheckName(ref.Name); err != nil {
		return nil, fmt.Errorf("%s: %w", ref, err)
	}
	var layers []ocispec.Descriptor
	for _, b := range blobs[1:] {
		layers = append(layers, b.Descriptor)
	}
	raw, desc, err := marshalManifest(artifactType, blobs[0].Descriptor, layers, o.annotations(ref.Name))
	if err != nil {
		return nil, err
	}
	return &Artifact{Ref: ref, Tag: mesh.Tag(o.Version, o.Arch), Arch: o.Arch, Manifest: raw, Desc: desc, Blobs: blobs}, nil
}

// countingHash passes what is written on to w, hashed and counted.
type countingHash struct {
	h hash.Hash
	w io.Writer
	n int64
}

func (c *countingHash) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.h.Write(p[:n])
	c.n += int64(n)
	return n, err
}
