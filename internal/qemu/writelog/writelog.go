// Package writelog reads what QEMU's blklogwrites filter recorded of a guest's writes, and builds from it the disk that
// a power cut would have left.
//
// Killing QEMU is no power cut: what the guest wrote is in the page cache of the machine that QEMU ran on, and stays.
// A disk that loses power keeps what was written before the last flush, and of what came after it an arbitrary part,
// in any order, a sector at a time. Start with Read, then Log.Cut.
package writelog

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
)

// The format is that of the kernel's dm-log-writes target (Documentation/admin-guide/device-mapper/log-writes.rst), as
// QEMU's block/blklogwrites.c writes it: a super block of one sector, then entries of one sector, each followed by its
// data. Numbers are little endian.
const (
	magic   = 0x6a736677736872
	version = 1
	// superSize is the part of the super block that is used, in bytes: magic, version, entries, sector size.
	superSize = 28
	entrySize = 32
)

// Flags of an entry.
const (
	Flush   = 1 << 0
	FUA     = 1 << 1
	Discard = 1 << 2
	Mark    = 1 << 3
)

// Entry is one recorded request.
type Entry struct {
	Offset int64 // bytes on the disk
	Size   int64 // bytes; 0 for a bare flush
	Flags  uint64
	data   int64 // where the data is in the log
	end    int64 // where the next entry starts in the log
}

// Log is a recording that was read.
type Log struct {
	r          io.ReaderAt
	SectorSize int64
	Entries    []Entry
}

// Read reads a recording of size bytes. QEMU updates the number of entries only at a flush, so what comes behind the
// last counted one is read too, up to the first entry that is not whole.
func Read(r io.ReaderAt, size int64) (*Log, error) {
	b := make([]byte, superSize)
	if _, err := r.ReadAt(b, 0); err != nil {
		return nil, fmt.Errorf("read the write log's super block: %w", err)
	}
	if m, v := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:]); m != magic || v != version {
		return nil, fmt.Errorf("not a write log: magic %#x version %d, wanted %#x version %d", m, v, uint64(magic), version)
	}
	counted := binary.LittleEndian.Uint64(b[16:])
	l := &Log{r: r, SectorSize: int64(binary.LittleEndian.Uint32(b[24:]))}
	if l.SectorSize != 512 && l.SectorSize != 4096 {
		return nil, fmt.Errorf("write log: sectors of %d bytes, wanted 512 or 4096", l.SectorSize)
	}
	head := make([]byte, entrySize)
	for at := l.SectorSize; at+l.SectorSize <= size; {
		if _, err := r.ReadAt(head, at); err != nil {
			return nil, fmt.Errorf("read entry %d of the write log: %w", len(l.Entries), err)
		}
		sector, sectors, flags := binary.LittleEndian.Uint64(head), binary.LittleEndian.Uint64(head[8:]), binary.LittleEndian.Uint64(head[16:])
		e := Entry{Flags: flags, data: at + l.SectorSize}
		limit := uint64(1) << 62 / uint64(l.SectorSize)
		if sector >= limit || sectors >= limit || flags&^(Flush|FUA|Discard|Mark) != 0 || sectors == 0 && flags == 0 {
			break
		}
		e.Offset, e.Size = int64(sector)*l.SectorSize, int64(sectors)*l.SectorSize
		e.end = e.data
		if flags&Discard == 0 {
			if e.Size > size-e.data {
				break
			}
			e.end += e.Size
		}
		l.Entries = append(l.Entries, e)
		at = e.end
	}
	if uint64(len(l.Entries)) < counted {
		return nil, fmt.Errorf("write log: it says that it has %d entries, but entry %d is not whole", counted, len(l.Entries))
	}
	return l, nil
}

// At is how many entries had been recorded when the log was size bytes long.
func (l *Log) At(size int64) int {
	for i, e := range l.Entries {
		if e.end > size {
			return i
		}
	}
	return len(l.Entries)
}

// LastFlush is how many of the first n entries a flush has made safe.
func (l *Log) LastFlush(n int) int {
	for i := n; i > 0; i-- {
		if l.Entries[i-1].Flags&Flush != 0 {
			return i
		}
	}
	return 0
}

// Report says what a cut did.
type Report struct {
	Entries          int // up to the cut
	Safe             int // up to the last flush before it
	Kept, Lost, Torn int // of those after it
}

func (r Report) String() string {
	return fmt.Sprintf("cut after %d requests: %d safe by a flush, of the other %d %d kept, %d torn, %d lost", r.Entries, r.Safe, r.Entries-r.Safe, r.Kept, r.Torn, r.Lost)
}

// Cut writes onto disk, which must read as the disk did when recording began, what a power cut after the first n entries
// would have left: everything up to the last flush, and of later writes a part that seed decides, some of them torn
// between sectors. A write with FUA is always kept.
func (l *Log) Cut(disk io.WriterAt, n int, seed uint64) (Report, error) {
	if n < 0 || n > len(l.Entries) {
		return Report{}, fmt.Errorf("cut after %d requests: the write log has %d", n, len(l.Entries))
	}
	rnd := rand.New(rand.NewPCG(seed, uint64(n)))
	r := Report{Entries: n, Safe: l.LastFlush(n)}
	for i, e := range l.Entries[:n] {
		keep := func(int64) bool { return true }
		if i >= r.Safe && e.Flags&FUA == 0 && e.Size > 0 {
			switch rnd.IntN(3) {
			case 0:
				r.Kept++
			case 1:
				r.Lost++
				continue
			case 2:
				if e.Size == l.SectorSize { // a sector is written whole or not at all
					r.Lost++
					continue
				}
				r.Torn++
				keep = func(int64) bool { return rnd.IntN(2) == 0 }
			}
		} else if i >= r.Safe {
			r.Kept++
		}
		if err := l.apply(disk, e, keep); err != nil {
			return r, fmt.Errorf("replay entry %d of the write log (%d bytes at %d): %w", i, e.Size, e.Offset, err)
		}
	}
	return r, nil
}

// apply writes one entry's sectors, those that keep says, in runs.
func (l *Log) apply(disk io.WriterAt, e Entry, keep func(sector int64) bool) error {
	if e.Size == 0 {
		return nil
	}
	for at := int64(0); at < e.Size; {
		if !keep(at / l.SectorSize) {
			at += l.SectorSize
			continue
		}
		end := at + l.SectorSize
		const chunk = 1 << 20
		for end < e.Size && end-at < chunk && keep(end/l.SectorSize) {
			end += l.SectorSize
		}
		var src io.Reader = zeros{}
		if e.Flags&Discard == 0 {
			src = io.NewSectionReader(l.r, e.data+at, end-at)
		}
		if _, err := io.CopyN(io.NewOffsetWriter(disk, e.Offset+at), src, end-at); err != nil {
			return err
		}
		at = end
	}
	return nil
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
