package inspect

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"

	"github.com/erofs/go-erofs"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/artifact"
	"kingpost/internal/verity"
)

// RootReport is what is in a root.
type RootReport struct {
	Slot       string `json:"slot,omitempty"`
	RootHash   string `json:"rootHash"`
	HashOffset int64  `json:"hashOffset"`
	// Verified is set when every block belongs to RootHash; Pinned when RootHash is one that a UKI or release.json
	// names, and not merely the one that the image has at its own top.
	Verified bool             `json:"verified"`
	Pinned   bool             `json:"pinned"`
	Problem  string           `json:"problem,omitempty"`
	Release  mesh.ReleaseInfo `json:"release"`
	Kernel   string           `json:"kernel,omitempty"`
	Modules  []string         `json:"modules,omitempty"`
	Programs []ESPFile        `json:"programs,omitempty"`
	Seed     []SeedEntry      `json:"seed,omitempty"`
}

// SeedEntry is one artifact of the seed.
type SeedEntry struct {
	Name   string `json:"name"` // "bundle/mesh-controller:0.1.0-amd64"
	Arch   string `json:"arch,omitempty"`
	Digest string `json:"digest"`
	Size   int64  `json:"size"` // of its blobs, in bytes; what artifacts share counts for each
}

// erofsMagic is at byte 1024 of an EROFS image, little-endian.
const erofsMagic = 0xE0F5E1E2

// Root inspects a root image. rootHash is the hash that it must have, "" for none that is known; hashOffset is where
// its tree starts, in bytes, -1 to find it.
func Root(ctx context.Context, r io.ReaderAt, rootHash string, hashOffset int64) (*RootReport, error) {
	root := &RootReport{RootHash: rootHash, HashOffset: hashOffset, Pinned: rootHash != ""}
	if hashOffset < 0 {
		var err error
		if root.HashOffset, err = erofsSize(r); err != nil {
			return nil, err
		}
	}
	if rootHash == "" {
		var err error
		if root.RootHash, err = ownHash(r, root.HashOffset); err != nil {
			return nil, err
		}
	}
	hash, err := hex.DecodeString(root.RootHash)
	if err != nil {
		return nil, fmt.Errorf("root hash: %w", err)
	}
	if err := verity.VerifyAll(ctx, r, hash, root.HashOffset, nil); err != nil {
		if ctx.Err() != nil {
			return nil, err
		}
		// Nothing is said of a root that does not verify: any of it may be a lie.
		root.Problem = fmt.Sprintf("does not verify: %v", err)
		return root, nil
	}
	root.Verified = true
	img, err := erofs.Open(io.NewSectionReader(r, 0, root.HashOffset))
	if err != nil {
		return nil, fmt.Errorf("read the root's file system: %w", err)
	}
	return root, root.read(ctx, img)
}

// erofsSize is the length of an EROFS image, from its superblock (Linux, fs/erofs/erofs_fs.h).
func erofsSize(r io.ReaderAt) (int64, error) {
	var sb [128]byte
	if _, err := r.ReadAt(sb[:], 1024); err != nil {
		return 0, err
	}
	bits := sb[12]
	if binary.LittleEndian.Uint32(sb[:]) != erofsMagic || bits < 9 || bits > 16 {
		return 0, errors.New("is no EROFS image")
	}
	return int64(binary.LittleEndian.Uint32(sb[36:])) << bits, nil
}

// ownHash is the root hash that an image's own tree comes to: its topmost block lies right behind the superblock.
func ownHash(r io.ReaderAt, hashOffset int64) (string, error) {
	sb, err := verity.ReadSuperblock(r, hashOffset)
	if err != nil {
		return "", err
	}
	top := make([]byte, verity.BlockSize)
	if _, err := r.ReadAt(top, hashOffset+verity.BlockSize); err != nil {
		return "", fmt.Errorf("read the top of the hash tree: %w", err)
	}
	sum := sha256.Sum256(append(append([]byte{}, sb.Salt...), top...))
	return hex.EncodeToString(sum[:]), nil
}

func (root *RootReport) read(ctx context.Context, img fs.FS) error {
	raw, err := fs.ReadFile(img, strings.TrimPrefix(mesh.PathRelease, "/"))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, &root.Release); err != nil {
		return fmt.Errorf("%s: %w", mesh.PathRelease, err)
	}
	if err := root.readModules(img); err != nil {
		return err
	}
	for _, dir := range []string{"usr/bin", "usr/sbin"} {
		names, err := fs.ReadDir(img, dir)
		if err != nil {
			return err
		}
		for _, n := range names {
			if st, err := n.Info(); err == nil && st.Mode().IsRegular() {
				root.Programs = append(root.Programs, ESPFile{path.Join(dir, n.Name()), st.Size()})
			}
		}
	}
	return root.readSeed(ctx, img)
}

func (root *RootReport) readModules(img fs.FS) error {
	dir := strings.TrimPrefix(mesh.PathModules, "/")
	kernels, err := fs.ReadDir(img, dir)
	if err != nil {
		return err
	}
	for _, k := range kernels {
		root.Kernel = k.Name()
	}
	return fs.WalkDir(img, dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(p, ".ko") {
			root.Modules = append(root.Modules, strings.TrimSuffix(path.Base(p), ".ko"))
		}
		return err
	})
}

func (root *RootReport) readSeed(ctx context.Context, img fs.FS) error {
	seed, err := fs.Sub(img, strings.TrimPrefix(mesh.PathSeed, "/"))
	if err != nil {
		return err
	}
	l, err := artifact.OpenLayout(seed)
	if err != nil {
		return fmt.Errorf("seed: %w", err)
	}
	for _, e := range l.Entries() {
		a, err := artifact.Load(ctx, l, e.Ref, e.Tag, e.Digest)
		if err != nil {
			return fmt.Errorf("seed: %s: %w", e, err)
		}
		s := SeedEntry{Name: e.String(), Arch: e.Arch, Digest: e.Digest, Size: int64(len(a.Manifest))}
		for _, b := range a.Blobs {
			s.Size += b.Size
		}
		root.Seed = append(root.Seed, s)
	}
	return nil
}
