package release

import (
	"io"

	"kingpost/internal/gpt"
	"kingpost/internal/verity"
)

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
func FindRoots(r io.ReaderAt, t *gpt.Table, rootHash []byte, hashOffset int64) []Root {
	var out []Root
	for _, s := range Slots(t) {
		slot := io.NewSectionReader(r, s.Start, s.Size)
		out = append(out, Root{s, verity.CheckRoot(slot, rootHash, hashOffset)})
	}
	return out
}
