package blockmap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// MakeFile is Make for a file, whose holes it does not read.
func MakeFile(ctx context.Context, f *os.File) (*Map, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("make block map: %w", err)
	}
	m := &Map{Size: st.Size()}
	buf := make([]byte, Piece)
	for off := int64(0); off < m.Size; off += Piece {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		data, err := unix.Seek(int(f.Fd()), off, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break // a hole to the end
		}
		if err == nil {
			off = data / Piece * Piece
		}
		b := buf[:min(Piece, m.Size-off)]
		if n, err := f.ReadAt(b, off); n < len(b) {
			if err == nil || err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return nil, fmt.Errorf("make block map: read %s at byte %d of %d: %w", f.Name(), off, m.Size, err)
		}
		m.Runs = append(m.Runs, Runs(b, off)...)
	}
	return m, nil
}
