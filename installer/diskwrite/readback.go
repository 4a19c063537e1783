package diskwrite

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"unsafe"

	"kingpost/internal/blockmap"
)

// bufferAlign is what direct reads and writes want of an address; it fits all sector sizes.
const bufferAlign = 4096

// AlignedBuffer makes a buffer that can be read into past the page cache.
func AlignedBuffer(n int) []byte {
	b := make([]byte, n+bufferAlign)
	skip := int(-uintptr(unsafe.Pointer(&b[0])) & (bufferAlign - 1))
	return b[skip : skip+n : skip+n]
}

// MismatchError says that a medium does not hold what was written to it.
type MismatchError struct {
	Off   int64 // bytes, where the piece with the difference begins
	Zeros bool  // there should be zeros
}

func (e *MismatchError) Error() string {
	if e.Zeros {
		return fmt.Sprintf("read back: at byte %d there is old or wrong data where zeros were written", e.Off)
	}
	return fmt.Sprintf("read back: the bytes from %d on are not those that were written", e.Off)
}

// ReadBack is one comparison of a target with what it must hold.
type ReadBack struct {
	Target Target
	// Map is what the bytes from 0 to Map.Size must be.
	Map *blockmap.Map
	// Zero are places, in whole pieces or to the end of the map, that must be zero whatever Map says: what was withheld.
	Zero     []Span
	Workers  int              // as in Job
	Progress func(done int64) // as in Job
}

// Run reads and compares. The first place that differs is a *MismatchError.
func (r *ReadBack) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	workers := r.Workers
	if workers == 0 {
		workers = 4
	}
	// The runs of each piece, so that any worker can take any piece.
	byPiece := map[int64][]blockmap.Run{}
	for _, run := range r.Map.Runs {
		at := run.Off / Piece * Piece
		if !within(r.Zero, at) {
			byPiece[at] = append(byPiece[at], run)
		}
	}
	var next, done atomic.Int64
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			buf := AlignedBuffer(Piece)
			for ctx.Err() == nil {
				off := next.Add(Piece) - Piece
				if off >= r.Map.Size {
					return
				}
				n := min(Piece, r.Map.Size-off)
				if err := comparePiece(r.Target, off, buf[:n], byPiece[off]); err != nil {
					cancel(err)
					return
				}
				if d := done.Add(n); r.Progress != nil {
					mu.Lock()
					r.Progress(d)
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

func within(spans []Span, off int64) bool {
	for _, s := range spans {
		if off >= s.Off && off < s.End {
			return true
		}
	}
	return false
}

// comparePiece reads the piece at off into buf and compares it with runs; between them it must be zero.
func comparePiece(t Target, off int64, buf []byte, runs []blockmap.Run) error {
	if f, ok := t.(DataFinder); ok && len(runs) == 0 {
		at, err := f.NextData(off)
		if err != nil {
			return fmt.Errorf("read back at byte %d: %w", off, err)
		}
		if at >= off+int64(len(buf)) {
			return nil
		}
	}
	if n, err := t.ReadAt(buf, off); n < len(buf) {
		if err == nil || err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return fmt.Errorf("read back %d bytes at %d: %w", len(buf), off, err)
	}
	at := off
	for _, r := range runs {
		if !blockmap.IsZero(buf[at-off : r.Off-off]) {
			return &MismatchError{Off: at, Zeros: true}
		}
		if sha256.Sum256(buf[r.Off-off:][:r.Len]) != r.Sum {
			return &MismatchError{Off: r.Off}
		}
		at = r.Off + r.Len
	}
	if !blockmap.IsZero(buf[at-off:]) {
		return &MismatchError{Off: at, Zeros: true}
	}
	return nil
}

// IsZero reads a place of the target and says whether all of it is zero; a *MismatchError where it is not.
func IsZero(ctx context.Context, t Target, s Span) error {
	buf := AlignedBuffer(Piece)
	for off := s.Off; off < s.End; {
		if err := ctx.Err(); err != nil {
			return err
		}
		n := min(Piece-off%Piece, s.End-off)
		if err := comparePiece(t, off, buf[:n], nil); err != nil {
			return err
		}
		off += n
	}
	return nil
}
