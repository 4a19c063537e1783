package release

import (
	"errors"
	"io"

	"kingpost/internal/gpt"
)

// Names of the partitions.
const (
	PartESP   = "kingpost-esp"
	PartRootA = "kingpost-root-a"
	PartRootB = "kingpost-root-b"
	PartData  = "kingpost-data"
)

// Paths on the ESP, relative to its root.
const (
	ESPNodeConfig = "node.yaml"
	ESPLoaderConf = "loader/loader.conf"
	ESPEntries    = "loader/entries"
	ESPUKIs       = "EFI/kingpost"
)

// Default sizes, in bytes.
const (
	DefaultESPSize  = 512 << 20
	DefaultRootSize = 1 << 30
	DefaultDataSize = 64 << 20
)

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

// Plan is a disk as it will be.
type Plan struct {
	gpt.Table
	Arch string
}

// NewPlan works out the partitions. It is pure.
func NewPlan(s DiskSpec) (Plan, error) { return Plan{}, errors.ErrUnsupported }

// String is the plan as a table for people and golden files.
func (p Plan) String() string { return "" }

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

// RootType is the partition type of a root slot (UAPI discoverable partitions specification).
func RootType(arch string) (gpt.GUID, error) { return gpt.GUID{}, errors.ErrUnsupported }

// RemovableLoader is the name of the boot loader below EFI/BOOT: "BOOTX64.EFI".
func RemovableLoader(arch string) (string, error) { return "", errors.ErrUnsupported }

// IsDefaultGUIDs reports whether a disk still has the GUIDs of the image.
func IsDefaultGUIDs(t *gpt.Table) bool { return false }

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
	return nil, errors.ErrUnsupported
}

// IsKingpost reports whether t is a disk of ours: it has all four partitions.
func IsKingpost(t *gpt.Table) bool {
	for _, n := range []string{PartESP, PartRootA, PartRootB, PartData} {
		if _, ok := find(t, n); !ok {
			return false
		}
	}
	return true
}

// Slot is one of the two places for a release.
type Slot struct {
	Letter string // "a" or "b"
	gpt.Partition
}

// Slots returns the root slots of a disk, A first.
func Slots(t *gpt.Table) []Slot {
	var out []Slot
	for _, s := range []struct{ letter, name string }{{"a", PartRootA}, {"b", PartRootB}} {
		if p, ok := find(t, s.name); ok {
			out = append(out, Slot{s.letter, p})
		}
	}
	return out
}

// Root is a slot and whether it has the release that is looked for.
type Root struct {
	Slot
	// Err is nil when the slot's superblock and topmost hash block belong to the root hash, else why not.
	// The data behind it is not read: verity.VerifyAll does.
	Err error
}

// FindRoots looks into each slot of a disk for the root with rootHash, whose tree starts hashOffset bytes into it.
func FindRoots(r io.ReaderAt, t *gpt.Table, rootHash []byte, hashOffset int64) []Root { return nil }
