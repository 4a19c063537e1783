package supervise

import (
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

// content keeps the unpacked bytes of bundles and images. bundles/SOURCE/sha256-HEX holds manifest.json, config.json and
// files/; images/SOURCE/sha256-HEX the first two, its files are in layers (see layers.go). A folder is renamed into its
// place when it is whole and on disk, so what has the name was whole once; whether it still is, is checked at each start.
type content struct {
	dir   string // mesh.PathState
	seed  func() (artifact.Source, error)
	store func() (artifact.Source, error)
	// keep says what must not be collected: see Supervisor.references.
	keep func() func(kind mesh.ArtifactKind, source mesh.Source, digest string) bool
	// floor is how much of the data partition, in bytes, is left free whatever is fetched.
	floor int64
	warn  func(format string, a ...any)

	// What two resources share is fetched once. Different artifacts never wait for each other: the store
	// itself must be able to start while a fetch from it hangs.
	mu    sync.Mutex
	locks map[string]*useLock
}

// useLock is the lock of something that is being made or checked. collect keeps off what has one.
type useLock struct {
	sync.Mutex
	users int
}

// use keeps collect off name, a folder or file.
func (c *content) use(name string) (*useLock, func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.locks == nil {
		c.locks = map[string]*useLock{}
	}
	l := c.locks[name]
	if l == nil {
		l = &useLock{}
		c.locks[name] = l
	}
	l.users++
	return l, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(c.locks, name)
		}
	}
}

// lock keeps others from name, and collect too.
func (c *content) lock(name string) (unlock func()) {
	l, done := c.use(name)
	l.Lock()
	return func() {
		l.Unlock()
		done()
	}
}

// unlessUsed removes a folder or file if nobody uses it.
func (c *content) unlessUsed(name string) bool {
	gone := filepath.Join(filepath.Dir(name), unpackPrefix+"gone-"+filepath.Base(name))
	c.mu.Lock()
	if c.locks[name] != nil {
		c.mu.Unlock()
		return false
	}
	// Its name goes at once, the rest while others may go on.
	err := os.Rename(name, gone)
	c.mu.Unlock()
	if err == nil {
		err = os.RemoveAll(gone)
	}
	if err != nil {
		c.warn("remove %s, which nothing refers to: %v", name, err)
	}
	return err == nil
}

// stored is an artifact on disk, checked.
type stored struct {
	Source mesh.Source
	Files  string         // of a bundle: the folder of its files
	Image  *ocispec.Image // of an image
	Layers []string       // of an image: the folders of its layers' files, lowest first
	// Secrets are what was fetched from the vault for one start, by path.
	Secrets map[string][]byte
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
	for _, s := range onDisk {
		defer c.lock(c.folder(ref.Kind, s, digest))()
	}
	for _, s := range onDisk {
		st, err := c.check(ref.Kind, s, digest)
		var part *damagedLayer
		switch {
		case err == nil:
			return st, nil
		case errors.As(err, &part):
		case errors.Is(err, fs.ErrNotExist) && !exists(c.folder(ref.Kind, s, digest)):
			continue
		}
		c.warn("%s@%s on disk is damaged and is fetched again: %v", ref, digest, err)
		err = os.RemoveAll(c.folder(ref.Kind, s, digest))
		if part != nil {
			err = errors.Join(err, os.RemoveAll(part.dir))
		}
		if err != nil {
			return nil, fmt.Errorf("remove the damaged %s@%s: %w", ref, digest, err)
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
	src, err := c.open(source)
	if err != nil {
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
	if ref.Kind == mesh.ArtifactImage {
		done, err := c.fetchLayers(ctx, src, ref, source, m.Layers)
		defer done()
		if err != nil {
			return err
		}
	}
	return c.place(c.folder(ref.Kind, source, digest), func(aside string) error {
		for name, b := range map[string][]byte{"manifest.json": raw, "config.json": config} {
			if err := os.WriteFile(filepath.Join(aside, name), b, 0o644); err != nil {
				return err
			}
		}
		if ref.Kind != mesh.ArtifactBundle {
			return nil
		}
		limits, err := c.room(0)
		if err != nil {
			return err
		}
		files := filepath.Join(aside, "files")
		if err := os.Mkdir(files, 0o755); err != nil {
			return err
		}
		index, err := artifact.ExtractBundle(ctx, src, ref, digest, files, limits)
		if err != nil {
			return err
		}
		// Sealed first, so that the kernel's measure is compared and the files are hashed once.
		for _, f := range index.Files {
			if f.Link == "" && f.FSVerity != "" {
				if err := seal(filepath.Join(files, f.Path)); err != nil {
					return err
				}
			}
		}
		if err := checkTree(files, index); err != nil {
			return fmt.Errorf("bundle %s: %w", digest, err)
		}
		return syncFS(aside)
	})
}

// open is a source; what comes from the store goes on where it broke off.
func (c *content) open(source mesh.Source) (artifact.Source, error) {
	if source == mesh.SourceSeed {
		return c.seed()
	}
	src, err := c.store()
	if err != nil {
		return nil, err
	}
	if from, ok := src.(blobFrom); ok {
		return &resumed{Source: src, from: from, c: c}, nil
	}
	return src, nil
}

// place makes a folder aside and moves it into its place when it is whole.
func (c *content) place(place string, make func(aside string) error) error {
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
	if err := make(aside); err != nil {
		return err
	}
	if err := syncFS(aside); err != nil {
		return err
	}
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
	st := &stored{Source: source}
	if kind == mesh.ArtifactImage {
		st.Image = &ocispec.Image{}
		if err := json.Unmarshal(config, st.Image); err != nil {
			return nil, fmt.Errorf("its config: %w", err)
		}
		st.Layers, err = c.checkLayers(source, m.Layers)
		return st, err
	}
	st.Files = filepath.Join(dir, "files")
	return st, checkIndexed(st.Files, config)
}

// checkIndexed checks a tree against a list of its files.
func checkIndexed(dir string, index []byte) error {
	var files mesh.BundleConfig
	if err := json.Unmarshal(index, &files); err != nil {
		return fmt.Errorf("its list of files: %w", err)
	}
	return checkTree(dir, &files)
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
	if want.SHA256 == "" {
		return errors.New("has lost its fs-verity seal")
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
