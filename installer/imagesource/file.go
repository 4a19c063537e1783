package imagesource

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"kingpost/installer/diskwrite"
	"kingpost/internal/blockmap"
)

// fileSource is a raw image in a file or on a disk. Holes are not read.
type fileSource struct {
	f    *os.File
	size int64 // -1: to the end
	at   int64
	data int64 // there is a hole up to here
}

// Next implements diskwrite.Source.
func (s *fileSource) Next(ctx context.Context, buf []byte) (diskwrite.Block, error) {
	if err := ctx.Err(); err != nil {
		return diskwrite.Block{}, context.Cause(ctx)
	}
	if s.size >= 0 && s.at >= s.size {
		return diskwrite.Block{}, io.EOF
	}
	if hole := s.hole(); hole > 0 {
		b := diskwrite.Block{Off: s.at, Zeros: hole}
		s.at += hole
		return b, nil
	}
	want := int64(len(buf))
	if s.size >= 0 {
		want = min(want, s.size-s.at)
	}
	n, err := s.f.ReadAt(buf[:want], s.at)
	switch {
	case n == 0 && errors.Is(err, io.EOF) && s.size < 0:
		return diskwrite.Block{}, io.EOF
	case errors.Is(err, io.EOF) && s.size >= 0 && int64(n) < want:
		return diskwrite.Block{}, fmt.Errorf("%w %s has become shorter while it was read", diskwrite.ErrSource, s.f.Name())
	case err != nil && !errors.Is(err, io.EOF):
		return diskwrite.Block{}, fmt.Errorf("%w: read %s at byte %d: %w", diskwrite.ErrSource, s.f.Name(), s.at, err)
	}
	b := diskwrite.Block{Off: s.at, Data: buf[:n]}
	if blockmap.IsZero(b.Data) {
		b = diskwrite.Block{Off: s.at, Zeros: int64(n)}
	}
	s.at += int64(n)
	return b, nil
}

// maxZeros bounds one block of zeros, so that who writes it can be interrupted, in bytes.
const maxZeros = 64 * diskwrite.Piece

// hole is how long the hole at the current place is, in whole pieces or to the end; 0 where there is none or nobody can tell.
func (s *fileSource) hole() int64 {
	if s.size < 0 {
		return 0
	}
	if s.data <= s.at {
		data, err := unix.Seek(int(s.f.Fd()), s.at, unix.SEEK_DATA)
		switch {
		case errors.Is(err, unix.ENXIO):
			data = s.size
		case err != nil:
			return 0
		}
		s.data = min(data, s.size)
	}
	n := min(s.data-s.at, maxZeros)
	if s.at+n < s.size {
		n = n / diskwrite.Piece * diskwrite.Piece
	}
	return n
}
