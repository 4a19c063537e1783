// Package fat32 formats, reads and changes FAT32 file systems (Microsoft FAT32 File System Specification 1.03), as
// much as an EFI system partition needs: folders, files, long names.
//
// Formatting is reproducible: no clock, no chance. It works on readers and writers at byte offsets of the file system
// itself. It is for images and for disks that nobody has mounted: it knows nothing of other writers, and keeps no
// journal, since the format has none. Start with Format and Open.
package fat32

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"
)

// Device is a file system's bytes; an *os.File, or a section of one.
type Device interface {
	io.ReaderAt
	io.WriterAt
}

// ErrNotFound is returned for a path that does not exist.
var ErrNotFound = errors.New("no such file or folder")

// ErrFull is returned where there is no room left.
var ErrFull = errors.New("the file system is full")

// Bounds of the format, and of what is read into memory.
const (
	minClusters = 65525   // fewer are FAT16 to every firmware
	maxClusters = 1 << 22 // 16 MiB of table; 16 GiB of file system with 4 KiB clusters
	maxDirSize  = 65536 * entrySize
	firstData   = 2 // number of the first cluster

	endOfChain = 0x0fffffff
	badCluster = 0x0ffffff7
	entryMask  = 0x0fffffff
)

// geometry is what the boot sector says.
type geometry struct {
	sectorSize  int64
	clusterSize int64
	fatStart    int64 // bytes
	fatSize     int64 // bytes, of one copy
	fats        int64
	dataStart   int64 // bytes, where cluster 2 is
	clusters    uint32
	root        uint32
	infoAt      int64 // bytes, of the FSInfo sector; 0 for none
}

func (g *geometry) clusterAt(c uint32) int64 { return g.dataStart + int64(c-firstData)*g.clusterSize }

// FS is a file system that was opened. It is not safe for concurrent use.
type FS struct {
	geometry
	d   Device
	fat []uint32 // by cluster number
	// next is where the search for free clusters starts.
	next uint32
}

// Open reads a file system's parameters and its allocation table. With a reader only, pass ReadOnly(r).
func Open(d Device) (*FS, error) {
	var b [512]byte
	if n, err := d.ReadAt(b[:], 0); n < len(b) {
		return nil, fmt.Errorf("open FAT32 file system: read boot sector: %w", err)
	}
	g, err := parseBoot(b[:])
	if err != nil {
		return nil, fmt.Errorf("open FAT32 file system: %w", err)
	}
	f := &FS{geometry: g, d: d, next: firstData}
	raw := make([]byte, (int64(g.clusters)+firstData)*4)
	if n, err := d.ReadAt(raw, g.fatStart); n < len(raw) {
		return nil, fmt.Errorf("open FAT32 file system: read allocation table: %w", err)
	}
	f.fat = make([]uint32, g.clusters+firstData)
	for i := range f.fat {
		f.fat[i] = binary.LittleEndian.Uint32(raw[4*i:])
	}
	return f, nil
}

func parseBoot(b []byte) (geometry, error) {
	le := binary.LittleEndian
	var g geometry
	if b[510] != 0x55 || b[511] != 0xaa {
		return g, fmt.Errorf("there is none: the boot sector has no signature")
	}
	g.sectorSize = int64(le.Uint16(b[11:]))
	switch g.sectorSize {
	case 512, 1024, 2048, 4096:
	default:
		return g, fmt.Errorf("its sector size is %d", g.sectorSize)
	}
	perCluster := int64(b[13])
	if perCluster == 0 || perCluster&(perCluster-1) != 0 {
		return g, fmt.Errorf("it has %d sectors in a cluster", perCluster)
	}
	g.clusterSize = perCluster * g.sectorSize
	reserved, fatSectors, total := int64(le.Uint16(b[14:])), int64(le.Uint32(b[36:])), int64(le.Uint32(b[32:]))
	g.fats = int64(b[16])
	if le.Uint16(b[17:]) != 0 || le.Uint16(b[22:]) != 0 || fatSectors == 0 {
		return g, fmt.Errorf("it is FAT12 or FAT16")
	}
	if v := le.Uint16(b[42:]); v != 0 {
		return g, fmt.Errorf("its version is %#x", v)
	}
	if reserved == 0 || g.fats < 1 || g.fats > 2 || total == 0 {
		return g, fmt.Errorf("it has %d reserved sectors, %d tables and %d sectors", reserved, g.fats, total)
	}
	g.fatStart = reserved * g.sectorSize
	g.fatSize = fatSectors * g.sectorSize
	dataSectors := total - reserved - g.fats*fatSectors
	n := dataSectors / perCluster
	if dataSectors < 0 || n < minClusters || n > maxClusters {
		return g, fmt.Errorf("it has %d clusters, %d to %d are supported", n, minClusters, maxClusters)
	}
	if (n+firstData)*4 > g.fatSize {
		return g, fmt.Errorf("its table is too small for %d clusters", n)
	}
	g.clusters = uint32(n)
	g.dataStart = g.fatStart + g.fats*g.fatSize
	g.root = le.Uint32(b[44:])
	if !g.valid(g.root) {
		return g, fmt.Errorf("its root folder would be in cluster %d", g.root)
	}
	if info := int64(le.Uint16(b[48:])); info != 0 && info < reserved {
		g.infoAt = info * g.sectorSize
	}
	return g, nil
}

func (g *geometry) valid(c uint32) bool { return c >= firstData && c < g.clusters+firstData }

// ReadOnly makes a Device of r that refuses writes.
func ReadOnly(r io.ReaderAt) Device { return readOnly{r} }

type readOnly struct{ io.ReaderAt }

func (readOnly) WriteAt([]byte, int64) (int, error) {
	return 0, errors.New("the file system was opened for reading only")
}

// chain returns the clusters that start with first. A chain that leaves the file system or comes back to
// itself is an error; limit bounds its length in bytes.
func (f *FS) chain(first uint32, limit int64) ([]uint32, error) {
	var out []uint32
	for c := first; ; c = f.fat[c] & entryMask {
		if c >= 0x0ffffff8 {
			return out, nil
		}
		if !f.valid(c) {
			return nil, fmt.Errorf("the file system is damaged: a chain of clusters goes to %d", c)
		}
		out = append(out, c)
		if int64(len(out)) > int64(f.clusters) || int64(len(out)-1)*f.clusterSize > limit {
			return nil, fmt.Errorf("the file system is damaged: the chain of clusters from %d does not end", first)
		}
	}
}

// Times in folder entries: local time by the specification, UTC here, from 1980 to 2107, in steps of two seconds.
func stamp(t time.Time) (date, clock uint16) {
	t = t.UTC()
	if t.Year() < 1980 {
		return 1<<5 | 1, 0
	}
	if t.Year() > 2107 {
		return 127<<9 | 12<<5 | 31, 0
	}
	return uint16(t.Year()-1980)<<9 | uint16(t.Month())<<5 | uint16(t.Day()),
		uint16(t.Hour())<<11 | uint16(t.Minute())<<5 | uint16(t.Second()/2)
}
