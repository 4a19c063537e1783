// Package fat32 formats, reads and changes FAT32 file systems (Microsoft FAT32 File System Specification 1.03), as
// much as an EFI system partition needs: folders, files, long names.
//
// Formatting is reproducible: no clock, no chance. It works on readers and writers at byte offsets of the file system
// itself. It is for images and for disks that nobody has mounted. Start with Format and Open.
package fat32

import (
	"errors"
	"io"
	"time"
)

// Options pins a new file system.
type Options struct {
	Size       int64 // bytes
	SectorSize int   // 512 or 4096
	VolumeID   uint32
	Label      string    // at most 11 upper-case characters
	Time       time.Time // of every entry, from 1980 on, in UTC
}

// File is a file to put into a new file system. Parent folders are made.
type File struct {
	Path string // slash-separated, relative
	Data []byte
}

// MinSize is the smallest size with enough clusters to be FAT32, for a sector size in bytes.
func MinSize(sectorSize int) int64 { return 0 }

// Device is a file system's bytes; an *os.File or a section of one.
type Device interface {
	io.ReaderAt
	io.WriterAt
}

// Format writes a file system holding files onto w, which must read as zeros where nothing is written.
func Format(w io.WriterAt, o Options, files []File) error { return errors.ErrUnsupported }

// FS is a file system that was opened.
type FS struct{}

// Info is one entry of a folder.
type Info struct {
	Name string
	Size int64 // bytes
	Dir  bool
}

// ErrNotFound is returned for a path that does not exist.
var ErrNotFound = errors.New("no such file or folder")

// Open reads the file system's parameters. With a device that only reads, pass ReadOnly(r).
func Open(d Device) (*FS, error) { return nil, errors.ErrUnsupported }

// ReadOnly makes a Device of r that refuses writes.
func ReadOnly(r io.ReaderAt) Device { return nil }

// List returns the entries of a folder ("" is the root), sorted by name.
func (f *FS) List(path string) ([]Info, error) { return nil, errors.ErrUnsupported }

// ReadFile returns a file's content; more than limit bytes is an error.
func (f *FS) ReadFile(path string, limit int64) ([]byte, error) { return nil, errors.ErrUnsupported }

// OpenFile returns a reader over a file's content, and its size in bytes.
func (f *FS) OpenFile(path string) (io.ReaderAt, int64, error) { return nil, 0, errors.ErrUnsupported }

// WriteFile makes or replaces a file: new clusters first, then the folder entry, then the old clusters are freed.
// Parent folders are made.
func (f *FS) WriteFile(path string, data []byte, t time.Time) error { return errors.ErrUnsupported }

// Remove removes a file.
func (f *FS) Remove(path string) error { return errors.ErrUnsupported }
