package install

import (
	"context"
	"errors"
	"fmt"
	"io"

	"kingpost/installer/diskwrite"
)

// errMedium is wrapped by errors that the medium has caused, and not the disk.
var errMedium = errors.New("the medium that the node booted from")

// part is a place of the new disk that has bytes; everything else of it is zeros.
type part struct {
	off, size int64 // bytes, off a multiple of diskwrite.Piece
	open      func() (io.ReadCloser, error)
}

// image gives the new disk from its first byte to its last one as blocks: parts, in order, and zeros between them.
type image struct {
	size  int64
	parts []part

	at  int64
	now io.ReadCloser // of parts[0]
}

// Next implements diskwrite.Source.
func (m *image) Next(ctx context.Context, buf []byte) (diskwrite.Block, error) {
	if err := ctx.Err(); err != nil {
		return diskwrite.Block{}, context.Cause(ctx)
	}
	for len(m.parts) > 0 && m.at >= m.parts[0].off+m.parts[0].size {
		m.parts = m.parts[1:]
		if err := m.close(); err != nil {
			return diskwrite.Block{}, err
		}
	}
	off := m.at
	switch {
	case off >= m.size:
		return diskwrite.Block{}, io.EOF
	case len(m.parts) == 0:
		m.at = m.size
		return diskwrite.Block{Off: off, Zeros: m.size - off}, nil
	case off < m.parts[0].off:
		m.at = m.parts[0].off
		return diskwrite.Block{Off: off, Zeros: m.at - off}, nil
	}
	p := m.parts[0]
	if m.now == nil {
		r, err := p.open()
		if err != nil {
			return diskwrite.Block{}, fmt.Errorf("%w: %w", errMedium, err)
		}
		m.now = r
	}
	// A piece that the part does not fill ends in zeros.
	n := min(p.off+p.size-off, diskwrite.Piece)
	whole := min(diskwrite.Piece, m.size-off)
	clear(buf[n:whole])
	if _, err := io.ReadFull(m.now, buf[:n]); err != nil {
		return diskwrite.Block{}, fmt.Errorf("%w: read %d bytes at %d of what is installed: %w", errMedium, n, off-p.off, err)
	}
	m.at = off + whole
	return diskwrite.Block{Off: off, Data: buf[:whole]}, nil
}

func (m *image) close() error {
	if m.now == nil {
		return nil
	}
	err := m.now.Close()
	m.now = nil
	return err
}

// shifted is a target without its first bytes.
type shifted struct {
	diskwrite.Target
	by int64
}

func (s shifted) ReadAt(p []byte, off int64) (int, error)  { return s.Target.ReadAt(p, off+s.by) }
func (s shifted) WriteAt(p []byte, off int64) (int, error) { return s.Target.WriteAt(p, off+s.by) }
func (s shifted) Zero(off, n int64) error                  { return s.Target.Zero(off+s.by, n) }
func (s shifted) Size() int64                              { return s.Target.Size() - s.by }

// section is a part of a target.
type section struct {
	diskwrite.Target
	start, size int64
}

func (d section) ReadAt(p []byte, off int64) (int, error) {
	return io.NewSectionReader(d.Target, d.start, d.size).ReadAt(p, off)
}

func (d section) WriteAt(p []byte, off int64) (int, error) {
	if off < 0 || off+int64(len(p)) > d.size {
		return 0, fmt.Errorf("write of %d bytes at %d is outside the partition", len(p), off)
	}
	return d.Target.WriteAt(p, d.start+off)
}
