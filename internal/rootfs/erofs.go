package rootfs

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"path"
	"time"

	"github.com/erofs/go-erofs"
)

// BlockSize is the block size of the images, in bytes: a page on every machine that we run on.
const BlockSize = 4096

// Output is where an image is written; an *os.File, empty at first, is one.
type Output interface {
	io.WriteSeeker
	io.ReaderAt
	io.WriterAt
}

// Options pins what a file system would otherwise take from the clock and from chance.
type Options struct {
	UUID [16]byte
	// Time is the modification time of every entry and of the file system, to the second.
	Time time.Time
}

// WriteEROFS writes t as an EROFS image (uncompressed, 4096-byte blocks) and returns its size in bytes, a multiple of
// 4096. The same entries and options give the same bytes. Contents are streamed, so memory grows with the number
// of entries only. An image that was cut short has no superblock, and so is none.
func WriteEROFS(ctx context.Context, w Output, t *Tree, o Options) (int64, error) {
	if o.Time.Unix() < 0 {
		return 0, fmt.Errorf("write erofs image: the time %v is before 1970", o.Time)
	}
	src := &treeFS{ctx: ctx, time: o.Time, entries: t.entries, children: map[string][]fs.DirEntry{}}
	for _, e := range t.Entries() {
		if e.Path != "." {
			dir := path.Dir(e.Path)
			src.children[dir] = append(src.children[dir], src.info(e))
		}
	}
	if _, err := w.Seek(0, io.SeekStart); err != nil {
		return 0, fmt.Errorf("write erofs image: %w", err)
	}
	img := erofs.Create(w, erofs.WithBlockSize(BlockSize), erofs.WithBuildTime(uint64(o.Time.Unix()), 0))
	if err := img.CopyFrom(src); err != nil {
		return 0, fmt.Errorf("write erofs image: %w", err)
	}
	if err := img.Close(); err != nil {
		return 0, fmt.Errorf("write erofs image: %w", err)
	}
	if src.err != nil {
		return 0, fmt.Errorf("write erofs image: %w", src.err)
	}
	blocks, err := patchSuperblock(w, o.UUID)
	if err != nil {
		return 0, fmt.Errorf("write erofs image: superblock: %w", err)
	}
	return blocks * BlockSize, nil
}

// Places in the superblock (struct erofs_super_block in Linux' fs/erofs/erofs_fs.h).
const (
	sbOffset       = 1024
	sbMagic        = 0xE0F5E1E2
	sbAtChecksum   = 4
	sbAtCompat     = 8
	sbAtBlocks     = 36
	sbAtUUID       = 48
	sbCompatChksum = 1
)

// patchSuperblock sets the UUID, which the library leaves zero, and the checksum over the superblock's block,
// and returns the number of blocks.
func patchSuperblock(w Output, uuid [16]byte) (int64, error) {
	b := make([]byte, BlockSize-sbOffset)
	if _, err := w.ReadAt(b, sbOffset); err != nil {
		return 0, err
	}
	le := binary.LittleEndian
	if le.Uint32(b) != sbMagic {
		return 0, fmt.Errorf("the magic number is %#x", le.Uint32(b))
	}
	copy(b[sbAtUUID:], uuid[:])
	le.PutUint32(b[sbAtCompat:], le.Uint32(b[sbAtCompat:])|sbCompatChksum)
	le.PutUint32(b[sbAtChecksum:], 0)
	// The kernel's crc32c starts at ~0 and is not inverted at the end.
	le.PutUint32(b[sbAtChecksum:], ^crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	if _, err := w.WriteAt(b, sbOffset); err != nil {
		return 0, err
	}
	return int64(le.Uint32(b[sbAtBlocks:])), nil
}

// treeFS shows a tree to the EROFS writer as an fs.FS. The writer opens everything before it reads anything, so a file is
// really opened at its first read.
type treeFS struct {
	ctx      context.Context
	time     time.Time
	entries  map[string]*Entry
	children map[string][]fs.DirEntry
	err      error // a content that was longer than its entry said
}

func (f *treeFS) info(e *Entry) entryInfo { return entryInfo{e, f.time} }

func (f *treeFS) Open(name string) (fs.File, error) {
	e := f.entries[name]
	if e == nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return &lazyFile{fs: f, e: e}, nil
}

// Stat saves WalkDir an Open of the root.
func (f *treeFS) Stat(name string) (fs.FileInfo, error) {
	e := f.entries[name]
	if e == nil {
		return nil, &fs.PathError{Op: "stat", Path: name, Err: fs.ErrNotExist}
	}
	return f.info(e), nil
}

func (f *treeFS) ReadDir(name string) ([]fs.DirEntry, error) { return f.children[name], nil }

// ReadLink is what the EROFS writer asks for a link's target.
func (f *treeFS) ReadLink(name string) (string, error) { return f.entries[name].Link, nil }

// Lstat makes treeFS an fs.ReadLinkFS; Stat does not follow links either.
func (f *treeFS) Lstat(name string) (fs.FileInfo, error) { return f.Stat(name) }

type entryInfo struct {
	e    *Entry
	time time.Time
}

func (i entryInfo) Name() string               { return path.Base(i.e.Path) }
func (i entryInfo) Mode() fs.FileMode          { return i.e.Mode }
func (i entryInfo) Type() fs.FileMode          { return i.e.Mode.Type() }
func (i entryInfo) ModTime() time.Time         { return i.time }
func (i entryInfo) IsDir() bool                { return i.e.Mode.IsDir() }
func (i entryInfo) Info() (fs.FileInfo, error) { return i, nil }

func (i entryInfo) Size() int64 {
	if i.e.Mode.Type() == fs.ModeSymlink {
		return int64(len(i.e.Link))
	}
	return i.e.Size
}

// Sys hands over what fs.FileInfo has no place for. The number of links is the writer's to count.
func (i entryInfo) Sys() any {
	return &erofs.Stat{
		UID: uint32(i.e.UID), GID: uint32(i.e.GID),
		Mtime:  uint64(i.time.Unix()),
		Xattrs: i.e.Xattrs,
	}
}

type lazyFile struct {
	fs   *treeFS
	e    *Entry
	r    io.ReadCloser
	done int64
}

func (l *lazyFile) Stat() (fs.FileInfo, error) { return l.fs.info(l.e), nil }

func (l *lazyFile) Read(p []byte) (int, error) {
	if err := l.fs.ctx.Err(); err != nil {
		return 0, err
	}
	if l.r == nil {
		r, err := l.e.Open()
		if err != nil {
			return 0, err
		}
		l.r = r
	}
	n, err := l.r.Read(p)
	l.done += int64(n)
	if err == io.EOF && l.done < l.e.Size {
		return n, fmt.Errorf("%s has %d bytes, %d were announced; it changed while it was read", l.e.Path, l.done, l.e.Size)
	}
	return n, err
}

// Close checks that the content ends where its entry says: the writer stops reading there.
func (l *lazyFile) Close() error {
	if l.r == nil {
		return nil
	}
	if l.done == l.e.Size && l.fs.err == nil {
		var one [1]byte
		if n, _ := io.ReadFull(l.r, one[:]); n > 0 {
			l.fs.err = fmt.Errorf("%s is longer than the %d bytes that were announced; it changed while it was read", l.e.Path, l.e.Size)
		}
	}
	err := l.r.Close()
	l.r = nil
	return err
}
