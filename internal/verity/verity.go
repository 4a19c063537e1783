// Package verity writes, reads and checks dm-verity hash trees: SHA-256, 4096-byte data and hash blocks, hash type 1
// and a superblock, as veritysetup(8) and the kernel's dm-verity (Documentation/admin-guide/device-mapper/verity.rst)
// know them.
//
// It works on readers and writers, never on devices; mapping a device is the caller's, with Target.
// Start with Append for the building side and VerifyAll for the booting side.
package verity

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// BlockSize is the size of data and hash blocks, in bytes.
const BlockSize = 4096

// HashSize is the size of a hash, in bytes.
const HashSize = 32

// Params pins what veritysetup would take from chance.
type Params struct {
	// Salt is put before every block that is hashed; at most 256 bytes.
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

// Append writes a superblock and hash tree behind the first dataSize bytes of f. dataSize is a multiple of BlockSize.
func Append(ctx context.Context, f File, dataSize int64, p Params) (Info, error) {
	return Info{}, errors.ErrUnsupported
}

// Superblock is a verity superblock of the form that this package writes.
type Superblock struct {
	UUID       [16]byte
	DataBlocks int64
	Salt       []byte
}

// ReadSuperblock reads the superblock at offset. One with another algorithm, block size or version is an error.
func ReadSuperblock(r io.ReaderAt, offset int64) (*Superblock, error) {
	return nil, errors.ErrUnsupported
}

// CorruptError is a block that does not hash to what its parent, or the root hash, says.
type CorruptError struct {
	// Level is -1 for a data block, else the level of the hash tree, 0 being the hashes of data blocks.
	Level int
	// Block is the number of the block, from the start of the data; of the hash area for a hash block.
	Block int64
}

func (e *CorruptError) Error() string {
	if e.Level < 0 {
		return fmt.Sprintf("data block %d (bytes %d to %d) does not match its hash", e.Block, e.Block*BlockSize, (e.Block+1)*BlockSize-1)
	}
	return fmt.Sprintf("hash block %d (level %d) does not match its parent", e.Block, e.Level)
}

// CheckRoot reads the superblock and the topmost hash block only, and says whether they belong to rootHash: a quick
// way to recognise a root among many. It proves nothing about the data.
func CheckRoot(r io.ReaderAt, rootHash []byte, hashOffset int64) error {
	return errors.ErrUnsupported
}

// VerifyAll reads every data block and checks it against the tree, and the tree against rootHash. The first bad
// block is a *CorruptError. progress, if not nil, is called now and then from one goroutine with bytes done of total.
func VerifyAll(ctx context.Context, r io.ReaderAt, rootHash []byte, hashOffset int64, progress func(done, total int64)) error {
	return errors.ErrUnsupported
}

// Target is one line of a device-mapper table.
type Target struct {
	// Sectors is the length of the mapped device, in 512-byte sectors.
	Sectors uint64
	Type    string // "verity"
	Params  string
}

// DMTable is the kernel's verity target for data and tree on one device ("/dev/vda2" or "254:2").
// A block that does not verify later gives an I/O error, and with panicOnCorruption the kernel stops.
func DMTable(device string, sb *Superblock, rootHash []byte, hashOffset int64, panicOnCorruption bool) Target {
	return Target{}
}
