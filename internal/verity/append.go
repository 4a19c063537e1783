package verity

import (
	"context"
	"fmt"
)

func readError(offset int64, err error) error { return fmt.Errorf("read at byte %d: %w", offset, err) }

// Append writes a superblock and a hash tree behind the first dataSize bytes of f, byte for byte what veritysetup
// would write. dataSize is a multiple of BlockSize. The superblock is written last.
func Append(ctx context.Context, f File, dataSize int64, p Params) (Info, error) {
	if dataSize <= 0 || dataSize%BlockSize != 0 || dataSize/BlockSize > maxDataBlocks {
		return Info{}, fmt.Errorf("append verity tree: %d bytes of data are no positive multiple of %d up to %d TiB", dataSize, BlockSize, int64(maxDataBlocks)*BlockSize>>40)
	}
	if len(p.Salt) > MaxSalt {
		return Info{}, fmt.Errorf("append verity tree: the salt has %d bytes, at most %d are possible", len(p.Salt), MaxSalt)
	}
	info := Info{HashOffset: dataSize}
	blocks := dataSize / BlockSize
	var levels []level
	levels, info.Size = layout(blocks, dataSize)

	offset := int64(0) // of the blocks that the next level hashes
	for _, l := range levels {
		if err := writeLevel(ctx, f, offset, blocks, l, p.Salt); err != nil {
			return Info{}, fmt.Errorf("append verity tree: %w", err)
		}
		offset, blocks = l.offset, l.blocks
	}
	top := make([]byte, BlockSize)
	if n, err := f.ReadAt(top, offset); n < len(top) {
		return Info{}, fmt.Errorf("append verity tree: %w", readError(offset, err))
	}
	info.RootHash = *newHasher(p.Salt).block(top)

	sb := Superblock{UUID: p.UUID, DataBlocks: dataSize / BlockSize, Salt: p.Salt}
	if _, err := f.WriteAt(sb.marshal(), dataSize); err != nil {
		return Info{}, fmt.Errorf("append verity tree: write superblock: %w", err)
	}
	return info, nil
}

// writeLevel hashes the blocks at offset and writes their hashes as level l; the rest of its last block is zeros.
func writeLevel(ctx context.Context, f File, offset, blocks int64, l level, salt []byte) error {
	return eachChunk(ctx, f, offset, blocks, salt, func(h *hasher, c chunk) error {
		n := len(c.data) / BlockSize
		// A chunk is a whole number of hash blocks, but for the last one.
		out := make([]byte, (n+hashesPerBlock-1)/hashesPerBlock*BlockSize)
		for i := range n {
			copy(out[i*HashSize:], h.block(c.data[i*BlockSize : (i+1)*BlockSize])[:])
		}
		at := l.offset + c.first*HashSize
		if _, err := f.WriteAt(out, at); err != nil {
			return fmt.Errorf("write at byte %d: %w", at, err)
		}
		return nil
	}, nil)
}
