// Package fsverity computes the digest that Linux's fs-verity gives a file, without the file system's help.
//
// It knows one parameter set: SHA-256, 4096-byte blocks, no salt and no built-in signature, which is what a
// bundle's config carries (mesh.BundleFile). It never enables or measures verity on a file; see
// https://docs.kernel.org/filesystems/fsverity.html for the format. Start with New.
package fsverity

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"io"
)

// BlockSize is the size of a data and of a hash block, in bytes.
const BlockSize = 4096

// descriptorSize is sizeof(struct fsverity_descriptor).
const descriptorSize = 256

// New returns a hash whose Sum is the fs-verity file digest of all that was written.
func New() hash.Hash { return &digest{} }

// Digest reads r to its end and returns the fs-verity file digest (32 bytes) and the number of bytes read.
func Digest(r io.Reader) ([]byte, int64, error) {
	h := &digest{}
	n, err := io.Copy(h, r)
	if err != nil {
		return nil, n, err
	}
	return h.Sum(nil), n, nil
}

// digest keeps the unfinished block of the data (levels[0]) and of every level of hashes above it, so
// memory is a block per level: eight of them reach past any file size.
type digest struct {
	size   int64
	levels [][]byte
}

func (d *digest) Size() int      { return sha256.Size }
func (d *digest) BlockSize() int { return BlockSize }
func (d *digest) Reset()         { *d = digest{} }

func (d *digest) Write(p []byte) (int, error) {
	n := len(p)
	d.size += int64(n)
	if len(d.levels) == 0 && n > 0 {
		d.levels = append(d.levels, make([]byte, 0, BlockSize))
	}
	for len(p) > 0 {
		b := d.levels[0]
		if len(b) == BlockSize {
			d.flush(0)
			b = d.levels[0]
		}
		if len(b) == 0 && len(p) > BlockSize {
			// A whole block that is not the last one is hashed where it lies.
			d.push(1, sha256.Sum256(p[:BlockSize]))
			p = p[BlockSize:]
			continue
		}
		k := min(BlockSize-len(b), len(p))
		d.levels[0] = append(b, p[:k]...)
		p = p[k:]
	}
	return n, nil
}

// flush hashes the full block of a level into the next one.
func (d *digest) flush(level int) {
	sum := sha256.Sum256(d.levels[level])
	d.levels[level] = d.levels[level][:0]
	d.push(level+1, sum)
}

func (d *digest) push(level int, sum [sha256.Size]byte) {
	if len(d.levels) == level {
		d.levels = append(d.levels, make([]byte, 0, BlockSize))
	}
	if len(d.levels[level]) == BlockSize {
		d.flush(level)
	}
	d.levels[level] = append(d.levels[level], sum[:]...)
}

// Sum appends the file digest to b; more may be written afterwards.
func (d *digest) Sum(b []byte) []byte {
	var desc [descriptorSize]byte
	desc[0] = 1  // version
	desc[1] = 1  // FS_VERITY_HASH_ALG_SHA256
	desc[2] = 12 // log2 of the block size
	binary.LittleEndian.PutUint64(desc[8:], uint64(d.size))
	if d.size > 0 {
		root := d.root()
		copy(desc[16:], root[:])
	}
	sum := sha256.Sum256(desc[:])
	return append(b, sum[:]...)
}

// root closes copies of the unfinished blocks upwards. The root is the hash of the first level that
// has but one block.
func (d *digest) root() [sha256.Size]byte {
	var carry []byte
	for i, l := range d.levels {
		block := append(append(make([]byte, 0, BlockSize+sha256.Size), l...), carry...)
		carry = nil
		if len(block) > BlockSize {
			// The level was full: its block goes up together with the hash carried into a new one.
			full := sha256.Sum256(block[:BlockSize])
			rest := sha256.Sum256(padded(block[BlockSize:]))
			carry = append(full[:], rest[:]...)
			continue
		}
		if len(block) == 0 {
			continue
		}
		sum := sha256.Sum256(padded(block))
		if i == len(d.levels)-1 {
			return sum
		}
		carry = sum[:]
	}
	return sha256.Sum256(padded(carry))
}

func padded(b []byte) []byte {
	out := make([]byte, BlockSize)
	copy(out, b)
	return out
}
