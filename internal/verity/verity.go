// Package verity writes, reads and checks dm-verity hash trees: SHA-256, 4096-byte data and hash blocks, hash type 1
// and a superblock, as veritysetup(8) and the kernel's dm-verity (Documentation/admin-guide/device-mapper/verity.rst)
// know them.
//
// It works on readers and writers, never on devices; mapping a device is the caller's, with DMTable.
// Start with Append for the building side and VerifyAll for the booting side.
package verity

import (
	"errors"
	"fmt"
	"io"
)

// BlockSize is the size of data and hash blocks, in bytes.
const BlockSize = 4096

// HashSize is the size of a hash, in bytes.
const HashSize = 32

// MaxSalt is the most bytes that a salt may have.
const MaxSalt = 256

// hashesPerBlock is how many hashes one hash block holds.
const hashesPerBlock = BlockSize / HashSize

// maxDataBlocks bounds what a superblock may claim: 16 TiB, far above any root.
const maxDataBlocks = 1 << 32

// Params pins what veritysetup would take from chance.
type Params struct {
	// Salt is put before every block that is hashed; at most MaxSalt bytes.
	Salt []byte
	UUID [16]byte
}

// Info is where a hash tree lies and what it pins.
type Info struct {
	RootHash [HashSize]byte
	// HashOffset is where the superblock is, in bytes: the end of the data.
	HashOffset int64
	// Size is the whole length with superblock and tree, in bytes.
	Size int64
}

// File is data that gets a tree appended; an *os.File is one.
type File interface {
	io.ReaderAt
	io.WriterAt
}

// ErrRootHash says that a tree is whole in itself, or at least its top is readable, but is not the one looked for.
var ErrRootHash = errors.New("the hash tree does not belong to the root hash")

// CorruptError is a block that does not hash to what its parent, or the root hash, says.
type CorruptError struct {
	// Level is -1 for a data block, else the level of the hash tree, 0 being the hashes of data blocks.
	Level int
	// Block is the number of the block from the start of the data or, for a hash block, of its level.
	Block int64
	// Offset is where the block is, in bytes from the start of the root image.
	Offset int64
}

func (e *CorruptError) Error() string {
	if e.Level < 0 {
		return fmt.Sprintf("data block %d (at byte %d) does not match its hash", e.Block, e.Offset)
	}
	return fmt.Sprintf("hash block %d of level %d (at byte %d) does not match its parent", e.Block, e.Level, e.Offset)
}

// level is one level of a hash tree.
type level struct {
	offset int64 // bytes from the start of the image
	blocks int64
}

// layout returns the levels of the tree for a number of data blocks, level 0 (hashes of data blocks) first, and where
// the tree ends. On disk the topmost level comes first. One data block has no tree: its hash is the root hash.
func layout(dataBlocks, hashOffset int64) (levels []level, end int64) {
	for n := dataBlocks; n > 1; {
		n = (n + hashesPerBlock - 1) / hashesPerBlock
		levels = append(levels, level{blocks: n})
	}
	end = hashOffset + BlockSize // the superblock has a block of its own
	for i := len(levels) - 1; i >= 0; i-- {
		levels[i].offset = end
		end += levels[i].blocks * BlockSize
	}
	return levels, end
}

// Target is one line of a device-mapper table.
type Target struct {
	Sectors uint64 // length of the mapped device, in 512-byte sectors
	Type    string // "verity"
	Params  string
}

// DMTable is the kernel's verity target for data and tree on one device ("/dev/vda2" or "254:2"). A block that does
// not verify when it is read gives an I/O error; with panicOnCorruption the kernel stops instead.
func DMTable(device string, sb *Superblock, rootHash []byte, hashOffset int64, panicOnCorruption bool) Target {
	salt := fmt.Sprintf("%x", sb.Salt)
	if len(sb.Salt) == 0 {
		salt = "-"
	}
	p := fmt.Sprintf("1 %s %s %d %d %d %d sha256 %x %s", device, device, BlockSize, BlockSize,
		sb.DataBlocks, hashOffset/BlockSize+1, rootHash, salt)
	if panicOnCorruption {
		p += " 1 panic_on_corruption"
	}
	return Target{Sectors: uint64(sb.DataBlocks) * (BlockSize / 512), Type: "verity", Params: p}
}
