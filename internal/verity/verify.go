package verity

import (
	"bytes"
	"context"
	"fmt"
	"io"
)

// CheckRoot reads the superblock and the topmost hash block only, and says whether they belong to rootHash: a quick
// way to recognise a root among many. It proves nothing about the data. Another tree gives ErrRootHash.
func CheckRoot(r io.ReaderAt, rootHash []byte, hashOffset int64) error {
	_, _, _, err := open(r, rootHash, hashOffset)
	return err
}

// Size is the length of a root with its tree, in bytes, by the superblock at hashOffset.
func Size(r io.ReaderAt, hashOffset int64) (int64, error) {
	sb, err := ReadSuperblock(r, hashOffset)
	if err != nil {
		return 0, err
	}
	if sb.DataBlocks*BlockSize != hashOffset {
		return 0, fmt.Errorf("the verity superblock is for %d bytes of data, but it is at byte %d", sb.DataBlocks*BlockSize, hashOffset)
	}
	_, end := layout(sb.DataBlocks, hashOffset)
	return end, nil
}

// open reads the superblock and the topmost block, and checks both against rootHash and hashOffset.
func open(r io.ReaderAt, rootHash []byte, hashOffset int64) (sb *Superblock, levels []level, top []byte, err error) {
	if len(rootHash) != HashSize {
		return nil, nil, nil, fmt.Errorf("a root hash has %d bytes, this one %d", HashSize, len(rootHash))
	}
	if sb, err = ReadSuperblock(r, hashOffset); err != nil {
		return nil, nil, nil, err
	}
	// The superblock is outside the hashes, so what it says must fit what the pinned root hash was made with.
	if sb.DataBlocks*BlockSize != hashOffset {
		return nil, nil, nil, fmt.Errorf("the verity superblock is for %d bytes of data, but it is at byte %d", sb.DataBlocks*BlockSize, hashOffset)
	}
	levels, _ = layout(sb.DataBlocks, hashOffset)
	at := int64(0)
	if n := len(levels); n > 0 {
		at = levels[n-1].offset
	}
	top = make([]byte, BlockSize)
	if n, err := r.ReadAt(top, at); n < len(top) {
		return nil, nil, nil, readError(at, err)
	}
	if h := newHasher(sb.Salt).block(top); !bytes.Equal(h[:], rootHash) {
		return nil, nil, nil, fmt.Errorf("the topmost hash block (at byte %d) hashes to %x, not to the root hash %x: %w", at, h[:], rootHash, ErrRootHash)
	}
	return sb, levels, top, nil
}

// VerifyAll reads every data block and checks it against the tree, and the tree against rootHash. The first bad
// block is a *CorruptError; a tree of something else is ErrRootHash. progress, if not nil, is called now and then, by
// one goroutine, with bytes done of total.
//
// The tree (1/128 of the data) is held in memory while the data is read, in order, in large pieces, and hashed by
// all processors at once.
func VerifyAll(ctx context.Context, r io.ReaderAt, rootHash []byte, hashOffset int64, progress func(done, total int64)) error {
	sb, levels, parent, err := open(r, rootHash, hashOffset)
	if err != nil {
		return fmt.Errorf("verify root: %w", err)
	}
	total := sb.DataBlocks
	for _, l := range levels {
		total += l.blocks
	}
	var done int64
	count := func(n int64) {
		done += n
		if progress != nil {
			progress(done*BlockSize, total*BlockSize)
		}
	}
	// From the top: each level, once it is known to be good, is what the one below is checked against.
	for i := len(levels) - 2; i >= 0; i-- {
		l := levels[i]
		good := make([]byte, l.blocks*BlockSize)
		err := eachChunk(ctx, r, l.offset, l.blocks, sb.Salt, func(h *hasher, c chunk) error {
			copy(good[c.first*BlockSize:], c.data)
			return check(h, c, parent, i, l.offset)
		}, count)
		if err != nil {
			return fmt.Errorf("verify root: %w", err)
		}
		parent = good
	}
	if len(levels) == 0 {
		return nil // the one data block is the topmost block
	}
	err = eachChunk(ctx, r, 0, sb.DataBlocks, sb.Salt, func(h *hasher, c chunk) error {
		return check(h, c, parent, -1, 0)
	}, count)
	if err != nil {
		return fmt.Errorf("verify root: %w", err)
	}
	return nil
}

// check compares a chunk's blocks with their hashes in parent.
func check(h *hasher, c chunk, parent []byte, level int, offset int64) error {
	hashes := parent[c.first*HashSize:]
	for i := range len(c.data) / BlockSize {
		if !bytes.Equal(h.block(c.data[i*BlockSize : (i+1)*BlockSize])[:], hashes[i*HashSize:(i+1)*HashSize]) {
			n := c.first + int64(i)
			return &CorruptError{Level: level, Block: n, Offset: offset + n*BlockSize}
		}
	}
	return nil
}
