// Package iso9660 writes what makes a CD of an image that is laid out already: an ISO 9660 volume (ECMA-119) whose files
// lie where the image has them, and an El Torito entry (El Torito specification 1.0, UEFI specification 2.10, section
// 13.3.2.1) by which UEFI firmware starts the EFI file system that is one of them.
//
// It leaves the system area, the first 32 KiB, to a partition table, so that the same image is a disk too. It writes no
// contents, reads no clock, and knows no names but those of the standard. Start with Write.
package iso9660

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// SectorSize is the size of a volume's sectors, in bytes.
const SectorSize = 2048

// End is up to where Write writes, in bytes: contents lie from there on.
const End = 64 << 10

// MaxFile is the largest file, in bytes.
const MaxFile = 1<<32 - 1

// Volume is a CD.
type Volume struct {
	Size  int64     // bytes, of the whole image
	Label string    // 1 to 32 upper-case letters, digits and underscores
	Time  time.Time // of everything in it
	Files []File
	// Boot is the name of the file that is an EFI file system, which firmware starts.
	Boot string
}

// File is a file of the root folder.
type File struct {
	Name  string // NAME.EXT: 1 to 8 and up to 3 upper-case letters, digits and underscores
	Start int64  // bytes into the image, a multiple of SectorSize from End on
	Size  int64  // bytes
}

// Sectors of the volume's own parts.
const (
	sectorPrimary = 16 + iota
	sectorBoot
	sectorEnd
	sectorPathL
	sectorPathM
	sectorRoot
	sectorCatalog
	sectorsEnd
)

// catalogName is the file by which other programs find the boot catalogue.
const catalogName = "BOOT.CAT"

// Write writes the volume's own parts, all below End.
func Write(w io.WriterAt, v Volume) error {
	if err := v.check(); err != nil {
		return fmt.Errorf("write ISO 9660 volume: %w", err)
	}
	files := append(slices.Clone(v.Files), File{catalogName, sectorCatalog * SectorSize, SectorSize})
	slices.SortFunc(files, func(a, b File) int { return strings.Compare(a.Name, b.Name) })
	b := make([]byte, (sectorsEnd-sectorPrimary)*SectorSize)
	sector := func(n int) []byte { return b[(n-sectorPrimary)*SectorSize:][:SectorSize] }
	root := record("\x00", sectorRoot*SectorSize, SectorSize, true, v.Time)
	v.primary(sector(sectorPrimary), root)
	bootRecord(sector(sectorBoot))
	copy(sector(sectorEnd), "\xffCD001\x01")
	copy(sector(sectorPathL), "\x01\x00"+string(le32(sectorRoot))+"\x01\x00\x00\x00")
	copy(sector(sectorPathM), "\x01\x00"+string(be32(sectorRoot))+"\x00\x01\x00\x00")
	dir := append(slices.Clone(root), record("\x01", sectorRoot*SectorSize, SectorSize, true, v.Time)...)
	for _, f := range files {
		dir = append(dir, record(f.Name+";1", f.Start, f.Size, false, v.Time)...)
	}
	if copy(sector(sectorRoot), dir) < len(dir) {
		return fmt.Errorf("write ISO 9660 volume: the root folder of %d files is larger than a sector", len(files))
	}
	v.catalog(sector(sectorCatalog))
	if _, err := w.WriteAt(b, sectorPrimary*SectorSize); err != nil {
		return fmt.Errorf("write ISO 9660 volume: %w", err)
	}
	return nil
}

func (v *Volume) check() error {
	if v.Size%SectorSize != 0 || v.Size < End || v.Size/SectorSize > 1<<32-1 {
		return fmt.Errorf("the image has %d bytes; it must be whole sectors of %d, up to 8 TiB", v.Size, SectorSize)
	}
	if !isName(v.Label, 32) {
		return fmt.Errorf("the label %.40q is not 1 to 32 upper-case letters, digits and underscores", v.Label)
	}
	if y := v.Time.UTC().Year(); y < 1900 || y > 2155 {
		return fmt.Errorf("the year %d is outside of 1900 to 2155", y)
	}
	boot := false
	for i, f := range v.Files {
		name, ext, dot := strings.Cut(f.Name, ".")
		switch {
		case !isName(name, 8), dot && !isName(ext, 3):
			return fmt.Errorf("%.40q is no name of a file on a CD, such as ROOT.IMG", f.Name)
		case f.Name == catalogName || slices.ContainsFunc(v.Files[:i], func(o File) bool { return o.Name == f.Name }):
			return fmt.Errorf("there are two files %s", f.Name)
		case f.Start%SectorSize != 0 || f.Start < End || f.Size < 0 || f.Start > v.Size-f.Size:
			return fmt.Errorf("%s (%d bytes at %d) does not lie in the image, or not at a sector's start", f.Name, f.Size, f.Start)
		case f.Size > MaxFile:
			return fmt.Errorf("%s has %d bytes, a file on a CD has at most %d", f.Name, f.Size, int64(MaxFile))
		}
		boot = boot || f.Name == v.Boot
	}
	if !boot {
		return errors.New("the file that firmware starts is not among its files")
	}
	return nil
}

func isName(s string, most int) bool {
	return s != "" && len(s) <= most && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_'
	})
}

// primary is the primary volume descriptor (ECMA-119, 8.4).
func (v *Volume) primary(b, root []byte) {
	copy(b, "\x01CD001\x01")
	text := func(at, length int, s string) { copy(b[at:at+length], s+strings.Repeat(" ", length)) }
	text(8, 32, "")
	text(40, 32, v.Label)
	copy(b[80:], both32(uint32(v.Size/SectorSize)))
	copy(b[120:], both16(1))
	copy(b[124:], both16(1))
	copy(b[128:], both16(SectorSize))
	copy(b[132:], both32(10)) // the path table's size: the root folder alone
	copy(b[140:], le32(sectorPathL))
	copy(b[148:], be32(sectorPathM))
	copy(b[156:], root)
	text(190, 4*128+3*37, "")
	t := v.Time.UTC()
	stamp := t.Format("20060102150405") + "00\x00" // hundredths, offset from UTC
	none := strings.Repeat("0", 16) + "\x00"
	copy(b[813:], stamp+stamp+none+stamp)
	b[881] = 1
}

// record is a directory record (ECMA-119, 9.1).
func record(name string, start, size int64, dir bool, t time.Time) []byte {
	n := (33 + len(name) + 1) &^ 1
	b := make([]byte, n)
	b[0] = byte(n)
	copy(b[2:], both32(uint32(start/SectorSize)))
	copy(b[10:], both32(uint32(size)))
	t = t.UTC()
	copy(b[18:], []byte{byte(t.Year() - 1900), byte(t.Month()), byte(t.Day()), byte(t.Hour()), byte(t.Minute()), byte(t.Second()), 0})
	if dir {
		b[25] = 2
	}
	copy(b[28:], both16(1))
	b[32] = byte(len(name))
	copy(b[33:], name)
	return b
}

// bootRecord points to the boot catalogue (El Torito, figure 7).
func bootRecord(b []byte) {
	copy(b, "\x00CD001\x01EL TORITO SPECIFICATION")
	copy(b[71:], le32(sectorCatalog))
}

// catalog has one entry, for UEFI (El Torito, figures 2 and 3).
func (v *Volume) catalog(b []byte) {
	const platformEFI, bootable = 0xef, 0x88
	b[0], b[1] = 1, platformEFI
	b[30], b[31] = 0x55, 0xaa
	sum := uint16(0)
	for i := 0; i < 32; i += 2 {
		sum += binary.LittleEndian.Uint16(b[i:])
	}
	binary.LittleEndian.PutUint16(b[28:], -sum)
	e := b[32:]
	e[0] = bootable
	for _, f := range v.Files {
		if f.Name != v.Boot {
			continue
		}
		// Its size in 512 bytes; what 16 bits cannot say is 0, which is "to the end of the CD" (UEFI, 13.3.2.1).
		if n := (f.Size + 511) / 512; n <= 0xffff {
			binary.LittleEndian.PutUint16(e[6:], uint16(n))
		}
		copy(e[8:], le32(uint32(f.Start/SectorSize)))
	}
}

func le32(n uint32) []byte   { return binary.LittleEndian.AppendUint32(nil, n) }
func be32(n uint32) []byte   { return binary.BigEndian.AppendUint32(nil, n) }
func both32(n uint32) []byte { return append(le32(n), be32(n)...) }
func both16(n uint16) []byte {
	return binary.BigEndian.AppendUint16(binary.LittleEndian.AppendUint16(nil, n), n)
}
