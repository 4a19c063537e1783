package verity

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
)

// Superblock is a verity superblock of the form that this package writes.
type Superblock struct {
	UUID       [16]byte
	DataBlocks int64
	Salt       []byte
}

// On disk (struct verity_sb in cryptsetup's lib/verity/verity.c), little endian.
const (
	sbSize         = 512
	sbAtVersion    = 8
	sbAtHashType   = 12
	sbAtUUID       = 16
	sbAtAlgorithm  = 32
	sbAtDataBlock  = 64
	sbAtHashBlock  = 68
	sbAtDataBlocks = 72
	sbAtSaltSize   = 80
	sbAtSalt       = 88
)

var sbMagic = [8]byte{'v', 'e', 'r', 'i', 't', 'y'}

func (s *Superblock) marshal() []byte {
	b := make([]byte, BlockSize)
	le := binary.LittleEndian
	copy(b, sbMagic[:])
	le.PutUint32(b[sbAtVersion:], 1)
	le.PutUint32(b[sbAtHashType:], 1)
	copy(b[sbAtUUID:], s.UUID[:])
	copy(b[sbAtAlgorithm:], "sha256")
	le.PutUint32(b[sbAtDataBlock:], BlockSize)
	le.PutUint32(b[sbAtHashBlock:], BlockSize)
	le.PutUint64(b[sbAtDataBlocks:], uint64(s.DataBlocks))
	le.PutUint16(b[sbAtSaltSize:], uint16(len(s.Salt)))
	copy(b[sbAtSalt:], s.Salt)
	return b
}

// ReadSuperblock reads the superblock at offset. One with another algorithm, block size or version is an error.
func ReadSuperblock(r io.ReaderAt, offset int64) (*Superblock, error) {
	if offset < 0 || offset%BlockSize != 0 {
		return nil, fmt.Errorf("read verity superblock: the offset %d is no multiple of %d", offset, BlockSize)
	}
	b := make([]byte, sbSize)
	if n, err := r.ReadAt(b, offset); n < len(b) {
		return nil, fmt.Errorf("read verity superblock at byte %d: %w", offset, err)
	}
	s, err := parseSuperblock(b)
	if err != nil {
		return nil, fmt.Errorf("read verity superblock at byte %d: %w", offset, err)
	}
	return s, nil
}

func parseSuperblock(b []byte) (*Superblock, error) {
	le := binary.LittleEndian
	if !bytes.Equal(b[:8], sbMagic[:]) {
		return nil, fmt.Errorf("there is none")
	}
	for _, f := range []struct {
		what string
		at   int
		want uint32
	}{
		{"version", sbAtVersion, 1},
		{"hash type", sbAtHashType, 1},
		{"data block size", sbAtDataBlock, BlockSize},
		{"hash block size", sbAtHashBlock, BlockSize},
	} {
		if v := le.Uint32(b[f.at:]); v != f.want {
			return nil, fmt.Errorf("its %s is %d, only %d is supported", f.what, v, f.want)
		}
	}
	if a := bytes.TrimRight(b[sbAtAlgorithm:sbAtAlgorithm+32], "\x00"); string(a) != "sha256" {
		return nil, fmt.Errorf("its algorithm is %q, only sha256 is supported", a)
	}
	s := &Superblock{UUID: [16]byte(b[sbAtUUID:])}
	if n := le.Uint64(b[sbAtDataBlocks:]); n == 0 || n > maxDataBlocks {
		return nil, fmt.Errorf("it claims %d data blocks, 1 to %d are supported", n, int64(maxDataBlocks))
	}
	s.DataBlocks = int64(le.Uint64(b[sbAtDataBlocks:]))
	n := int(le.Uint16(b[sbAtSaltSize:]))
	if n > MaxSalt {
		return nil, fmt.Errorf("its salt has %d bytes, at most %d are possible", n, MaxSalt)
	}
	s.Salt = append([]byte(nil), b[sbAtSalt:sbAtSalt+n]...)
	return s, nil
}
