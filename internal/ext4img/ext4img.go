// Package ext4img makes the empty ext4 file system of the data partition, small, with room to be grown online to
// terabytes by EXT4_IOC_RESIZE_FS.
//
// It runs mke2fs(8) with everything pinned, as any user, so that every version of it from Debian 12 on makes what the
// node expects, and the same version the same bytes. It never mounts. Start with Make.
package ext4img

import (
	"context"
	"errors"
	"time"
)

// Label is the file system label of the data partition (at most 16 bytes).
const Label = "kingpost-data"

// Options pins the file system.
type Options struct {
	Size int64 // bytes, a multiple of 4096, at least MinSize
	UUID [16]byte
	// HashSeed seeds the directory hash.
	HashSeed [16]byte
	Time     time.Time
}

// MinSize is the smallest size that holds the file system and its journal, in bytes.
const MinSize = 64 << 20

// Make makes the file at path a sparse image of a new file system. A file that is there is replaced.
func Make(ctx context.Context, path string, o Options) error { return errors.ErrUnsupported }
