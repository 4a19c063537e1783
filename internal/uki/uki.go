// Package uki builds and reads Unified Kernel Images (UAPI group specification 5): a PE program, the systemd stub,
// with kernel, initrd and command line as sections of it.
//
// It signs nothing and knows nothing of what the sections hold. Start with Build and Read.
package uki

import (
	"errors"
	"io"
)

// Sections of a UKI, in the order that Build's callers use.
const (
	OSRel   = ".osrel"
	Cmdline = ".cmdline"
	Uname   = ".uname"
	Initrd  = ".initrd"
	Linux   = ".linux"
)

// Section is one section to append.
type Section struct {
	Name string // at most 8 bytes
	Data []byte
}

// Build returns stub with sections appended above its last one, 4096-aligned in memory.
func Build(stub []byte, sections []Section) ([]byte, error) { return nil, errors.ErrUnsupported }

// Image is a UKI that was read.
type Image struct {
	Sections []ReadSection // in file order
}

// ReadSection is one section of an image.
type ReadSection struct {
	Name string
	*io.SectionReader
}

// Read reads the section table of a PE image of size bytes.
func Read(r io.ReaderAt, size int64) (*Image, error) { return nil, errors.ErrUnsupported }

// Section returns the section of that name, or nil.
func (i *Image) Section(name string) *io.SectionReader { return nil }

// Text returns a small section as text, zero bytes at its end removed, or "" where there is none.
// More than 64 KiB is an error.
func (i *Image) Text(name string) (string, error) { return "", errors.ErrUnsupported }
