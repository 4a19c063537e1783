// Package vmdisk writes raw disk images as the disk files of virtual machines: qcow2, vmdk and vhdx.
//
// All three are thin: what is zero in the image is not in the file, and the disk may be larger than the image. Each is
// written in one go from start to end, and the same image gives the same bytes: what others take from a clock or from
// chance is the caller's ID. It reads no such file and knows nothing of what is in an image. Start with Image.
package vmdisk

import (
	"bufio"
	"context"
	"fmt"
	"io"

	"kingpost/internal/blockmap"
)

// Image is a raw disk image, and what its file is to be.
type Image struct {
	io.ReaderAt
	// Map says where the image has bytes that are not zero, and how long it is.
	Map *blockmap.Map
	// Size is the disk's, in bytes: a multiple of 1 MiB, at least the image's.
	Size int64
	// ID is what the file is told by, where its format has such a thing.
	ID [16]byte
	// Progress, if not nil, is called with bytes done of total.
	Progress func(done, total int64)
}

const mebi = 1 << 20

func (im *Image) check(most int64) error {
	switch {
	case im.Size <= 0 || im.Size%mebi != 0:
		return fmt.Errorf("the disk is to have %d bytes, which are no whole MiB", im.Size)
	case im.Size < im.Map.Size:
		return fmt.Errorf("the disk is to have %d bytes, the image has %d", im.Size, im.Map.Size)
	case im.Size > most:
		return fmt.Errorf("the disk is to have %d bytes, the format can say %d", im.Size, most)
	}
	return nil
}

// blocks are the numbers of the blocks of unit bytes that are not all zero, in order.
func (im *Image) blocks(unit int64) []int64 {
	var out []int64
	for _, r := range im.Map.Runs {
		for b := r.Off / unit; b <= (r.Off+r.Len-1)/unit; b++ {
			if len(out) == 0 || out[len(out)-1] < b {
				out = append(out, b)
			}
		}
	}
	return out
}

// file is a disk file that is written from its start to its end.
type file struct {
	ctx context.Context
	w   *bufio.Writer
	at  int64
}

func newFile(ctx context.Context, w io.Writer) *file {
	return &file{ctx: ctx, w: bufio.NewWriterSize(w, mebi)}
}

func (f *file) write(b []byte) error {
	n, err := f.w.Write(b)
	f.at += int64(n)
	return err
}

// pad writes zeros up to a place.
func (f *file) pad(to int64) error {
	if to < f.at {
		return fmt.Errorf("byte %d comes after byte %d", to, f.at) // a fault of ours
	}
	zeros := make([]byte, min(to-f.at, mebi))
	for f.at < to {
		if err := f.write(zeros[:min(to-f.at, int64(len(zeros)))]); err != nil {
			return err
		}
	}
	return nil
}

// data writes blocks of the image, each whole.
func (f *file) data(im *Image, blocks []int64, unit int64) error {
	b := make([]byte, unit)
	for i, n := range blocks {
		if f.ctx.Err() != nil {
			return context.Cause(f.ctx)
		}
		part := b[:min(unit, im.Map.Size-n*unit)]
		clear(b[len(part):])
		if n, err := im.ReadAt(part, n*unit); n < len(part) {
			if err == nil || err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return fmt.Errorf("read the image: %w", err)
		}
		if err := f.write(b); err != nil {
			return err
		}
		if im.Progress != nil {
			im.Progress(int64(i+1)*unit, int64(len(blocks))*unit)
		}
	}
	return nil
}

func ceil(n, unit int64) int64 { return (n + unit - 1) / unit }
