package verity

import (
	"context"
	"crypto/sha256"
	"encoding"
	"hash"
	"io"
	"runtime"
	"sync"
)

// chunkBlocks is how many blocks are read and hashed as one piece of work: 1 MiB, and exactly two hash
// blocks' worth of hashes.
const chunkBlocks = 256

// hasher hashes salted blocks without allocating: the salt is hashed once and its state restored for each block.
// A 64-byte salt would make that exactly one compression saved; for any other it still saves a copy.
type hasher struct {
	h     hash.Hash
	state []byte
	sum   [HashSize]byte
}

func newHasher(salt []byte) *hasher {
	h := sha256.New()
	h.Write(salt)
	state, err := h.(encoding.BinaryMarshaler).MarshalBinary()
	if err != nil {
		panic("verity: sha256 has no state: " + err.Error()) // crypto/sha256 documents that it has
	}
	return &hasher{h: h, state: state}
}

func (h *hasher) block(b []byte) *[HashSize]byte {
	if err := h.h.(encoding.BinaryUnmarshaler).UnmarshalBinary(h.state); err != nil {
		panic("verity: sha256 refuses its own state: " + err.Error())
	}
	h.h.Write(b)
	h.h.Sum(h.sum[:0])
	return &h.sum
}

// chunk is a piece of work: some blocks that lie one after another.
type chunk struct {
	first int64 // number of the first block
	data  []byte
	buf   []byte // what data is a part of
}

// eachChunk reads blocks 0 to blocks-1, which start at offset, in large sequential reads, and calls do for each chunk from
// as many goroutines as there are processors, each with a hasher of its own. Reading goes on while others hash. The first
// error ends it; with errors in several chunks the one of the lowest block that was seen is returned.
func eachChunk(ctx context.Context, r io.ReaderAt, offset, blocks int64, salt []byte, do func(h *hasher, c chunk) error, progress func(blocks int64)) error {
	workers := min(runtime.GOMAXPROCS(0), 8)
	free := make(chan []byte, workers+2)
	for range cap(free) {
		free <- make([]byte, min(chunkBlocks, blocks)*BlockSize)
	}
	var (
		mu    sync.Mutex
		first = blocks // block of the lowest failed chunk
		err   error
	)
	failed := func(block int64, e error) {
		mu.Lock()
		defer mu.Unlock()
		if block < first || err == nil {
			first, err = block, e
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	work := make(chan chunk)
	var wg sync.WaitGroup
	for range workers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			h := newHasher(salt)
			for c := range work {
				if e := do(h, c); e != nil {
					failed(c.first, e)
					cancel()
				}
				free <- c.buf
			}
		}()
	}
	var done int64
	for done < blocks && ctx.Err() == nil {
		buf := <-free
		n := min(chunkBlocks, blocks-done)
		data := buf[:n*BlockSize]
		if got, e := r.ReadAt(data, offset+done*BlockSize); got < len(data) {
			if e == nil || e == io.EOF {
				e = io.ErrUnexpectedEOF
			}
			failed(done, readError(offset+done*BlockSize, e))
			break
		}
		work <- chunk{first: done, data: data, buf: buf}
		done += n
		if progress != nil {
			progress(n)
		}
	}
	close(work)
	wg.Wait()
	if err == nil && done < blocks {
		err = ctx.Err()
	}
	return err
}
