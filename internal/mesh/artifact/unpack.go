package artifact

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/klauspost/compress/zstd"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"kingpost/internal/mesh"
)

// Limits bounds what one layer may unpack to. The zero value of a field is its default.
type Limits struct {
	Bytes   int64 // of all files' content and of the tar itself; 8 GiB
	Entries int   // 200000
	Ratio   int64 // unpacked to packed, once more than 16 MiB came out; 200
}

func (l Limits) withDefaults() Limits {
	if l.Bytes == 0 {
		l.Bytes = 8 << 30
	}
	if l.Entries == 0 {
		l.Entries = 200_000
	}
	if l.Ratio == 0 {
		l.Ratio = 200
	}
	return l
}

const (
	// ratioGrace is what may come out before the ratio counts: a small file of zeros is no bomb.
	ratioGrace = 16 << 20
	// maxWindow bounds the decoder's memory: what zstd --long=27 needs.
	maxWindow = 128 << 20
	maxPath   = 4095
	maxName   = 255 // of one component
)

// LimitError tells that a layer goes beyond a limit.
type LimitError struct{ What string }

func (e *LimitError) Error() string { return "layer refused: " + e.What }

// EntryError tells that an entry of a layer must not be unpacked, and why.
type EntryError struct{ Name, Why string }

func (e *EntryError) Error() string { return fmt.Sprintf("entry %.200q refused: %s", e.Name, e.Why) }

// UnpackBundle fetches the bundle digest of ref from src and unpacks it into dir, which must be empty. Every
// file is checked against the bundle's config. On an error dir holds a part of it: unpack aside, then rename.
func UnpackBundle(ctx context.Context, src Source, ref mesh.Ref, digest, dir string, limits Limits) (*mesh.BundleConfig, error) {
	cfg, err := ExtractBundle(ctx, src, ref, digest, dir, limits)
	if err != nil {
		return nil, err
	}
	if err := CheckFiles(dir, cfg); err != nil {
		return nil, fmt.Errorf("bundle %s: %w", digest, err)
	}
	return cfg, nil
}

// ExtractBundle is UnpackBundle without the comparison of the files with the config that it returns, for who compares them
// by other means.
func ExtractBundle(ctx context.Context, src Source, ref mesh.Ref, digest, dir string, limits Limits) (*mesh.BundleConfig, error) {
	a, m, err := loadParsed(ctx, src, ref, digest)
	if err != nil {
		return nil, err
	}
	if m.ArtifactType != mesh.TypeBundle || m.Config.MediaType != mesh.TypeBundleConfig || len(m.Layers) != 1 {
		return nil, fmt.Errorf("%s is no bundle: artifact type %.60q with %d layers", a.Desc.Digest, m.ArtifactType, len(m.Layers))
	}
	cfg, err := readBundleConfig(ctx, src, ref, m)
	if err != nil {
		return nil, fmt.Errorf("bundle %s: %w", digest, err)
	}
	if err := unpackLayer(ctx, src, ref, m.Layers[0], dir, limits, false); err != nil {
		return nil, fmt.Errorf("bundle %s: %w", digest, err)
	}
	return cfg, nil
}

// UnpackImage fetches the image digest of ref from src and unpacks its layers, lowest first, into dir, which
// must be empty. digest is an image manifest's, never an index's. As root, owners are kept.
func UnpackImage(ctx context.Context, src Source, ref mesh.Ref, digest, dir string, limits Limits) (*ocispec.Image, error) {
	_, m, err := loadParsed(ctx, src, ref, digest)
	if err != nil {
		return nil, err
	}
	cfg, err := readImageConfig(ctx, src, ref, m)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", digest, err)
	}
	for i, l := range m.Layers {
		if err := unpackLayer(ctx, src, ref, l, dir, limits, true); err != nil {
			return nil, fmt.Errorf("image %s: layer %d: %w", digest, i, err)
		}
	}
	return cfg, nil
}

func loadParsed(ctx context.Context, src Source, ref mesh.Ref, digest string) (*Artifact, *ocispec.Manifest, error) {
	a, err := Load(ctx, src, ref, "", digest)
	if err != nil {
		return nil, nil, err
	}
	m, err := ParseManifest(a.Manifest)
	return a, m, err
}

// unpackLayer opens a layer and reads it to its end, so that its digest is checked as well.
func unpackLayer(ctx context.Context, src Source, ref mesh.Ref, d ocispec.Descriptor, dir string, limits Limits, image bool) error {
	rc, err := src.Blob(ctx, ref, string(d.Digest), d.Size)
	if err != nil {
		return err
	}
	defer rc.Close()
	if image {
		return UnpackImageLayer(ctx, rc, dir, limits)
	}
	return Unpack(ctx, rc, dir, limits)
}

// Unpack unpacks a bundle's layer into dir: regular files, folders, and symbolic links that stay inside.
// Anything else is an EntryError. Owners, times and setuid bits are not taken over. layer is read to its end;
// on an error dir holds a part of it.
func Unpack(ctx context.Context, layer io.Reader, dir string, limits Limits) error {
	root, err := openRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	links := map[string]bool{}
	behind, err := eachEntry(ctx, layer, limits, func(h *tar.Header, r io.Reader) error {
		return unpackBundleEntry(root, links, h, r)
	})
	if err == nil && behind {
		err = errors.New("layer refused: there is something behind the end of its archive")
	}
	return err
}

func openRoot(dir string) (*os.Root, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	return os.OpenRoot(dir)
}

// eachEntry decompresses a layer, keeps its limits, and calls do with every entry, its name cleaned. It reads to the
// layer's end and says whether anything but zeros, with which archives are padded, is behind the archive's.
func eachEntry(ctx context.Context, layer io.Reader, limits Limits, do func(*tar.Header, io.Reader) error) (behind bool, err error) {
	limits = limits.withDefaults()
	in := &counter{r: contextReader{ctx, layer}}
	plain, closeIt, err := decompress(in)
	if err != nil {
		return false, fmt.Errorf("decompress layer: %w", err)
	}
	defer closeIt()
	stream := &bounded{r: plain, in: in, limits: limits}
	tr := tar.NewReader(stream)
	// What comes out of the entries is bounded as well: a sparse file has more bytes than the archive holds of it.
	content := &bounded{r: tr, in: in, limits: limits}
	entries := 0
	for {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return false, fmt.Errorf("read layer: %w", unexpected(err))
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		if entries++; entries > limits.Entries {
			return false, &LimitError{fmt.Sprintf("it has more than %d entries", limits.Entries)}
		}
		if h.Size > limits.Bytes {
			return false, &LimitError{fmt.Sprintf("%.100q has %d bytes, at most %d are allowed", h.Name, h.Size, limits.Bytes)}
		}
		if h.Name, err = cleanName(h.Name); err != nil {
			return false, err
		}
		if err := do(h, content); err != nil {
			return false, unexpected(err)
		}
	}
	// Padding after the archive and the blob's own end: only there is its digest known.
	rest := &zeros{}
	if _, err := io.Copy(rest, stream); err != nil {
		return false, fmt.Errorf("read layer to its end: %w", err)
	}
	if n, err := io.Copy(io.Discard, in); err != nil {
		return false, fmt.Errorf("read layer to its end: %w", err)
	} else if n > 0 {
		rest.other = true
	}
	return rest.other, nil
}

// zeros notes whether anything else is written to it.
type zeros struct{ other bool }

func (z *zeros) Write(p []byte) (int, error) {
	z.other = z.other || slices.ContainsFunc(p, func(b byte) bool { return b != 0 })
	return len(p), nil
}

func unexpected(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("the layer is truncated: %w", err)
	}
	return err
}

// cleanName makes an entry's name relative and refuses one that would leave the folder.
func cleanName(name string) (string, error) {
	if len(name) > maxPath || strings.ContainsRune(name, 0) {
		return "", &EntryError{name, "its name is longer than a path can be or has a zero byte"}
	}
	if longPart(name) {
		return "", &EntryError{name, fmt.Sprintf("a part of its name has more than %d bytes, which no file system takes", maxName)}
	}
	if slices.Contains(strings.Split(name, "/"), "..") {
		return "", &EntryError{name, `its name has ".." in it`}
	}
	if strings.HasPrefix(name, "/") {
		return "", &EntryError{name, "its name is absolute"}
	}
	return path.Clean(name), nil
}

// longPart says whether a component of a path is longer than file systems take.
func longPart(p string) bool {
	for part := range strings.SplitSeq(p, "/") {
		if len(part) > maxName {
			return true
		}
	}
	return false
}

// unpackBundleEntry writes one entry. links are the symbolic links that were made before it.
func unpackBundleEntry(root *os.Root, links map[string]bool, h *tar.Header, r io.Reader) error {
	if h.Name == "." {
		return nil
	}
	for p := h.Name; p != "."; p = path.Dir(p) {
		if links[p] {
			return &EntryError{h.Name, fmt.Sprintf("it goes through the symbolic link %.100q of the same bundle", p)}
		}
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return root.MkdirAll(h.Name, 0o755)
	case tar.TypeReg:
		if err := root.MkdirAll(path.Dir(h.Name), 0o755); err != nil {
			return err
		}
		perm := os.FileMode(0o644)
		if h.Mode&0o111 != 0 {
			perm = 0o755
		}
		return writeNew(root, h.Name, perm, r)
	case tar.TypeSymlink:
		if err := checkBundleLink(h.Name, h.Linkname); err != nil {
			return err
		}
		if err := root.MkdirAll(path.Dir(h.Name), 0o755); err != nil {
			return err
		}
		links[h.Name] = true
		return root.Symlink(h.Linkname, h.Name)
	}
	return &EntryError{h.Name, "a bundle holds files, folders and symbolic links, not " + typeName(h.Typeflag)}
}

// writeNew writes a file that must not be there yet and gives it exactly perm, whatever the umask is.
func writeNew(root *os.Root, name string, perm os.FileMode, r io.Reader) error {
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm.Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Chmod(perm), f.Close())
}

func typeName(t byte) string {
	switch t {
	case tar.TypeChar, tar.TypeBlock:
		return "a device node"
	case tar.TypeFifo:
		return "a FIFO"
	case tar.TypeLink:
		return "a hard link"
	}
	return fmt.Sprintf("an entry of type %q", t)
}

// checkBundlePath accepts the path of a bundle's file.
func checkBundlePath(p string) error {
	if p == "" || p == "." || len(p) > maxPath || path.IsAbs(p) || path.Clean(p) != p || p == ".." || strings.HasPrefix(p, "../") || strings.ContainsRune(p, 0) {
		return &EntryError{p, "a bundle's paths are clean, relative and inside it"}
	}
	// The config, which lists the files, is JSON: another name would stand there than in the layer.
	if longPart(p) || !utf8.ValidString(p) {
		return &EntryError{p, fmt.Sprintf("a bundle's paths are UTF-8, and no part of one has more than %d bytes", maxName)}
	}
	return nil
}

// checkBundleLink accepts a symbolic link at name whose target stays inside the bundle.
func checkBundleLink(name, target string) error {
	if path.IsAbs(target) {
		return &EntryError{name, fmt.Sprintf("it is a symbolic link to the absolute path %.100q", target)}
	}
	if target == "" || len(target) > maxPath || strings.ContainsRune(target, 0) || !utf8.ValidString(target) {
		return &EntryError{name, "its link target is no path in UTF-8"}
	}
	// Counted component by component: "a/../../b" leaves the tree on its way even where Clean hides it.
	depth := strings.Count(name, "/")
	for part := range strings.SplitSeq(target, "/") {
		switch part {
		case "", ".":
		case "..":
			if depth--; depth < 0 {
				return &EntryError{name, fmt.Sprintf("its link target %.100q leaves the bundle", target)}
			}
		default:
			depth++
		}
	}
	return nil
}

// decompress tells zstd, gzip and plain tar apart by their first bytes; media types lie too often.
func decompress(r io.Reader) (io.Reader, func(), error) {
	br := bufio.NewReaderSize(r, 64<<10)
	magic, err := br.Peek(4)
	if err != nil && err != io.EOF {
		return nil, nil, err
	}
	switch {
	case len(magic) >= 4 && string(magic) == "\x28\xb5\x2f\xfd":
		// One goroutine and low memory: a node unpacks beside everything else that it runs.
		z, err := zstd.NewReader(br, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, nil, err
		}
		return z, z.Close, nil
	case len(magic) >= 2 && magic[0] == 0x1f && magic[1] == 0x8b:
		z, err := gzip.NewReader(br)
		return z, func() {}, err
	}
	return br, func() {}, nil
}

// counter counts what was read.
type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// bounded keeps the limits on the decompressed stream.
type bounded struct {
	r      io.Reader
	in     *counter
	n      int64
	limits Limits
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	b.n += int64(n)
	if b.n > b.limits.Bytes {
		return 0, &LimitError{fmt.Sprintf("it unpacks to more than %d bytes", b.limits.Bytes)}
	}
	if b.n > ratioGrace && b.n/b.limits.Ratio > b.in.n {
		return 0, &LimitError{fmt.Sprintf("it unpacks to more than %d times its size", b.limits.Ratio)}
	}
	return n, err
}
