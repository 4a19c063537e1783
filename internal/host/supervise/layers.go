package supervise

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/artifact"
)

// The files of images are kept layer by layer, so that images that begin with the same layers share them on disk:
// images/SOURCE/layers/sha256-CHAIN holds index.json and files/, an upper folder of overlayfs. A layer is unpacked over
// those below it, mounted: what it removes becomes the kernel's own mark of that, and a hard link to a file of a lower
// layer becomes a copy, as they must be for the kernel to stack the folders again. So its name comes from all layers up
// to it.

// maxLayers is what overlayfs stacks (OVL_MAX_STACK, fs/overlayfs/params.h).
const maxLayers = 500

// chains name the stacks of layers: the digest of the first, and from then on the digest of the stack below and the layer.
func chains(layers []ocispec.Descriptor) []string {
	var out []string
	for i, l := range layers {
		if i == 0 {
			out = append(out, string(l.Digest))
			continue
		}
		sum := sha256.Sum256([]byte(out[i-1] + " " + string(l.Digest)))
		out = append(out, "sha256:"+hex.EncodeToString(sum[:]))
	}
	return out
}

func (c *content) layersDir(source mesh.Source) string {
	return filepath.Join(c.dir, string(mesh.ArtifactImage)+"s", string(source), "layers")
}

func (c *content) layer(source mesh.Source, chain string) string {
	return filepath.Join(c.layersDir(source), strings.Replace(chain, ":", "-", 1))
}

// damagedLayer says which layer of an image is not what it was.
type damagedLayer struct {
	dir string
	err error
}

func (e *damagedLayer) Error() string {
	return fmt.Sprintf("its layer %s: %v", shortDigest(filepath.Base(e.dir)), e.err)
}

func (e *damagedLayer) Unwrap() error { return e.err }

// checkLayers checks what is on disk of an image's layers, and returns the folders of their files.
func (c *content) checkLayers(source mesh.Source, layers []ocispec.Descriptor) ([]string, error) {
	var out []string
	for _, chain := range chains(layers) {
		dir := c.layer(source, chain)
		unlock := c.lock(dir)
		index, err := os.ReadFile(filepath.Join(dir, "index.json"))
		files := filepath.Join(dir, "files")
		if err == nil {
			err = checkIndexed(files, index)
		}
		unlock()
		if err != nil {
			return nil, &damagedLayer{dir, err}
		}
		out = append(out, files)
	}
	return out, nil
}

// fetchLayers has every layer on disk, and keeps them there until done is called.
func (c *content) fetchLayers(ctx context.Context, src artifact.Source, ref mesh.Ref, source mesh.Source, layers []ocispec.Descriptor) (done func(), err error) {
	var release []func()
	done = func() {
		for _, f := range release {
			f()
		}
	}
	if len(layers) > maxLayers {
		return done, fmt.Errorf("the image has %d layers, at most %d can be stacked", len(layers), maxLayers)
	}
	var below []string
	for i, chain := range chains(layers) {
		dir := c.layer(source, chain)
		// Kept until the image is in its place and names it.
		_, unused := c.use(dir)
		release = append(release, unused)
		unlock := c.lock(dir)
		if !exists(dir) {
			err = c.unpackLayer(ctx, src, ref, layers[i], below, dir)
		}
		unlock()
		if err != nil {
			return done, fmt.Errorf("layer %d of %d: %w", i+1, len(layers), err)
		}
		below = append(below, filepath.Join(dir, "files"))
	}
	return done, nil
}

// unpackLayer unpacks one layer over those below it.
func (c *content) unpackLayer(ctx context.Context, src artifact.Source, ref mesh.Ref, d ocispec.Descriptor, below []string, dir string) error {
	blob, err := src.Blob(ctx, ref, string(d.Digest), d.Size)
	if err != nil {
		return err
	}
	defer blob.Close()
	limits, err := c.room(0)
	if err != nil {
		return err
	}
	return c.place(dir, func(aside string) (err error) {
		files, at := filepath.Join(aside, "files"), filepath.Join(aside, "files")
		if err := os.Mkdir(files, 0o755); err != nil {
			return err
		}
		if len(below) > 0 {
			at = filepath.Join(aside, "merged")
			work := filepath.Join(aside, "work")
			if err := errors.Join(os.Mkdir(at, 0o755), os.Mkdir(work, 0o755)); err != nil {
				return err
			}
			if err := overlay("layer", below, files, work, at); err != nil {
				return err
			}
			defer func() {
				if err == nil {
					err = errors.Join(os.RemoveAll(work), os.Remove(at))
				}
			}()
			defer func() {
				if uerr := unix.Unmount(at, 0); uerr != nil {
					err = errors.Join(err, fmt.Errorf("unmount the layer: %w", uerr), unix.Unmount(at, unix.MNT_DETACH))
				}
			}()
		}
		if err := artifact.UnpackImageLayer(ctx, blob, at, limits); err != nil {
			return err
		}
		index, err := indexTree(files)
		if err != nil {
			return err
		}
		b, err := json.Marshal(index)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(aside, "index.json"), b, 0o644); err != nil {
			return err
		}
		return syncFS(aside)
	})
}

// overlay mounts layers, lowest first, with upper over them.
func overlay(name string, lowers []string, upper, work, at string) error {
	fd, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("mount the image: overlay: %w", err)
	}
	defer unix.Close(fd)
	set := func(key, value string) error {
		if err := unix.FsconfigSetString(fd, key, value); err != nil {
			return fmt.Errorf("mount the image: %s=%s: %w", key, value, err)
		}
		return nil
	}
	err = set("source", name)
	if len(lowers) == 1 {
		err = errors.Join(err, set("lowerdir", lowers[0]))
	} else {
		// One at a time, the topmost first: together they would not fit what one setting may hold. Linux 6.5 knows it.
		for i := len(lowers) - 1; i >= 0 && err == nil; i-- {
			err = set("lowerdir+", lowers[i])
		}
	}
	if err := errors.Join(err, set("upperdir", upper), set("workdir", work)); err != nil {
		return err
	}
	if err := unix.FsconfigCreate(fd); err != nil {
		return fmt.Errorf("mount the image's %d layers: %w", len(lowers), err)
	}
	m, err := unix.Fsmount(fd, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("mount the image: %w", err)
	}
	defer unix.Close(m)
	if err := unix.MoveMount(m, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount the image at %s: %w", at, err)
	}
	return nil
}
