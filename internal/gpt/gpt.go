// Package gpt reads, writes and grows GUID partition tables (UEFI specification 2.10, chapter 5), with 512-byte and
// 4096-byte sectors.
//
// It works on readers and writers, knows no partition names, and never touches what is inside a partition.
// Start with Table, then Read, Write and Grow.
package gpt

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
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

// Align is what partitions that this package grows end on, in bytes; a disk's last Align bytes hold the backup.
const Align = 1 << 20

// Sizes and counts of the format.
const (
	headerSize = 92
	entrySize  = 128
	entryCount = 128
	nameUnits  = 36 // UTF-16 code units

	// maxEntries bounds what a header may claim; everybody writes 128.
	maxEntries = 1024
)

// entrySectors is how many sectors the entries take.
func entrySectors(sectorSize int) int64 {
	return (entryCount*entrySize + int64(sectorSize) - 1) / int64(sectorSize)
}

// usable returns the first byte that a partition may have, and the first one after it that it may not.
func usable(size int64, sectorSize int) (first, end int64) {
	s := int64(sectorSize)
	return (2 + entrySectors(sectorSize)) * s, (size/s - 1 - entrySectors(sectorSize)) * s
}

// check says what keeps t from being written, or believed.
func (t *Table) check(first, end int64) error {
	numbers := map[int]bool{}
	byStart := slices.Clone(t.Partitions)
	slices.SortStableFunc(byStart, func(a, b Partition) int { return cmp.Compare(a.Start, b.Start) })
	last := int64(0)
	for _, p := range byStart {
		switch {
		case p.Number < 1 || p.Number > maxEntries || numbers[p.Number]:
			return fmt.Errorf("the partition number %d is taken or out of range", p.Number)
		case p.Start%int64(t.SectorSize) != 0 || p.Size%int64(t.SectorSize) != 0 || p.Size <= 0:
			return fmt.Errorf("partition %d (%d bytes at byte %d) is no whole number of sectors", p.Number, p.Size, p.Start)
		case p.Start < first || p.Start > end || p.Size > end-p.Start:
			return fmt.Errorf("partition %d (%d bytes at byte %d) lies outside the usable bytes %d to %d", p.Number, p.Size, p.Start, first, end)
		case p.Start < last:
			return fmt.Errorf("partition %d lies over the one before it", p.Number)
		case p.Type.IsZero():
			return fmt.Errorf("partition %d has no type", p.Number)
		}
		numbers[p.Number] = true
		last = p.Start + p.Size
	}
	return nil
}
