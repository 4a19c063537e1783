// Package gpt reads, writes and grows GUID partition tables (UEFI specification 2.10, chapter 5), with 512-byte and
// 4096-byte sectors.
//
// It works on readers and writers, knows no partition names, and never touches what is inside a partition.
// Start with Table, then Read, Write and Grow.
package gpt

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
)

// GUID is a globally unique identifier in its on-disk byte order (mixed endian, UEFI appendix A).
type GUID [16]byte

// ParseGUID reads the text form "8-4-4-4-12", upper or lower case.
func ParseGUID(s string) (GUID, error) {
	var g GUID
	b, err := hex.DecodeString(strings.ReplaceAll(s, "-", ""))
	if err != nil || len(b) != 16 || len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return g, fmt.Errorf("%.40q is no GUID; the form is 00000000-0000-0000-0000-000000000000", s)
	}
	copy(g[:], b)
	g.swap()
	return g, nil
}

// MustGUID is ParseGUID for constants in source code.
func MustGUID(s string) GUID {
	g, err := ParseGUID(s)
	if err != nil {
		panic(err)
	}
	return g
}

func (g *GUID) swap() {
	binary.BigEndian.PutUint32(g[0:], binary.LittleEndian.Uint32(g[0:]))
	binary.BigEndian.PutUint16(g[4:], binary.LittleEndian.Uint16(g[4:]))
	binary.BigEndian.PutUint16(g[6:], binary.LittleEndian.Uint16(g[6:]))
}

// String is the text form in lower case, as Linux shows it.
func (g GUID) String() string {
	g.swap()
	h := hex.EncodeToString(g[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// IsZero reports whether g is the unused-entry GUID.
func (g GUID) IsZero() bool { return g == GUID{} }

// Partition is one entry. Start and Size are bytes from the start of the disk.
type Partition struct {
	Number      int // from 1, its place in the table
	Name        string
	Type        GUID
	GUID        GUID
	Start, Size int64
	Attributes  uint64
}

// Table is a partition table.
type Table struct {
	SectorSize int   // bytes: 512 or 4096
	Size       int64 // of the disk that the table says it is for, in bytes
	DiskGUID   GUID
	Partitions []Partition // used entries only, by number
	// FromBackup is set by Read when the primary header did not check and the one at the end did.
	FromBackup bool
}

// File is a disk or an image of one; an *os.File is one.
type File interface {
	io.ReaderAt
	io.WriterAt
}

// ErrNoTable is returned by Read where there is no valid table at either place.
var ErrNoTable = errors.New("no valid GUID partition table")

// Read reads the table of a disk of size bytes. sectorSize is 512, 4096, or 0 to try both. Header and entries
// are checked by their CRCs, and partitions for lying on the disk and not over each other.
func Read(r io.ReaderAt, size int64, sectorSize int) (*Table, error) {
	return nil, errors.ErrUnsupported
}

// Write writes protective MBR, primary and backup table for a disk of t.Size bytes.
func Write(w io.WriterAt, t *Table) error { return errors.ErrUnsupported }

// Grow moves the backup table to the end of a disk that is now size bytes and gives the last partition all the space up
// to it. It returns the new table. Writes go in the order that leaves a valid table at every cut: backup, sync,
// primary, sync; then the old backup is cleared. A disk of its own full size is left as it is. sync may be nil.
func Grow(f File, size int64, sectorSize int, sync func() error) (*Table, error) {
	return nil, errors.ErrUnsupported
}
