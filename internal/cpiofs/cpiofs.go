// Package cpiofs writes an initrd: a reproducible newc cpio archive
// (Documentation/driver-api/early-userspace/buffer-format.rst of Linux), compressed with zstd.
//
// It reads no file system and no clock. Start with WriteInitrd.
package cpiofs

import (
	"errors"
	"io"
	"io/fs"
)

// Entry is one file, directory or symbolic link of an initrd; all are root's.
type Entry struct {
	// Path is relative and slash-separated. Parent directories are made.
	Path string
	// Mode is permission bits, with fs.ModeDir or fs.ModeSymlink for those.
	Mode fs.FileMode
	Data []byte
	Link string // a symbolic link's target
}

// WriteInitrd writes entries, sorted by path, as a zstd-compressed cpio.
func WriteInitrd(w io.Writer, entries []Entry) error { return errors.ErrUnsupported }
