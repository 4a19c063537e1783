// Package inspect tells what is in what a build gives: a disk image, a root image, a UKI, or a build's folder.
//
// It opens everything read-only and needs no privilege. What it says of a root it has verified, block by block,
// against the hash that the UKI pins. Start with Path; Disk, Root and UKI work on readers.
package inspect

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"kingpost/internal/mesh"
)

// Kinds of what can be inspected.
const (
	KindDisk   = "disk"
	KindRoot   = "root"
	KindUKI    = "uki"
	KindFolder = "folder"
)

// Report is what was found.
type Report struct {
	Path string `json:"path"`
	Kind string `json:"kind"`
	Size int64  `json:"size"` // bytes
	// Files is what release.json lists, for a folder.
	Files []File `json:"files,omitempty"`
	// Room is how full the places of a release are, as release.json says, for a folder.
	Room []Room      `json:"room,omitempty"`
	Disk *DiskReport `json:"disk,omitempty"`
	Root *RootReport `json:"root,omitempty"`
	UKI  *UKIReport  `json:"uki,omitempty"`
}

// File is a file of a build's folder.
type File struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
	// Problem says how the file differs from release.json; empty when it does not.
	Problem string `json:"problem,omitempty"`
}

// Room is how full a place is that a release has on a disk.
type Room struct {
	Place string `json:"place"` // "slot" or "esp"
	Size  int64  `json:"size"`  // bytes
	Used  int64  `json:"used"`  // bytes
	More  int64  `json:"more"`  // how many releases of this size fit beside it
}

// Problems lists everything that is wrong with what was inspected.
func (r *Report) Problems() []string {
	var out []string
	for _, f := range r.Files {
		if f.Problem != "" {
			out = append(out, f.Name+": "+f.Problem)
		}
	}
	if r.Disk != nil {
		out = append(out, r.Disk.Problems...)
		for _, root := range r.Disk.Roots {
			if root.Problem != "" {
				out = append(out, root.Problem)
			}
		}
	}
	if r.Root != nil && r.Root.Problem != "" {
		out = append(out, r.Root.Problem)
	}
	return out
}

// Path inspects a file or a build's folder.
func Path(ctx context.Context, name string) (*Report, error) {
	st, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if st.IsDir() {
		return folder(ctx, name)
	}
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe without a writer must not hold us up
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size := st.Size()
	if !st.Mode().IsRegular() { // a disk
		if size, err = f.Seek(0, io.SeekEnd); err != nil {
			return nil, fmt.Errorf("%s: how large it is cannot be told: %w", name, err)
		}
	}
	r := &Report{Path: name, Size: size}
	if r.Kind, err = kindOf(f, size); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	switch r.Kind {
	case KindDisk:
		r.Disk, err = Disk(ctx, f, size)
	case KindRoot:
		r.Root, err = Root(ctx, f, pinnedBeside(name), -1)
	case KindUKI:
		r.UKI, err = UKI(f, size)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return r, nil
}

// kindOf tells the kinds apart by their magic numbers.
func kindOf(r io.ReaderAt, size int64) (string, error) {
	head := make([]byte, 8192)
	n, err := r.ReadAt(head, 0)
	if err != nil && err != io.EOF {
		return "", err
	}
	head = head[:n]
	at := func(off int, magic string) bool {
		return len(head) >= off+len(magic) && string(head[off:off+len(magic)]) == magic
	}
	switch {
	case at(512, "EFI PART"), at(4096, "EFI PART"):
		return KindDisk, nil
	case len(head) >= 1028 && binary.LittleEndian.Uint32(head[1024:]) == erofsMagic:
		return KindRoot, nil
	case at(0, "MZ"):
		return KindUKI, nil
	}
	return "", fmt.Errorf("is no disk image with a GPT, no root image and no UKI (%d bytes)", size)
}

// pinnedBeside returns the root hash that the release.json beside a root image has, or "".
func pinnedBeside(name string) string {
	raw, err := os.ReadFile(filepath.Join(filepath.Dir(name), "release.json"))
	if err != nil {
		return ""
	}
	var rel struct{ RootHash string }
	if json.Unmarshal(raw, &rel) != nil {
		return ""
	}
	return rel.RootHash
}

// diskImage is the file of a build's folder that is looked into.
const diskImage = "disk.img"

// releaseFile is what is read of a build's release.json.
type releaseFile struct {
	mesh.ReleaseInfo
	Files []File `json:"files"`
	Room  []Room `json:"room"`
}

func folder(ctx context.Context, dir string) (*Report, error) {
	raw, err := os.ReadFile(filepath.Join(dir, "release.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s is no build's output: it has no release.json", dir)
	}
	if err != nil {
		return nil, err
	}
	var rel releaseFile
	if err := json.Unmarshal(raw, &rel); err != nil {
		return nil, fmt.Errorf("%s/release.json: %w", dir, err)
	}
	r := &Report{Path: dir, Kind: KindFolder, Room: rel.Room}
	for _, want := range rel.Files {
		f := want
		if !filepath.IsLocal(f.Name) {
			return nil, fmt.Errorf("%s/release.json: %q is no file in it", dir, f.Name)
		}
		f.Problem = differs(ctx, filepath.Join(dir, f.Name), want)
		r.Files = append(r.Files, f)
		r.Size += f.Size
	}
	if !slices.ContainsFunc(rel.Files, func(f File) bool { return f.Name == diskImage }) {
		return r, ctx.Err() // a build of other outputs
	}
	disk, err := Path(ctx, filepath.Join(dir, diskImage))
	if err != nil {
		return nil, err
	}
	r.Disk = disk.Disk
	return r, ctx.Err()
}
