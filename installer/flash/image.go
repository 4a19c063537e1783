package flash

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"

	"kingpost/installer/diskwrite"
	"kingpost/internal/fat32"
	"kingpost/internal/gpt"
	"kingpost/internal/release"
)

// Kind is what an image is.
type Kind string

// Kinds of images.
const (
	KindDisk Kind = "disk" // a raw disk image of a Kingpost node
	KindISO  Kind = "iso"  // an ISO 9660 image, which goes onto a disk byte for byte
)

// Image is what the head of an image says.
type Image struct {
	Kind Kind
	Size int64 // bytes
	// Table is the partition table of a disk image; nil for an ISO.
	Table *gpt.Table
}

// ISO 9660 (ECMA-119, section 8.4): the primary volume descriptor is in the 17th sector of 2048 bytes.
const (
	isoSector    = 2048
	isoPrimary   = 16 * isoSector
	isoSpaceSize = 80 // in the descriptor: number of blocks, little-endian first
)

// Identify reads an image's head, its first MiB. size is the image's, -1 where it is not known.
func Identify(head []byte, size int64) (*Image, error) {
	if len(head) >= isoPrimary+isoSector && string(head[isoPrimary:isoPrimary+6]) == "\x01CD001" {
		return identifyISO(head[isoPrimary:], size)
	}
	claimed := size
	if size < 0 {
		claimed = 1 << 60 // any size will do: the header says where the disk ends
	}
	t, err := gpt.Read(headReader(head), max(claimed, gpt.Align), 0)
	if err != nil {
		// A whole table that names more than there is: the image was cut short.
		if t, cut := gpt.Read(headReader(head), 1<<60, 0); cut == nil && size >= 0 && t.Size > size {
			return nil, &RefusedError{fmt.Sprintf("the image is cut short: its partition table is for %d bytes, it has %d; fetch it again", t.Size, size)}
		}
		return nil, &RefusedError{fmt.Sprintf("this is no image that can be flashed: it is no ISO and has no partition table (%v)", err)}
	}
	if !release.IsKingpost(t) {
		return nil, &RefusedError{"this is no image of a Kingpost node: it has not the four partitions of one"}
	}
	if size >= 0 && size != t.Size {
		return nil, &RefusedError{fmt.Sprintf("the image's partition table is for %d bytes, but it has %d: it was cut short, or something was added to it", t.Size, size)}
	}
	if t.Size%gpt.Align != 0 {
		return nil, &RefusedError{fmt.Sprintf("the image has %d bytes, which is no whole number of MiB", t.Size)}
	}
	for _, p := range t.Partitions {
		if p.Start < diskwrite.Piece || p.Start+p.Size > t.Size-gpt.Align {
			return nil, &RefusedError{fmt.Sprintf("the image's partition %d lies in the first or the last MiB, which belong to the partition table", p.Number)}
		}
	}
	return &Image{KindDisk, t.Size, t}, nil
}

func identifyISO(d []byte, size int64) (*Image, error) {
	said := int64(binary.LittleEndian.Uint32(d[isoSpaceSize:])) * isoSector
	if size < 0 {
		size = said
	}
	if said == 0 || said > size {
		return nil, &RefusedError{fmt.Sprintf("the ISO is cut short: it says that it has %d bytes, it has %d; fetch it again", said, size)}
	}
	return &Image{Kind: KindISO, Size: size}, nil
}

// headReader reads an image of which only the head is there.
type headReader []byte

func (h headReader) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 || off >= int64(len(h)) {
		return 0, io.EOF
	}
	n := copy(p, h[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// Fits says why an image cannot go onto a target of size bytes, with sectors of sectorSize; a *RefusedError. config says
// whether it is to take settings.
func Fits(img *Image, size int64, sectorSize int, config bool) error {
	if size < img.Size {
		return &RefusedError{fmt.Sprintf("the image needs %d bytes (%.1f GiB), the target has %d (%.1f GiB); use a larger one, or build with smaller slots", img.Size, gib(img.Size), size, gib(size))}
	}
	switch {
	case img.Kind == KindISO && config:
		return &RefusedError{"an ISO is written byte for byte and can take no node.yaml or claim; flash the disk image for that"}
	case img.Kind == KindISO, img.Table.SectorSize == sectorSize:
		return nil
	}
	// Other sectors: partition table and ESP are made anew for them, everything else goes by bytes.
	s := int64(sectorSize)
	if s != 512 && s != 4096 {
		return &RefusedError{fmt.Sprintf("the target has sectors of %d bytes; 512 and 4096 are supported", s)}
	}
	for _, p := range img.Table.Partitions {
		if p.Start%s != 0 || p.Size%s != 0 {
			return &RefusedError{fmt.Sprintf("the image is made for sectors of %d bytes, the target has %d, and partition %d is no whole number of those", img.Table.SectorSize, s, p.Number)}
		}
		if p.Name == release.PartESP && p.Size < fat32.MinSize(int(s)) {
			return &RefusedError{fmt.Sprintf("the target has sectors of %d bytes, for which the ESP needs %d MiB; the image's has %d: build with a larger slots.esp", s, fat32.MinSize(int(s))>>20, p.Size>>20)}
		}
	}
	return nil
}

func gib(n int64) float64 { return float64(n) / (1 << 30) }

// Peek reads as much of a source as it takes to say what the image is, and returns a source that gives all of it.
func Peek(ctx context.Context, from diskwrite.Source, size int64) (*Image, diskwrite.Source, error) {
	s := &source{from: from}
	img, err := s.identify(ctx, size)
	return img, s, err
}

// source is the image's source with its head read ahead, hashed where somebody wants the digest.
type source struct {
	from  diskwrite.Source
	ahead *diskwrite.Block
	sum   hash.Hash // nil: not made
}

func newSource(in Input) *source {
	s := &source{from: in.Source}
	// Hashing includes the zeros, which takes longer than everything else where there are many. A map that was known before
	// says the same without.
	if in.Digest != "" || in.Map == nil {
		s.sum = sha256.New()
	}
	return s
}

// identify reads the first block and works out what the image is.
func (s *source) identify(ctx context.Context, size int64) (*Image, error) {
	buf := diskwrite.AlignedBuffer(diskwrite.Piece)
	b, err := s.from.Next(ctx, buf)
	if errors.Is(err, io.EOF) {
		return nil, &RefusedError{"the image is empty"}
	}
	if err != nil {
		return nil, err
	}
	s.ahead = &b
	head := b.Data
	if head == nil {
		head = make([]byte, min(b.Zeros, diskwrite.Piece))
	}
	return Identify(head, size)
}

// Next implements diskwrite.Source.
func (s *source) Next(ctx context.Context, buf []byte) (diskwrite.Block, error) {
	var b diskwrite.Block
	if s.ahead != nil {
		b, s.ahead = *s.ahead, nil
		if b.Data != nil {
			b.Data = buf[:copy(buf, b.Data)]
		}
	} else {
		var err error
		if b, err = s.from.Next(ctx, buf); err != nil {
			return b, err
		}
	}
	if s.sum != nil {
		s.sum.Write(b.Data)
		zeros := make([]byte, min(b.Zeros, diskwrite.Piece))
		for n := b.Zeros; n > 0; n -= int64(len(zeros)) {
			if err := ctx.Err(); err != nil {
				return b, context.Cause(ctx)
			}
			s.sum.Write(zeros[:min(n, int64(len(zeros)))])
		}
	}
	return b, nil
}
