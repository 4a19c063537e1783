package diskwrite

import (
	"fmt"

	"kingpost/internal/gpt"
)

// What other programs leave on a disk lies in its first MiB (partition tables, LVM, LUKS, file systems), which is cleared
// first, below the image, which is written over, or at these places.
const (
	// TailSize covers the backup table, MD superblocks of versions 0.90 and 1.0 (the last 128 KiB), firmware RAID
	// (DDF, Intel: the last sectors) and the last two ZFS labels (the last 512 KiB), whatever they are aligned to.
	TailSize = 4 << 20
	// btrfsMirror is where btrfs keeps a copy of its superblock on large disks (btrfs(5), superblock mirrors); its
	// other copy, at 64 MiB, lies below the image.
	btrfsMirror     = 256 << 30
	btrfsSuperblock = 4096
)

// OldPlaces are the places of a target of size bytes outside the image that must hold nothing from before, and the head.
func OldPlaces(size, image int64) []Span {
	out := []Span{{Off: 0, End: min(Piece, size)}}
	if size >= btrfsMirror+btrfsSuperblock && image < btrfsMirror+btrfsSuperblock {
		out = append(out, Span{Off: max(btrfsMirror, image), End: btrfsMirror + btrfsSuperblock})
	}
	if from := max(size-TailSize, image, Piece); from < size {
		out = append(out, Span{Off: from, End: size})
	}
	// Where the disk hardly outsizes the image its old backup table lies below the image's end; the rest of that is zeroed
	// with the image, but nothing may be started in between.
	if from := max(size-gpt.Align, Piece); from < image {
		out = append(out, Span{Off: from, End: min(image, size)})
	}
	return out
}

// ClearOld takes away everything by which a target could be started or taken for something, before the first byte of the
// image is written.
func ClearOld(t Target, image int64) error {
	for _, s := range OldPlaces(t.Size(), image) {
		if err := t.Zero(s.Off, s.End-s.Off); err != nil {
			return fmt.Errorf("clear the old content at byte %d: %w", s.Off, err)
		}
	}
	if err := t.Sync(); err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	return nil
}
