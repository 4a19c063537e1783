package fat32

import (
	"encoding/binary"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"
)

// Options pins a new file system.
type Options struct {
	Size       int64 // bytes
	SectorSize int   // 512 or 4096
	VolumeID   uint32
	Label      string    // 1 to 11 upper-case letters, digits, spaces, hyphens and underscores
	Time       time.Time // of every entry
}

// File is a file to put into a new file system. Parent folders are made.
type File struct {
	Path string // slash-separated, relative
	Data []byte
}

const (
	reservedSectors = 32
	infoSector      = 1
	backupSector    = 6
	fatCopies       = 2
	// preferredCluster is the cluster size where the file system is large enough for it: a page.
	preferredCluster = 4096
)

// MinSize is the smallest size with enough clusters to be FAT32, for a sector size in bytes, rounded up to MiB.
func MinSize(sectorSize int) int64 {
	s := int64(sectorSize)
	fat := (minClusters + firstData + spare) * 4
	return (reservedSectors*s + fatCopies*(int64(fat)+s) + (minClusters+spare)*s + 1<<20 - 1) >> 20 << 20
}

// spare is how far above the border the number of clusters stays, since not every firmware counts exactly.
const spare = 16

// plan works out the geometry of a new file system.
func plan(size int64, sectorSize int) (geometry, error) {
	if sectorSize != 512 && sectorSize != 4096 {
		return geometry{}, fmt.Errorf("the sector size %d is neither 512 nor 4096", sectorSize)
	}
	s := int64(sectorSize)
	for cluster := int64(preferredCluster); cluster >= s; cluster /= 2 {
		g := geometry{sectorSize: s, clusterSize: cluster, fats: fatCopies, fatStart: reservedSectors * s, root: firstData, infoAt: infoSector * s}
		n := (size/s*s - g.fatStart) / cluster // an upper bound, good enough for the size of the table
		g.fatSize = ((n+firstData)*4 + s - 1) / s * s
		g.dataStart = g.fatStart + fatCopies*g.fatSize
		n = (size/s*s - g.dataStart) / cluster
		if n > maxClusters {
			return g, fmt.Errorf("%d bytes are above the %d that are supported", size, int64(maxClusters)*cluster)
		}
		if n >= minClusters+spare {
			g.clusters = uint32(n)
			return g, nil
		}
	}
	return geometry{}, fmt.Errorf("%d bytes are too few for FAT32, which needs %d with sectors of %d bytes", size, MinSize(sectorSize), sectorSize)
}

// Format writes a file system holding files onto d, which must read as zeros.
func Format(d Device, o Options, files []File) error {
	g, err := plan(o.Size, o.SectorSize)
	if err != nil {
		return fmt.Errorf("format FAT32 file system: %w", err)
	}
	label, err := shortLabel(o.Label)
	if err != nil {
		return fmt.Errorf("format FAT32 file system: %w", err)
	}
	if err := checkRoom(o, files); err != nil {
		return fmt.Errorf("format FAT32 file system: %w", err)
	}
	f := &FS{geometry: g, d: d, fat: make([]uint32, g.clusters+firstData), next: firstData + 1}
	f.fat[0], f.fat[1], f.fat[g.root] = 0x0ffffff8, endOfChain, endOfChain
	if err := f.writeFAT([]uint32{0, 1, g.root}); err != nil {
		return fmt.Errorf("format FAT32 file system: %w", err)
	}
	root := make([]byte, g.clusterSize)
	date, clock := stamp(o.Time)
	copy(root, label[:])
	root[atAttr] = attrLabel
	binary.LittleEndian.PutUint16(root[atTime:], clock)
	binary.LittleEndian.PutUint16(root[atDate:], date)
	if _, err := d.WriteAt(root, g.clusterAt(g.root)); err != nil {
		return fmt.Errorf("format FAT32 file system: write root folder: %w", err)
	}
	// The boot sectors say where the FSInfo sector is, which every change of the table updates.
	boot := f.bootSector(o.VolumeID, label, o.Size)
	info := f.infoSector()
	for _, w := range []struct {
		b  []byte
		at int64
	}{{info, infoSector}, {boot, backupSector}, {info, backupSector + infoSector}, {boot, 0}} {
		if _, err := d.WriteAt(w.b, w.at*g.sectorSize); err != nil {
			return fmt.Errorf("format FAT32 file system: write boot sectors: %w", err)
		}
	}
	sorted := slices.Clone(files)
	slices.SortFunc(sorted, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	for i, file := range sorted {
		if i > 0 && strings.EqualFold(path.Clean(file.Path), path.Clean(sorted[i-1].Path)) {
			return fmt.Errorf("format FAT32 file system: there are two files %s", file.Path)
		}
		if err := f.WriteFile(file.Path, file.Data, o.Time); err != nil {
			return fmt.Errorf("format FAT32 file system: %w", err)
		}
	}
	// A fresh file system's backup of FSInfo counts like the first one.
	if _, err := d.WriteAt(f.infoSector(), (backupSector+infoSector)*g.sectorSize); err != nil {
		return fmt.Errorf("format FAT32 file system: write boot sectors: %w", err)
	}
	return nil
}

func (f *FS) bootSector(volumeID uint32, label [11]byte, size int64) []byte {
	b := make([]byte, f.sectorSize)
	le := binary.LittleEndian
	copy(b, "\xeb\x58\x90KINGPOST")
	le.PutUint16(b[11:], uint16(f.sectorSize))
	b[13] = byte(f.clusterSize / f.sectorSize)
	le.PutUint16(b[14:], reservedSectors)
	b[16] = fatCopies
	b[21] = 0xf8              // a fixed disk
	le.PutUint16(b[24:], 63)  // geometry that nobody uses
	le.PutUint16(b[26:], 255) //
	le.PutUint32(b[32:], uint32(size/f.sectorSize))
	le.PutUint32(b[36:], uint32(f.fatSize/f.sectorSize))
	le.PutUint32(b[44:], f.root)
	le.PutUint16(b[48:], infoSector)
	le.PutUint16(b[50:], backupSector)
	b[64], b[66] = 0x80, 0x29
	le.PutUint32(b[67:], volumeID)
	copy(b[71:], label[:])
	copy(b[82:], "FAT32   ")
	b[90], b[91] = 0xeb, 0xfe // jump to itself, should a BIOS ever start it
	b[510], b[511] = 0x55, 0xaa
	return b
}

func (f *FS) infoSector() []byte {
	b := make([]byte, f.sectorSize)
	le := binary.LittleEndian
	le.PutUint32(b, 0x41615252)
	le.PutUint32(b[484:], 0x61417272)
	le.PutUint32(b[488:], f.free())
	le.PutUint32(b[492:], f.next)
	le.PutUint32(b[508:], 0xaa550000)
	return b
}

func (f *FS) free() (n uint32) {
	for _, v := range f.fat[firstData:] {
		if v&entryMask == 0 {
			n++
		}
	}
	return n
}

func shortLabel(s string) (out [11]byte, err error) {
	if s == "" || len(s) > len(out) {
		return out, fmt.Errorf("the label %q has not 1 to %d characters", s, len(out))
	}
	for _, c := range s {
		if !(c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == ' ' || c == '-' || c == '_') {
			return out, fmt.Errorf("the label %q has %q", s, c)
		}
	}
	copy(out[:], s+strings.Repeat(" ", len(out)))
	return out, nil
}
