package supervise

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"kingpost/internal/atomicfile"
	"kingpost/internal/mesh"
	"kingpost/internal/mesh/artifact"
)

// content keeps the unpacked bytes of bundles and images: KIND/SOURCE/sha256-HEX holds manifest.json,
// config.json, index.json (images: what was unpacked) and files/. A folder is renamed into its place when
// it is whole and on disk, so what has the name was whole once; whether it still is, is checked at each start.
type content struct {
	dir   string // mesh.PathState
	seed  func() (artifact.Source, error)
	store func() (artifact.Source, error)
	warn  func(format string, a ...any)
	// What two resources share is fetched once. Different artifacts never wait for each other: the store
	// itself must be able to start while a fetch from it hangs.
	mu    sync.Mutex
	locks map[string]*sync.Mutex
	// using is read-locked while artifacts are made or checked, so that collect keeps out of the way.
	using sync.RWMutex
}

func (c *content) lock(digest string) (unlock func()) {
	c.using.RLock()
	c.mu.Lock()
	if c.locks == nil {
		c.locks = map[string]*sync.Mutex{}
	}
	l := c.locks[digest]
	if l == nil {
		l = &sync.Mutex{}
		c.locks[digest] = l
	}
	c.mu.Unlock()
	l.Lock()
	return func() { l.Unlock(); c.using.RUnlock() }
}

// stored is an artifact on disk, checked.
type stored struct {
	Source mesh.Source
	Files  string         // the folder of its files
	Image  *ocispec.Image // of an image
}

// errSource says that an artifact cannot be had now, as opposed to being wrong.
var errSource = errors.New("not available")

func (c *content) folder(kind mesh.ArtifactKind, source mesh.Source, digest string) string {
	return filepath.Join(c.dir, string(kind)+"s", string(source), strings.Replace(digest, ":", "-", 1))
}

// ensure returns the checked files of ref@digest, fetching them if needed.
func (c *content) ensure(ctx context.Context, ref mesh.Ref, digest string, source mesh.Source) (*stored, error) {
	// On disk first, from the store rather than the seed.
	onDisk := []mesh.Source{source}
	if source == mesh.SourceAny {
		onDisk = []mesh.Source{mesh.SourceStore, mesh.SourceSeed}
	}
	defer c.lock(digest)()
	for _, s := range onDisk {
		st, err := c.check(ref.Kind, s, digest)
		switch {
		case err == nil:
			return st, nil
		case errors.Is(err, fs.ErrNotExist) && !exists(c.folder(ref.Kind, s, digest)):
		default:
			c.warn("%s@%s on disk is damaged and is fetched again: %v", ref, digest, err)
			if err := os.RemoveAll(c.folder(ref.Kind, s, digest)); err != nil {
				return nil, fmt.Errorf("remove the damaged %s@%s: %w", ref, digest, err)
			}
		}
	}
	var errs []error
	for _, s := range onDisk {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := c.fetch(ctx, ref, digest, s); err != nil {
			errs = append(errs, fmt.Errorf("from the %s: %w", s, err))
			continue
		}
		return c.check(ref.Kind, s, digest)
	}
	return nil, fmt.Errorf("fetch %s@%s: %w", ref, shortDigest(digest), errors.Join(errs...))
}

func exists(p string) bool { _, err := os.Lstat(p); return err == nil }

func shortDigest(d string) string {
	if len(d) > 19 {
		return d[:19]
	}
	return d
}

// fetch unpacks ref@digest from source aside and moves it into place.
func (c *content) fetch(ctx context.Context, ref mesh.Ref, digest string, source mesh.Source) error {
	open := c.store
	if source == mesh.SourceSeed {
		open = c.seed
	}
	src, err := open()
	if err != nil {
		return err
	}
	place := c.folder(ref.Kind, source, digest)
	parent := filepath.Dir(place)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	aside, err := os.MkdirTemp(parent, unpackPrefix)
	if err != nil {
		return err
	}
	defer os.RemoveAll(aside)
	if err := os.Chmod(aside, 0o755); err != nil {
		return err
	}
	files := filepath.Join(aside, "files")
	if err := os.Mkdir(files, 0o755); err != nil {
		return err
	}
	raw, err := src.Manifest(ctx, ref, digest)
	if err != nil {
		return err
	}
	m, err := artifact.ParseManifest(raw)
	if err != nil {
		return err
	}
	config, err := artifact.ReadBlob(ctx, src, ref, m.Config)
	if err != nil {
		return err
	}
	var index *mesh.BundleConfig
	switch ref.Kind {
	case mesh.ArtifactBundle:
		if index, err = artifact.UnpackBundle(ctx, src, ref, digest, files, artifact.Limits{}); err != nil {
			return err
		}
	default:
		if _, err = artifact.UnpackImage(ctx, src, ref, digest, files, artifact.Limits{}); err != nil {
			return err
		}
		if index, err = indexTree(files); err != nil {
			return err
		}
		b, err := json.Marshal(index)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(aside, "index.json"), b, 0o644); err != nil {
			return err
		}
	}
	for name, b := range map[string][]byte{"manifest.json": raw, "config.json": config} {
		if err := os.WriteFile(filepath.Join(aside, name), b, 0o644); err != nil {
			return err
		}
	}
	if err := syncFS(aside); err != nil {
		return err
	}
	sealTree(files, index)
	if err := os.Rename(aside, place); err != nil {
		return err
	}
	return atomicfile.SyncDir(parent)
}

const unpackPrefix = ".unpack-"

// syncFS brings everything that was unpacked to disk in one go; a fsync per file takes a hundred times as long.
func syncFS(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return unix.Syncfs(int(d.Fd()))
}

// check reads what is on disk from its digest downwards: manifest, config, files.
func (c *content) check(kind mesh.ArtifactKind, source mesh.Source, digest string) (*stored, error) {
	dir := c.folder(kind, source, digest)
	raw, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
	if err != nil {
		return nil, err
	}
	if got := artifact.DigestOf(raw); got != digest {
		return nil, fmt.Errorf("its manifest hashes to %s", got)
	}
	m, err := artifact.ParseManifest(raw)
	if err != nil {
		return nil, err
	}
	config, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		return nil, err
	}
	if got := artifact.DigestOf(config); got != string(m.Config.Digest) {
		return nil, fmt.Errorf("its config hashes to %s, not to %s", got, m.Config.Digest)
	}
	st := &stored{Source: source, Files: filepath.Join(dir, "files")}
	index := config
	if kind == mesh.ArtifactImage {
		st.Image = &ocispec.Image{}
		if err := json.Unmarshal(config, st.Image); err != nil {
			return nil, fmt.Errorf("its config: %w", err)
		}
		if index, err = os.ReadFile(filepath.Join(dir, "index.json")); err != nil {
			return nil, err
		}
	}
	var files mesh.BundleConfig
	if err := json.NewDecoder(bytes.NewReader(index)).Decode(&files); err != nil {
		return nil, fmt.Errorf("its list of files: %w", err)
	}
	return st, checkTree(st.Files, &files)
}

// checkTree checks every file of a tree: by the kernel's own measure where fs-verity is on, which reads
// nothing, else by reading it.
func checkTree(dir string, index *mesh.BundleConfig) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	buf := make([]byte, 256<<10)
	listed := make(map[string]bool, len(index.Files))
	for i := range index.Files {
		f := &index.Files[i]
		listed[f.Path] = true
		if err := checkFile(root, f, buf); err != nil {
			return fmt.Errorf("file %s: %w", f.Path, err)
		}
	}
	return filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		if err == nil && !listed[rel] {
			err = fmt.Errorf("file %s does not belong there", rel)
		}
		return err
	})
}

func checkFile(root *os.Root, want *mesh.BundleFile, buf []byte) error {
	if want.Link != "" {
		got, err := root.Readlink(want.Path)
		if err != nil {
			return err
		}
		if got != want.Link {
			return fmt.Errorf("points to %q, not to %q", got, want.Link)
		}
		return nil
	}
	st, err := root.Lstat(want.Path)
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() || st.Size() != want.Size || uint32(st.Mode().Perm()) != want.Mode&0o777 {
		return fmt.Errorf("is %s with %d bytes, not mode %o with %d", st.Mode(), st.Size(), want.Mode, want.Size)
	}
	f, err := root.Open(want.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	if want.FSVerity != "" {
		if got, err := measureVerity(f); err == nil {
			if got != want.FSVerity {
				return fmt.Errorf("measures %s, not %s", got, want.FSVerity)
			}
			return nil
		}
	}
	h := sha256.New()
	if _, err := io.CopyBuffer(h, struct{ io.Reader }{f}, buf); err != nil {
		return err
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != want.SHA256 {
		return fmt.Errorf("hashes to %s, not to %s", got, want.SHA256)
	}
	return nil
}

// clean removes what fetches that were cut off have left.
func (c *content) clean() {
	for _, kind := range []mesh.ArtifactKind{mesh.ArtifactBundle, mesh.ArtifactImage} {
		ms, _ := filepath.Glob(filepath.Join(c.dir, string(kind)+"s", "*", unpackPrefix+"*"))
		for _, m := range ms {
			os.RemoveAll(m)
		}
	}
}

// collect removes every artifact that keep does not want. While one is being fetched it does nothing; it
// is called again.
func (c *content) collect(keep func(kind mesh.ArtifactKind, source mesh.Source, digest string) bool) (removed int) {
	if !c.using.TryLock() {
		return 0
	}
	defer c.using.Unlock()
	c.locks = nil
	for _, kind := range []mesh.ArtifactKind{mesh.ArtifactBundle, mesh.ArtifactImage} {
		for _, source := range []mesh.Source{mesh.SourceSeed, mesh.SourceStore} {
			es, _ := os.ReadDir(filepath.Join(c.dir, string(kind)+"s", string(source)))
			for _, e := range es {
				digest := strings.Replace(e.Name(), "-", ":", 1)
				if mesh.CheckDigest(digest) != nil || keep(kind, source, digest) {
					continue
				}
				if err := os.RemoveAll(c.folder(kind, source, digest)); err != nil {
					c.warn("remove %s %s, which nothing refers to: %v", kind, digest, err)
					continue
				}
				removed++
			}
		}
	}
	return removed
}
