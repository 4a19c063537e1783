// Package cpiofs writes an initrd: a reproducible newc cpio archive
// (Documentation/driver-api/early-userspace/buffer-format.rst of Linux), compressed with zstd.
//
// It reads no file system and no clock; all entries are root's and of no time. Start with WriteInitrd.
package cpiofs

import (
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"
	"github.com/u-root/u-root/pkg/cpio"
)

// Entry is one file, directory or symbolic link of an initrd.
type Entry struct {
	// Path is relative and slash-separated. Parent directories are made.
	Path string
	// Mode is permission bits, with fs.ModeDir or fs.ModeSymlink for those.
	Mode fs.FileMode
	Data []byte
	Link string // a symbolic link's target
}

// WriteInitrd writes entries, sorted by path, as a zstd-compressed cpio. Two entries of one path are an error.
func WriteInitrd(w io.Writer, entries []Entry) error {
	records, err := toRecords(entries)
	if err != nil {
		return fmt.Errorf("write initrd: %w", err)
	}
	// One goroutine and a fixed window, so that neither the machine nor a default decides about the bytes; the
	// kernel takes windows up to 128 MiB, but pays for them in memory.
	z, err := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedBetterCompression), zstd.WithWindowSize(8<<20))
	if err != nil {
		return fmt.Errorf("write initrd: %w", err)
	}
	if err := writeRecords(z, records); err != nil {
		z.Close()
		return fmt.Errorf("write initrd: %w", err)
	}
	if err := z.Close(); err != nil {
		return fmt.Errorf("write initrd: %w", err)
	}
	return nil
}

// MaxFile is the largest file of an archive, in bytes: its size has eight hexadecimal digits.
const MaxFile = 1<<32 - 1

// WriteFile writes an archive, not compressed, with one file of size bytes. It can follow an initrd whose length is a
// multiple of 4: the kernel unpacks both. Memory does not grow with the file.
func WriteFile(w io.Writer, name string, r io.ReaderAt, size int64) error {
	if !fs.ValidPath(name) || strings.Contains(name, "/") || size < 0 || size > MaxFile {
		return fmt.Errorf("write archive: the file %.60q of %d bytes cannot be in one; at most %d bytes and no folders", name, size, int64(MaxFile))
	}
	info := cpio.Info{Name: name, Mode: cpio.S_IFREG | 0o600, NLink: 1, FileSize: uint64(size)}
	record := cpio.Record{ReaderAt: io.NewSectionReader(r, 0, size), Info: info}
	if err := writeRecords(w, []cpio.Record{record}); err != nil {
		return fmt.Errorf("write archive: %w", err)
	}
	return nil
}

func writeRecords(w io.Writer, records []cpio.Record) error {
	c := cpio.Newc.Writer(w)
	for _, r := range records {
		if err := c.WriteRecord(cpio.MakeReproducible(r)); err != nil {
			return fmt.Errorf("%s: %w", r.Name, err)
		}
	}
	return cpio.WriteTrailer(c)
}

// toRecords checks entries and puts every directory before what is in it: the kernel makes none by itself.
func toRecords(entries []Entry) ([]cpio.Record, error) {
	all := map[string]Entry{}
	for _, e := range entries {
		p := path.Clean(e.Path)
		if !fs.ValidPath(p) || p == "." || strings.ContainsRune(p, 0) {
			return nil, fmt.Errorf("%q is no clean relative path", e.Path)
		}
		if old, ok := all[p]; ok && !(old.Mode.IsDir() && e.Mode.IsDir()) {
			return nil, fmt.Errorf("there are two entries %q", p)
		}
		e.Path = p
		all[p] = e
	}
	for _, e := range entries {
		for dir := path.Dir(path.Clean(e.Path)); dir != "."; dir = path.Dir(dir) {
			d, ok := all[dir]
			if !ok {
				all[dir] = Entry{Path: dir, Mode: fs.ModeDir | 0o755}
			} else if !d.Mode.IsDir() {
				return nil, fmt.Errorf("%q is no directory, but %q lies below it", dir, e.Path)
			}
		}
	}
	names := make([]string, 0, len(all))
	for p := range all {
		names = append(names, p)
	}
	slices.Sort(names)
	var out []cpio.Record
	for _, p := range names {
		e := all[p]
		perm := uint64(e.Mode.Perm())
		switch e.Mode.Type() {
		case 0:
			out = append(out, cpio.StaticRecord(e.Data, cpio.Info{Name: p, Mode: cpio.S_IFREG | perm, NLink: 1}))
		case fs.ModeDir:
			out = append(out, cpio.Directory(p, perm))
		case fs.ModeSymlink:
			if e.Link == "" {
				return nil, fmt.Errorf("the symbolic link %q has no target", p)
			}
			out = append(out, cpio.Symlink(p, e.Link))
		default:
			return nil, fmt.Errorf("%q is a %s; an initrd holds only files, directories and symbolic links", p, e.Mode.Type())
		}
	}
	return out, nil
}
