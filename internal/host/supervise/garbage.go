package supervise

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/artifact"
)

// The data partition must not fill up with what is fetched: volumes, logs and the host's own state need room. The floor is
// a twentieth of it, within bounds, in bytes.
const (
	minFloor = 32 << 20
	maxFloor = 1 << 30
)

// maxUnpacked is what one layer may unpack to, in bytes, where there is room.
const maxUnpacked = 8 << 30

// room finds room for so many bytes above the floor, and says how much a layer may unpack to. What nothing refers to goes
// first.
func (c *content) room(bytes int64) (artifact.Limits, error) {
	free, floor, err := c.free()
	if err != nil {
		return artifact.Limits{}, err
	}
	if free-floor <= bytes && c.keep != nil {
		c.collect(c.keep())
		if free, floor, err = c.free(); err != nil {
			return artifact.Limits{}, err
		}
	}
	if free-floor <= bytes {
		return artifact.Limits{}, fmt.Errorf("%w: the data partition has %d bytes free, of which %d are kept free, and %d are needed; remove what is not needed, or give the node a larger disk",
			errSource, free, floor, bytes)
	}
	return artifact.Limits{Bytes: min(maxUnpacked, free-floor-bytes)}, nil
}

// free is how much of the data partition is free, and how much is to stay so.
func (c *content) free() (free, floor int64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(c.dir, &st); err != nil {
		return 0, 0, fmt.Errorf("ask for the room on the data partition: %w", err)
	}
	block := int64(st.Bsize)
	floor = c.floor
	if floor == 0 {
		floor = min(max(int64(st.Blocks)*block/20, minFloor), maxFloor)
	}
	return int64(st.Bavail) * block, floor, nil
}

// clean removes what unpacking that was cut off has left. What was fetched stays: it is gone on with.
func (c *content) clean() {
	for _, pattern := range []string{"bundles/*/", "images/*/", "images/*/layers/", "fetching/"} {
		ms, _ := filepath.Glob(filepath.Join(c.dir, pattern+unpackPrefix+"*"))
		for _, m := range ms {
			_ = unix.Unmount(filepath.Join(m, "merged"), unix.MNT_DETACH)
			os.RemoveAll(m)
		}
	}
}

// collect removes every artifact that keep does not want, the layers that no image is left of, and what was fetched in part
// and nobody goes on with. It says how many artifacts it removed.
func (c *content) collect(keep func(kind mesh.ArtifactKind, source mesh.Source, digest string) bool) (removed int) {
	for _, kind := range []mesh.ArtifactKind{mesh.ArtifactBundle, mesh.ArtifactImage} {
		for _, source := range []mesh.Source{mesh.SourceSeed, mesh.SourceStore} {
			es, _ := os.ReadDir(filepath.Join(c.dir, string(kind)+"s", string(source)))
			for _, e := range es {
				digest := strings.Replace(e.Name(), "-", ":", 1)
				if mesh.CheckDigest(digest) == nil && !keep(kind, source, digest) && c.unlessUsed(c.folder(kind, source, digest)) {
					removed++
				}
			}
		}
	}
	for _, source := range []mesh.Source{mesh.SourceSeed, mesh.SourceStore} {
		wanted, ok := c.wantedLayers(source)
		es, _ := os.ReadDir(c.layersDir(source))
		for _, e := range es {
			if ok && !wanted[e.Name()] && !strings.HasPrefix(e.Name(), unpackPrefix) {
				c.unlessUsed(filepath.Join(c.layersDir(source), e.Name()))
			}
		}
	}
	parts, _ := os.ReadDir(c.partsDir())
	for _, e := range parts {
		if strings.HasPrefix(e.Name(), unpackPrefix) {
			continue
		}
		c.unlessUsed(filepath.Join(c.partsDir(), e.Name()))
	}
	return removed
}

// wantedLayers are the folders of the layers of all images that are here; not ok when one cannot be read, which might have
// any.
func (c *content) wantedLayers(source mesh.Source) (wanted map[string]bool, ok bool) {
	wanted = map[string]bool{}
	dir := filepath.Join(c.dir, string(mesh.ArtifactImage)+"s", string(source))
	es, _ := os.ReadDir(dir)
	for _, e := range es {
		if mesh.CheckDigest(strings.Replace(e.Name(), "-", ":", 1)) != nil {
			continue
		}
		b, err := os.ReadFile(filepath.Join(dir, e.Name(), "manifest.json"))
		if err != nil {
			return nil, false
		}
		m, err := artifact.ParseManifest(b)
		if err != nil {
			return nil, false
		}
		for _, chain := range chains(m.Layers) {
			wanted[filepath.Base(c.layer(source, chain))] = true
		}
	}
	return wanted, true
}
