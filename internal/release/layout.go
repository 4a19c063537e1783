package release

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"io"
	"strings"

	"kingpost/internal/fat32"
	"kingpost/internal/gpt"
)

// Names of the partitions.
const (
	PartESP   = "kingpost-esp"
	PartRootA = "kingpost-root-a"
	PartRootB = "kingpost-root-b"
	PartData  = "kingpost-data"
)

// Default sizes, in bytes.
const (
	DefaultESPSize  = 512 << 20
	DefaultRootSize = 1 << 30
	DefaultDataSize = 64 << 20
)

// Partition types.
var (
	typeESP  = gpt.MustGUID("c12a7328-f81f-11d2-ba4b-00a0c93ec93b") // UEFI specification 2.10, table 5.7
	typeData = gpt.MustGUID("0fc63daf-8483-4772-8e79-3d69d8477de4") // Linux file system
)

// arch is what differs between architectures, in this one place.
type arch struct {
	rootType gpt.GUID // UAPI discoverable partitions specification
	loader   string   // name below EFI/BOOT (UEFI specification 2.10, section 3.5.1.1)
	boot     string   // systemd-boot's own name below EFI/systemd
	serial   string   // console= of the first serial port
}

func lookupArch(name string) (arch, error) {
	switch name {
	case "amd64":
		return arch{gpt.MustGUID("4f68bce3-e8cd-4db1-96e7-fbcaf984b709"), "BOOTX64.EFI", "systemd-bootx64.efi", "ttyS0,115200"}, nil
	case "arm64":
		return arch{gpt.MustGUID("b921b045-1df0-41c3-af44-4c6f280d3fae"), "BOOTAA64.EFI", "systemd-bootaa64.efi", "ttyAMA0,115200"}, nil
	}
	return arch{}, fmt.Errorf("the architecture %q is neither amd64 nor arm64", name)
}

// DiskSpec says what a disk image is to look like.
type DiskSpec struct {
	Arch       string // "amd64" or "arm64"
	SectorSize int    // bytes: 512 (also 0) or 4096
	ESPSize    int64  // bytes; 0 is DefaultESPSize
	RootSize   int64  // bytes of each slot; 0 is DefaultRootSize
	DataSize   int64  // bytes; 0 is DefaultDataSize
	// Seed makes the GUIDs of disk and partitions: the same seed gives the same ones. Empty: the image's default
	// GUIDs, by which a node knows that it has to make its own (IsDefaultGUIDs).
	Seed string
}

// defaultSeed makes the GUIDs that every image has before it is put on a disk.
const defaultSeed = "image"

// maxPartition bounds a partition of an image, in bytes: 8 TiB.
const maxPartition = 8 << 40

// Plan is a disk as it will be.
type Plan struct {
	gpt.Table
	Arch string
}

// NewPlan works out the partitions. It is pure.
func NewPlan(s DiskSpec) (Plan, error) {
	a, err := lookupArch(s.Arch)
	if err != nil {
		return Plan{}, fmt.Errorf("plan disk: %w", err)
	}
	p := Plan{Arch: s.Arch, Table: gpt.Table{SectorSize: cmp.Or(s.SectorSize, 512)}}
	if p.SectorSize != 512 && p.SectorSize != 4096 {
		return Plan{}, fmt.Errorf("plan disk: the sector size %d is neither 512 nor 4096", p.SectorSize)
	}
	seed := cmp.Or(s.Seed, defaultSeed)
	p.DiskGUID = guid(seed, "disk")
	at := int64(gpt.Align)
	for i, q := range []struct {
		name string
		typ  gpt.GUID
		size int64
	}{
		{PartESP, typeESP, cmp.Or(s.ESPSize, DefaultESPSize)},
		{PartRootA, a.rootType, cmp.Or(s.RootSize, DefaultRootSize)},
		{PartRootB, a.rootType, cmp.Or(s.RootSize, DefaultRootSize)},
		{PartData, typeData, cmp.Or(s.DataSize, DefaultDataSize)},
	} {
		if q.size < gpt.Align || q.size > maxPartition || q.size%gpt.Align != 0 {
			return Plan{}, fmt.Errorf("plan disk: the size of %s is %d bytes; it must be whole MiB, from 1 MiB to %d TiB", q.name, q.size, maxPartition>>40)
		}
		p.Partitions = append(p.Partitions, gpt.Partition{Number: i + 1, Name: q.name, Type: q.typ, GUID: guid(seed, q.name), Start: at, Size: q.size})
		at += q.size
	}
	if m := fat32.MinSize(p.SectorSize); p.Partitions[0].Size < m {
		return Plan{}, fmt.Errorf("plan disk: the ESP has %d MiB; FAT32 with sectors of %d bytes needs %d MiB", p.Partitions[0].Size>>20, p.SectorSize, m>>20)
	}
	p.Size = at + gpt.Align // the backup table
	return p, nil
}

// guid makes the GUID of something on the disk with that seed (RFC 9562, version 8: a hash of our own).
func guid(seed, name string) gpt.GUID {
	h := sha256.Sum256([]byte("kingpost disk\x00" + seed + "\x00" + name))
	g := gpt.GUID(h[:16])
	g[7] = g[7]&0x0f | 0x80 // version, in the last byte of the third, little-endian field
	g[8] = g[8]&0x3f | 0x80
	return g
}

// String is the plan as a table for people and golden files.
func (p Plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "disk %s, %s, sectors of %d bytes, %d MiB\n", p.DiskGUID, p.Arch, p.SectorSize, p.Size>>20)
	fmt.Fprintf(&b, "%-2s %-16s %9s %9s  %-36s  %-36s\n", "#", "name", "start MiB", "size MiB", "type", "GUID")
	for _, q := range p.Partitions {
		fmt.Fprintf(&b, "%-2d %-16s %9d %9d  %s  %s\n", q.Number, q.Name, q.Start>>20, q.Size>>20, q.Type, q.GUID)
	}
	return b.String()
}

// Partition finds a partition by name.
func (p Plan) Partition(name string) (gpt.Partition, bool) { return find(&p.Table, name) }

func find(t *gpt.Table, name string) (gpt.Partition, bool) {
	for _, q := range t.Partitions {
		if q.Name == name {
			return q, true
		}
	}
	return gpt.Partition{}, false
}

// RootType is the partition type of a root slot.
func RootType(architecture string) (gpt.GUID, error) {
	a, err := lookupArch(architecture)
	return a.rootType, err
}

// RemovableLoader is the name of the boot loader below EFI/BOOT: "BOOTX64.EFI".
func RemovableLoader(architecture string) (string, error) {
	a, err := lookupArch(architecture)
	return a.loader, err
}

// IsDefaultGUIDs reports whether a disk, or one of our partitions on it, still has the GUID that every image has.
func IsDefaultGUIDs(t *gpt.Table) bool {
	if t.DiskGUID == guid(defaultSeed, "disk") {
		return true
	}
	for _, p := range t.Partitions {
		if p.GUID == guid(defaultSeed, p.Name) {
			return true
		}
	}
	return false
}

// Disk is a disk or an image of one; an *os.File is one.
type Disk interface {
	io.ReaderAt
	io.WriterAt
}

// ReadGPT reads and checks the partition table of a disk of size bytes; see gpt.Read. sectorSize 0 tries both.
func ReadGPT(r io.ReaderAt, size int64, sectorSize int) (*gpt.Table, error) {
	return gpt.Read(r, size, sectorSize)
}

// GrowLast moves the backup table to the end of a disk that is now size bytes and grows the data partition up
// to it; see gpt.Grow. It refuses a disk whose last partition is not the data partition.
func GrowLast(d Disk, size int64, sectorSize int, sync func() error) (*gpt.Table, error) {
	t, err := gpt.Read(d, size, sectorSize)
	if err != nil {
		return nil, fmt.Errorf("grow data partition: %w", err)
	}
	data, ok := find(t, PartData)
	if !ok || !IsKingpost(t) && !IsMedium(t) && !IsDataDisk(t) {
		return nil, fmt.Errorf("grow data partition: this is no disk of a Kingpost node: it has neither all four partitions, nor those of a hybrid image, nor a data partition alone")
	}
	for _, p := range t.Partitions {
		if p.Start > data.Start {
			return nil, fmt.Errorf("grow data partition: the partition %q lies behind it, so there is no room to grow into", p.Name)
		}
	}
	return gpt.Grow(d, size, t.SectorSize, sync)
}

// IsKingpost reports whether t is of a disk of ours: it has all four partitions.
func IsKingpost(t *gpt.Table) bool {
	for _, n := range []string{PartESP, PartRootA, PartRootB, PartData} {
		if _, ok := find(t, n); !ok {
			return false
		}
	}
	return true
}
