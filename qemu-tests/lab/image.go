package lab

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/erofs/go-erofs"

	"kingpost/internal/gpt"
	"kingpost/internal/mesh"
	"kingpost/internal/mesh/artifact"
	"kingpost/internal/nodevm"
	"kingpost/internal/release"
	"kingpost/internal/verity"
)

// partition opens a partition of a raw disk by name. The file is the caller's to close.
func partition(disk, name string) (*os.File, gpt.Partition, error) {
	f, err := os.OpenFile(disk, os.O_RDWR, 0)
	if err != nil {
		return nil, gpt.Partition{}, err
	}
	st, err := f.Stat()
	if err == nil {
		var table *gpt.Table
		if table, err = release.ReadGPT(f, st.Size(), 0); err == nil {
			for _, p := range table.Partitions {
				if p.Name == name {
					return f, p, nil
				}
			}
			err = fmt.Errorf("no partition %s", name)
		}
	}
	f.Close()
	return nil, gpt.Partition{}, fmt.Errorf("lab: %s: %w", disk, err)
}

// FlipByte changes one byte of a partition of a raw disk, at bytes from its start.
func FlipByte(disk, name string, at int64) error {
	f, p, err := partition(disk, name)
	if err != nil {
		return err
	}
	err = flip(f, p.Start+at)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

func flip(f *os.File, at int64) error {
	var b [1]byte
	if _, err := f.ReadAt(b[:], at); err != nil {
		return fmt.Errorf("lab: flip a byte: %w", err)
	}
	b[0] ^= 0x40
	_, err := f.WriteAt(b[:], at)
	return err
}

// CopyPartition copies a partition's content from one raw disk to another of the same layout.
func CopyPartition(to, from, name string) error {
	src, sp, err := partition(from, name)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, dp, err := partition(to, name)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.NewOffsetWriter(dst, dp.Start), io.NewSectionReader(src, sp.Start, min(sp.Size, dp.Size)))
	if cerr := dst.Close(); err == nil {
		err = cerr
	}
	return err
}

// openSeed opens the seed in slot A of a raw disk.
func openSeed(f *os.File, p gpt.Partition) (*artifact.Layout, fs.FS, error) {
	root, err := erofs.Open(io.NewSectionReader(f, p.Start, p.Size))
	if err != nil {
		return nil, nil, fmt.Errorf("lab: open the root image: %w", err)
	}
	seed, err := fs.Sub(root, strings.TrimPrefix(mesh.PathSeed, "/"))
	if err != nil {
		return nil, nil, err
	}
	layout, err := artifact.OpenLayout(seed)
	return layout, seed, err
}

// Digests is what the image's seed binds.
func (l *Lab) Digests() (mesh.Digests, error) {
	f, p, err := partition(l.Image, release.PartRootA)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	layout, _, err := openSeed(f, p)
	if err != nil {
		return nil, err
	}
	return layout.Digests(), nil
}

// Manifest is a module's manifest in the image's seed.
func (l *Lab) Manifest(name string) (mesh.Manifest, error) {
	b, err := os.ReadFile(l.Root + "/images/modules/" + name + "/module.json")
	if err != nil {
		return mesh.Manifest{}, err
	}
	m, err := mesh.DecodeManifest(bytes.NewReader(b))
	if err != nil {
		return mesh.Manifest{}, fmt.Errorf("lab: module %s: %w", name, err)
	}
	return m, nil
}

// FlipSeedByte changes one byte in the largest blob of the seed in slot A of a raw disk, and makes the hash tree anew over
// it: the root verifies, and only whoever reads the seed by digest can tell. It returns what starts that root and the
// digest of the blob.
func (l *Lab) FlipSeedByte(ctx context.Context, disk string) (nodevm.Boot, string, error) {
	boot := l.direct
	f, p, err := partition(disk, release.PartRootA)
	if err != nil {
		return boot, "", err
	}
	defer f.Close()
	at, digest, err := findBlob(f, p)
	if err != nil {
		return boot, "", err
	}
	if err := flip(f, p.Start+at); err != nil {
		return boot, "", err
	}
	line, err := release.ParseCmdline(boot.Cmdline)
	if err != nil {
		return boot, "", err
	}
	section := io.NewSectionReader(f, p.Start, p.Size)
	sb, err := verity.ReadSuperblock(section, line.HashOffset)
	if err != nil {
		return boot, "", err
	}
	info, err := verity.Append(ctx, &offsetFile{section, io.NewOffsetWriter(f, p.Start)}, line.HashOffset, verity.Params{Salt: sb.Salt, UUID: sb.UUID})
	if err != nil {
		return boot, "", err
	}
	line.RootHash = hex.EncodeToString(info.RootHash[:])
	boot.Cmdline = line.String()
	return boot, digest, nil
}

// offsetFile is a part of a file as a file.
type offsetFile struct {
	io.ReaderAt
	io.WriterAt
}

// findBlob finds where the largest blob of the seed is in a partition: a byte of its second block. Files of an
// uncompressed EROFS lie in whole blocks, one behind the other.
func findBlob(f *os.File, p gpt.Partition) (int64, string, error) {
	_, seed, err := openSeed(f, p)
	if err != nil {
		return 0, "", err
	}
	var name string
	var size int64
	blobs, err := fs.ReadDir(seed, "blobs/sha256")
	if err != nil {
		return 0, "", fmt.Errorf("lab: the seed's blobs: %w", err)
	}
	for _, b := range blobs {
		if info, err := b.Info(); err == nil && info.Size() > size {
			name, size = b.Name(), info.Size()
		}
	}
	in, err := seed.Open("blobs/sha256/" + name)
	if err != nil {
		return 0, "", err
	}
	defer in.Close()
	const block = 4096
	head := make([]byte, 2*block)
	if _, err := io.ReadFull(in, head); err != nil {
		return 0, "", fmt.Errorf("lab: read the blob %s: %w", name, err)
	}
	buf := make([]byte, 1<<20)
	for at := int64(0); at < p.Size; at += int64(len(buf)) - block {
		n, err := f.ReadAt(buf[:min(int64(len(buf)), p.Size-at)], p.Start+at)
		if n == 0 && err != nil {
			return 0, "", err
		}
		for i := 0; i+2*block <= n; i += block {
			if bytes.Equal(buf[i:i+2*block], head) {
				return at + int64(i) + block + 100, "sha256:" + name, nil
			}
		}
		if n < 2*block {
			break
		}
	}
	return 0, "", fmt.Errorf("lab: the blob %s is not in one piece in the root image", name)
}
