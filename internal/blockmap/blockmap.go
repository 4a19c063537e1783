// Package blockmap says where a disk image has bytes that are not zero, and what they hash to.
//
// A map follows from the image's bytes alone: runs of blocks that are not all zero, cut at each MiB, with the SHA-256 of
// each. So two maps are equal exactly when the images are, an image is checked against one without hashing its zeros,
// and pieces of it can be checked in any order. Its text is a bmap 2.0 file, which bmaptool reads too.
//
// It writes to nothing and needs no file system to tell it of holes. Start with Split, then Map.
package blockmap

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
)

const (
	// Unit is the size of the blocks of a map, in bytes.
	Unit = 4096
	// Piece is what no run crosses, in bytes.
	Piece = 1 << 20
)

// Run is one run of blocks that are not all zero.
type Run struct {
	Off, Len int64 // bytes; Off is a multiple of Unit, and so is Len but for the end of the image
	Sum      [sha256.Size]byte
}

// Map is the map of an image of Size bytes. Runs are in order.
type Map struct {
	Size int64
	Runs []Run
}

// zeros is what blocks are compared with; nobody writes to it.
var zeros [Unit]byte

// IsZero reports whether b is all zero.
func IsZero(b []byte) bool {
	for len(b) > Unit {
		if !bytes.Equal(b[:Unit], zeros[:]) {
			return false
		}
		b = b[Unit:]
	}
	return bytes.Equal(b, zeros[:len(b)])
}

// Split calls data for every run of units of b that are not all zero, and zero for those between them, in order, by
// their places in b. Either may be nil. An error ends it.
func Split(b []byte, data, zero func(from, to int) error) error {
	for i := 0; i < len(b); {
		kind := IsZero(b[i:min(i+Unit, len(b))])
		end := min(i+Unit, len(b))
		for end < len(b) && IsZero(b[end:min(end+Unit, len(b))]) == kind {
			end = min(end+Unit, len(b))
		}
		f := data
		if kind {
			f = zero
		}
		if f != nil {
			if err := f(i, end); err != nil {
				return err
			}
		}
		i = end
	}
	return nil
}

// Runs are the runs of b, which lies at off, a multiple of Piece, and is at most a piece long.
func Runs(b []byte, off int64) []Run {
	var out []Run
	_ = Split(b, func(from, to int) error {
		out = append(out, Run{off + int64(from), int64(to - from), sha256.Sum256(b[from:to])})
		return nil
	}, nil)
	return out
}

// Make reads an image and makes its map.
func Make(ctx context.Context, r io.ReaderAt, size int64) (*Map, error) {
	m := &Map{Size: size}
	buf := make([]byte, Piece)
	for off := int64(0); off < size; off += Piece {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		b := buf[:min(Piece, size-off)]
		if n, err := r.ReadAt(b, off); n < len(b) {
			if err == nil || err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return nil, fmt.Errorf("make block map: read at byte %d of %d: %w", off, size, err)
		}
		m.Runs = append(m.Runs, Runs(b, off)...)
	}
	return m, nil
}

// Mapped is how many bytes lie in runs.
func (m *Map) Mapped() int64 {
	n := int64(0)
	for _, r := range m.Runs {
		n += r.Len
	}
	return n
}

// Digest is the SHA-256 of the map's text, in hex: a name for the image's bytes, all of them.
func (m *Map) Digest() string {
	sum := sha256.Sum256(m.Encode())
	return hex.EncodeToString(sum[:])
}

// Differs says where the image of m first differs from that of want; nil where it is the same.
func (m *Map) Differs(want *Map) error {
	if m.Size != want.Size {
		return fmt.Errorf("it has %d bytes, it should have %d", m.Size, want.Size)
	}
	for i := 0; i < len(m.Runs) || i < len(want.Runs); i++ {
		switch {
		case i >= len(m.Runs), i < len(want.Runs) && m.Runs[i].Off > want.Runs[i].Off:
			return fmt.Errorf("at byte %d there are zeros that do not belong there", want.Runs[i].Off)
		case i >= len(want.Runs), m.Runs[i].Off < want.Runs[i].Off:
			return fmt.Errorf("at byte %d there should be zeros", m.Runs[i].Off)
		case m.Runs[i] != want.Runs[i]:
			return fmt.Errorf("the bytes from %d on are other ones than they should be", m.Runs[i].Off)
		}
	}
	return nil
}
