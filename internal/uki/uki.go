// Package uki builds and reads Unified Kernel Images (UAPI group specification 5): a PE program, the systemd stub,
// with kernel, initrd and command line as sections of it.
//
// It signs nothing and knows nothing of what the sections hold. The same stub and sections give the same bytes.
// Start with Build and Read.
package uki

import (
	"bytes"
	"debug/pe"
	"encoding/binary"
	"fmt"
	"io"
	"math"
)

// Sections of a UKI that Kingpost uses.
const (
	OSRel   = ".osrel"
	Cmdline = ".cmdline"
	Uname   = ".uname"
	Initrd  = ".initrd"
	Linux   = ".linux"
)

// Section is one section to append.
type Section struct {
	Name string // 1 to 8 bytes
	Data []byte
}

// Sizes and places in a PE image (Microsoft PE/COFF specification).
const (
	sectionHeaderSize = 40
	optAtCodeSize     = 4
	optAtDataSize     = 8
	optAtFileAlign    = 36
	optAtImageSize    = 56
	optAtHeadersSize  = 60
	optAtChecksum     = 64

	flagCode = pe.IMAGE_SCN_CNT_CODE | pe.IMAGE_SCN_MEM_READ
	flagData = pe.IMAGE_SCN_CNT_INITIALIZED_DATA | pe.IMAGE_SCN_MEM_READ

	// pageSize is how sections are aligned in memory. The stub's own alignment is no larger.
	pageSize = 4096
)

// layout is what Build needs to know of a stub.
type layout struct {
	coffAt, optAt, tableAt int64
	sections               int
	fileAlign              int64
	memoryEnd              int64 // of the last section, where the next may start
	headerRoom             int64 // where the first section's bytes start
	names                  map[string]bool
}

// Build returns stub with sections appended above its last one, 4096-aligned in memory, in the given order.
func Build(stub []byte, sections []Section) ([]byte, error) {
	l, err := readLayout(stub)
	if err != nil {
		return nil, fmt.Errorf("build UKI: %w", err)
	}
	if need := l.tableAt + int64(l.sections+len(sections))*sectionHeaderSize; need > l.headerRoom {
		return nil, fmt.Errorf("build UKI: the stub's header has room for %d more sections, %d are wanted", (l.headerRoom-l.tableAt)/sectionHeaderSize-int64(l.sections), len(sections))
	}
	size := align(int64(len(stub)), l.fileAlign)
	for _, s := range sections {
		if s.Name == "" || len(s.Name) > 8 {
			return nil, fmt.Errorf("build UKI: the section name %q has not 1 to 8 bytes", s.Name)
		}
		if len(s.Data) == 0 {
			return nil, fmt.Errorf("build UKI: the section %s is empty", s.Name)
		}
		if l.names[s.Name] {
			return nil, fmt.Errorf("build UKI: there is a section %s already", s.Name)
		}
		l.names[s.Name] = true
		size += align(int64(len(s.Data)), l.fileAlign)
	}
	if size > math.MaxInt32 || l.memoryEnd+size+int64(len(sections))*pageSize > math.MaxInt32 {
		return nil, fmt.Errorf("build UKI: it would have %d bytes, a PE image has at most 2 GiB", size)
	}

	out := make([]byte, size)
	copy(out, stub)
	le := binary.LittleEndian
	at := align(int64(len(stub)), l.fileAlign)
	var code, data uint32
	for i, s := range sections {
		raw := align(int64(len(s.Data)), l.fileAlign)
		h := out[l.tableAt+int64(l.sections+i)*sectionHeaderSize:][:sectionHeaderSize]
		clear(h)
		copy(h, s.Name)
		le.PutUint32(h[8:], uint32(len(s.Data)))
		le.PutUint32(h[12:], uint32(l.memoryEnd))
		le.PutUint32(h[16:], uint32(raw))
		le.PutUint32(h[20:], uint32(at))
		if s.Name == Linux {
			// As ukify does: kernels before 5.8 are executed in place.
			le.PutUint32(h[36:], flagCode)
			code += uint32(raw)
		} else {
			le.PutUint32(h[36:], flagData)
			data += uint32(raw)
		}
		copy(out[at:], s.Data)
		at += raw
		l.memoryEnd = align(l.memoryEnd+int64(len(s.Data)), pageSize)
	}
	le.PutUint16(out[l.coffAt+2:], uint16(l.sections+len(sections)))
	opt := out[l.optAt:]
	le.PutUint32(opt[optAtCodeSize:], le.Uint32(opt[optAtCodeSize:])+code)
	le.PutUint32(opt[optAtDataSize:], le.Uint32(opt[optAtDataSize:])+data)
	le.PutUint32(opt[optAtImageSize:], uint32(l.memoryEnd))
	if end := l.tableAt + int64(l.sections+len(sections))*sectionHeaderSize; end > int64(le.Uint32(opt[optAtHeadersSize:])) {
		le.PutUint32(opt[optAtHeadersSize:], uint32(align(end, l.fileAlign)))
	}
	le.PutUint32(opt[optAtChecksum:], 0) // UEFI does not look at it; a wrong one would only mislead
	return out, nil
}

func align(n, to int64) int64 { return (n + to - 1) / to * to }

func readLayout(stub []byte) (*layout, error) {
	f, err := pe.NewFile(bytes.NewReader(stub))
	if err != nil {
		return nil, fmt.Errorf("the stub is no PE image: %w", err)
	}
	opt, ok := f.OptionalHeader.(*pe.OptionalHeader64)
	if !ok {
		return nil, fmt.Errorf("the stub is no 64-bit PE image")
	}
	if len(f.Sections) == 0 {
		return nil, fmt.Errorf("the stub has no sections")
	}
	if opt.DataDirectory[pe.IMAGE_DIRECTORY_ENTRY_SECURITY].Size != 0 {
		return nil, fmt.Errorf("the stub is signed; a UKI is signed when it is whole, so give the unsigned stub")
	}
	if a := opt.FileAlignment; a < 16 || a > pageSize || a&(a-1) != 0 {
		return nil, fmt.Errorf("the stub's file alignment %d is none", a)
	}
	if opt.SectionAlignment > pageSize {
		return nil, fmt.Errorf("the stub's section alignment %d is above %d", opt.SectionAlignment, pageSize)
	}
	coff := int64(binary.LittleEndian.Uint32(stub[0x3c:])) + 4
	l := &layout{
		coffAt:     coff,
		optAt:      coff + 20,
		tableAt:    coff + 20 + int64(f.SizeOfOptionalHeader),
		sections:   len(f.Sections),
		fileAlign:  int64(opt.FileAlignment),
		headerRoom: int64(len(stub)),
		names:      map[string]bool{},
	}
	for _, s := range f.Sections {
		l.names[s.Name] = true
		l.memoryEnd = max(l.memoryEnd, align(int64(s.VirtualAddress)+int64(max(s.VirtualSize, s.Size)), pageSize))
		if s.Size > 0 {
			l.headerRoom = min(l.headerRoom, int64(s.Offset))
		}
		l.headerRoom = min(l.headerRoom, int64(s.VirtualAddress))
	}
	return l, nil
}

// Image is a UKI that was read.
type Image struct {
	Sections []ReadSection // in file order
}

// ReadSection is one section of an image. Its reader gives what the section holds, without the padding in the file.
type ReadSection struct {
	Name string
	*io.SectionReader
}

// MaxText bounds what Text returns, in bytes.
const MaxText = 64 << 10

// Read reads the section table of a PE image of size bytes. Sections that lie outside the file are an error.
func Read(r io.ReaderAt, size int64) (*Image, error) {
	f, err := pe.NewFile(io.NewSectionReader(r, 0, size))
	if err != nil {
		return nil, fmt.Errorf("read UKI: %w", err)
	}
	img := &Image{}
	for _, s := range f.Sections {
		// A virtual size above the raw one is zeros that the loader adds (.bss).
		n := int64(min(s.Size, s.VirtualSize))
		if int64(s.Offset)+n > size {
			return nil, fmt.Errorf("read UKI: section %q ends at byte %d of %d; the file was cut short", s.Name, int64(s.Offset)+n, size)
		}
		img.Sections = append(img.Sections, ReadSection{s.Name, io.NewSectionReader(r, int64(s.Offset), n)})
	}
	return img, nil
}

// Section returns a new reader over the section of that name, or nil.
func (i *Image) Section(name string) *io.SectionReader {
	for _, s := range i.Sections {
		if s.Name == name {
			return io.NewSectionReader(s.SectionReader, 0, s.Size())
		}
	}
	return nil
}

// Text returns a small section as text, zero bytes at its end removed, or "" where there is none.
// More than MaxText is an error.
func (i *Image) Text(name string) (string, error) {
	s := i.Section(name)
	if s == nil {
		return "", nil
	}
	if s.Size() > MaxText {
		return "", fmt.Errorf("read UKI: section %s has %d bytes, at most %d are expected of a text", name, s.Size(), MaxText)
	}
	b, err := io.ReadAll(s)
	if err != nil {
		return "", fmt.Errorf("read UKI: section %s: %w", name, err)
	}
	return string(bytes.TrimRight(b, "\x00")), nil
}
