// Package diskwrite writes an image to a target and reads it back: the one engine below everything that puts bytes onto
// a disk.
//
// It takes blocks in order from a Source, writes what is not zero, zeroes what must be zero, and keeps back what the
// caller withholds; ReadBack then compares the medium, not a cache, with what was read from the source. It decides nothing
// about what makes a disk bootable and in which order that is committed: its callers do, with Stage. It knows no paths
// and no devices. Start with Job.
package diskwrite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"kingpost/internal/blockmap"
)

// Piece is how much is read, written and compared at once, in bytes.
const Piece = blockmap.Piece

// Target is what is written to. Its methods may be called by several goroutines, for places that do not overlap.
type Target interface {
	// ReadAt reads from the medium, past every cache of this machine.
	io.ReaderAt
	// WriteAt takes any place and length; whole sectors are quicker.
	io.WriterAt
	// Zero makes n bytes at off read as zeros, whatever was there.
	Zero(off, n int64) error
	// Sync returns when everything that was written before is on the medium.
	Sync() error
	Size() int64     // bytes
	SectorSize() int // bytes
}

// DataFinder is a Target that can tell where it has data, so that what it is known to have none of need not be read.
type DataFinder interface {
	// NextData is the first byte from off on that may not be zero; the size of the target where there is none.
	NextData(off int64) (int64, error)
}

// Block is a piece of an image: data, or zeros.
type Block struct {
	Off int64 // bytes, a multiple of Piece
	// Data is at most a Piece long, shorter only at the image's end. Nil for zeros.
	Data []byte
	// Zeros is how many bytes are zero where Data is nil: any number of whole pieces, or up to the image's end.
	Zeros int64
}

func (b Block) end() int64 { return b.Off + int64(len(b.Data)) + b.Zeros }

// Source gives the blocks of an image, in order and without gaps.
type Source interface {
	// Next returns the next block, its data in buf, which has the length Piece; io.EOF behind the last one.
	Next(ctx context.Context, buf []byte) (Block, error)
}

// Span is a place: bytes from Off to End.
type Span struct{ Off, End int64 }

// Job is one image that goes to one target.
type Job struct {
	Source Source
	Target Target
	Size   int64 // of the image, in bytes
	// Withhold are places, in whole pieces or up to the image's end, that are zeroed on the target. What the image has
	// there is in Held.
	Withhold []Span
	// Workers is how many pieces are under way at once; 0 is 4, 1 makes the order of writes the same each time.
	Workers int
	// Progress, if not nil, is called with bytes done of the image, by one goroutine at a time.
	Progress func(done int64)
}

// Written is what a job did.
type Written struct {
	// Map is the map of the image as it came from the source, withheld places included.
	Map *blockmap.Map
	// Held is what was withheld, by its offset.
	Held map[int64][]byte
	// Bytes is how many bytes of data were written.
	Bytes int64
}

// ErrSource is wrapped by errors that the image's source has caused, and not the target.
var ErrSource = errors.New("the image")

type task struct {
	block Block
	buf   []byte // to give back
	held  bool
}

// Write writes the image. When it returns, the data is on its way to the medium: Sync makes it safe.
func (j *Job) Write(ctx context.Context) (*Written, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w := &writer{job: j, out: &Written{Map: &blockmap.Map{Size: j.Size}, Held: map[int64][]byte{}}, runs: map[int64][]blockmap.Run{}}
	workers := j.Workers
	if workers == 0 {
		workers = 4
	}
	tasks, free := make(chan task), make(chan []byte, workers+1)
	for range workers + 1 {
		free <- AlignedBuffer(Piece)
	}
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for t := range tasks {
				if err := w.do(t); err != nil {
					cancel(err)
				}
				if t.buf != nil {
					free <- t.buf
				}
			}
		})
	}
	err := j.produce(ctx, tasks, free)
	close(tasks)
	wg.Wait()
	if cause := context.Cause(ctx); cause != nil {
		err = cause // what a worker met, or the caller's own end
	}
	if err != nil {
		return nil, err
	}
	for off := int64(0); off < j.Size; off += Piece {
		w.out.Map.Runs = append(w.out.Map.Runs, w.runs[off]...)
	}
	return w.out, nil
}

// produce reads the source and hands its blocks out.
func (j *Job) produce(ctx context.Context, tasks chan<- task, free chan []byte) error {
	at := int64(0)
	for {
		var buf []byte
		select {
		case buf = <-free:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		b, err := j.Source.Next(ctx, buf)
		if err == io.EOF {
			if at != j.Size {
				return fmt.Errorf("%w is cut short: it ends after %d bytes of %d", ErrSource, at, j.Size)
			}
			return nil
		}
		if err != nil {
			return err
		}
		if b.Off != at || b.end() <= at || at%Piece != 0 || len(b.Data) > Piece {
			return fmt.Errorf("%w's source gave %d bytes at %d where %d was expected", ErrSource, b.end()-b.Off, b.Off, at)
		}
		if b.end() > j.Size {
			return fmt.Errorf("%w has more than the %d bytes that it says it has", ErrSource, j.Size)
		}
		at = b.end()
		for _, t := range j.split(b) {
			if t.block.Data != nil {
				t.buf = buf
			}
			select {
			case tasks <- t:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		if b.Data == nil {
			free <- buf
		}
		if j.Progress != nil {
			j.Progress(at)
		}
	}
}

// split cuts zeros at withheld places, so that a task is withheld or not.
func (j *Job) split(b Block) []task {
	if b.Data != nil {
		return []task{{block: b, held: j.withheld(b.Off)}}
	}
	var out []task
	for off := b.Off; off < b.end(); {
		held := j.withheld(off)
		end := min(off+Piece, b.end())
		for end < b.end() && j.withheld(end) == held {
			end = min(end+Piece, b.end())
		}
		out = append(out, task{block: Block{Off: off, Zeros: end - off}, held: held})
		off = end
	}
	return out
}

func (j *Job) withheld(off int64) bool {
	for _, s := range j.Withhold {
		if off >= s.Off && off < s.End {
			return true
		}
	}
	return false
}

// writer is what the workers share.
type writer struct {
	job *Job

	mu   sync.Mutex
	out  *Written
	runs map[int64][]blockmap.Run
}

func (w *writer) do(t task) error {
	b := t.block
	if b.Data == nil {
		if t.held {
			w.mu.Lock()
			for off := b.Off; off < b.end(); off += Piece {
				w.out.Held[off] = make([]byte, min(Piece, b.end()-off))
			}
			w.mu.Unlock()
		}
		return w.zero(b.Off, b.Zeros)
	}
	runs := blockmap.Runs(b.Data, b.Off)
	w.mu.Lock()
	w.runs[b.Off] = runs
	if t.held {
		w.out.Held[b.Off] = append([]byte(nil), b.Data...)
	}
	w.mu.Unlock()
	if t.held {
		return w.zero(b.Off, int64(len(b.Data)))
	}
	at := b.Off
	for _, r := range runs {
		if err := w.zero(at, r.Off-at); err != nil {
			return err
		}
		if _, err := w.job.Target.WriteAt(b.Data[r.Off-b.Off:][:r.Len], r.Off); err != nil {
			return fmt.Errorf("write %d bytes at %d: %w", r.Len, r.Off, err)
		}
		w.mu.Lock()
		w.out.Bytes += r.Len
		w.mu.Unlock()
		at = r.Off + r.Len
	}
	return w.zero(at, b.end()-at)
}

func (w *writer) zero(off, n int64) error {
	if n == 0 {
		return nil
	}
	if err := w.job.Target.Zero(off, n); err != nil {
		return fmt.Errorf("zero %d bytes at %d: %w", n, off, err)
	}
	return nil
}
