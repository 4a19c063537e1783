package catalogue

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"kingpost/internal/atomicfile"
	"kingpost/internal/mesh"
	"kingpost/internal/mesh/artifact"
	"kingpost/internal/mesh/verbs"
)

// Bounds of the index.
const (
	maxEntries = 20_000
	maxIndex   = 32 << 20        // bytes of the file
	fresh      = 2 * time.Second // for how long what was read is believed without asking again
	indexFile  = "index.json"
)

// Store is the artifact store as the catalogue reads it; *artifact.Client is one.
type Store interface {
	artifact.Source
	Repositories(ctx context.Context) ([]mesh.Ref, error)
	Tags(ctx context.Context, ref mesh.Ref) ([]string, error)
}

// index is what was read from the store, sorted by kind, name and tag.
type index struct {
	At      time.Time              `json:"at"`
	Entries []verbs.CatalogueEntry `json:"entries"`
}

// Catalogue answers from the store. Make it by Open.
type Catalogue struct {
	store Store
	dir   string
	now   func() time.Time

	mu    sync.Mutex // held while the store is read, so that ten callers cost one reading
	index index
	read  time.Time // when the index was read in this run; zero: it is from the file
}

// Open makes a catalogue over store with its index in dir. An index that cannot be read is made anew.
func Open(dir string, store Store, now func() time.Time) (*Catalogue, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the state folder: %w", err)
	}
	c := &Catalogue{store: store, dir: dir, now: now}
	path := filepath.Join(dir, indexFile)
	fi, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the index: %w", err)
	}
	if fi.Size() > maxIndex {
		return c, nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the index: %w", err)
	}
	if json.Unmarshal(data, &c.index) != nil {
		c.index = index{}
	}
	return c, nil
}

// Check looks whether the state folder is there.
func (c *Catalogue) Check(context.Context) error {
	_, err := os.ReadDir(c.dir)
	return err
}

// current returns the index, read from the store where that answers. stale says why it is an old one.
func (c *Catalogue) current(ctx context.Context) (ix index, stale string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.read.IsZero() && c.now().Sub(c.read).Abs() < fresh {
		return c.index, "", nil
	}
	next, err := c.build(ctx)
	if err != nil {
		if c.index.At.IsZero() {
			return index{}, "", fmt.Errorf("read the store: %w", err)
		}
		return c.index, fmt.Sprintf("the store does not answer (%v); this is from %s", err, c.index.At.Format(time.RFC3339)), nil
	}
	same := slices.Equal(next.Entries, c.index.Entries)
	c.index, c.read = next, c.now()
	if !same {
		data, err := json.Marshal(next)
		if err != nil {
			return index{}, "", err
		}
		if err := atomicfile.Write(filepath.Join(c.dir, indexFile), data, 0o600); err != nil {
			return index{}, "", fmt.Errorf("keep the index: %w", err)
		}
	}
	return c.index, "", nil
}

// build reads the store. What a manifest says never changes under its digest, so only tags are asked again.
func (c *Catalogue) build(ctx context.Context) (index, error) {
	known := map[string]verbs.CatalogueEntry{}
	for _, e := range c.index.Entries {
		known[e.Repository()+"@"+e.Digest] = e
	}
	refs, err := c.store.Repositories(ctx)
	if err != nil {
		return index{}, err
	}
	ix := index{At: c.now().UTC(), Entries: []verbs.CatalogueEntry{}}
	for _, ref := range refs {
		tags, err := c.store.Tags(ctx, ref)
		if err != nil {
			return index{}, err
		}
		for _, tag := range tags {
			if len(ix.Entries) == maxEntries {
				return index{}, fmt.Errorf("the store has more than %d artifacts, the most that the catalogue indexes", maxEntries)
			}
			e, err := c.entry(ctx, ref, tag, known)
			if errors.Is(err, fs.ErrNotExist) {
				continue // it went while the store was read
			}
			if err != nil {
				return index{}, err
			}
			ix.Entries = append(ix.Entries, e)
		}
	}
	slices.SortFunc(ix.Entries, func(a, b verbs.CatalogueEntry) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Tag, b.Tag))
	})
	return ix, nil
}

func (c *Catalogue) entry(ctx context.Context, ref mesh.Ref, tag string, known map[string]verbs.CatalogueEntry) (verbs.CatalogueEntry, error) {
	desc, err := c.store.Resolve(ctx, ref, tag)
	if err != nil {
		return verbs.CatalogueEntry{}, err
	}
	digest := string(desc.Digest)
	e, ok := known[ref.Repository()+"@"+digest]
	if !ok {
		raw, err := c.store.Manifest(ctx, ref, digest)
		if err != nil {
			return verbs.CatalogueEntry{}, err
		}
		e = describe(ref, digest, raw)
	}
	e.Tag = tag
	e.Version, e.Arch = splitTag(ref.Kind, tag)
	return e, nil
}

// describe is an entry without its tag.
func describe(ref mesh.Ref, digest string, raw []byte) verbs.CatalogueEntry {
	e := verbs.CatalogueEntry{Ref: ref, Digest: digest, Size: int64(len(raw))}
	// An index of several platforms is no manifest; it is listed by its own size.
	if m, err := artifact.ParseManifest(raw); err == nil {
		e.Size += m.Config.Size
		for _, l := range m.Layers {
			e.Size += l.Size
		}
		e.Created = m.Annotations[ocispec.AnnotationCreated]
	}
	return e
}

// splitTag undoes mesh.Tag: "VERSION-ARCH", where a version may have hyphens of its own. Modules have no
// architecture.
func splitTag(kind mesh.ArtifactKind, tag string) (version, arch string) {
	i := strings.LastIndexByte(tag, '-')
	if kind == mesh.ArtifactModule || i < 0 {
		return tag, ""
	}
	return tag[:i], tag[i+1:]
}
