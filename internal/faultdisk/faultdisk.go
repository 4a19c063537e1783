// Package faultdisk is a disk in memory for tests of writers: it records what is written, and makes from the recording
// the disks that a power cut could have left.
//
// What a disk may do with writes between two flushes is what it models: keep any of them, in any order, a sector at a time.
// It holds only pages that are not zero, so disks may be large. Start with New, then Disk.Record and Recording.States.
package faultdisk

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"sync"
)

const pageSize = 4096

// page is the content of a page and its hash; it is never changed, only replaced, so disks share them.
type page struct {
	data [pageSize]byte
	sum  uint64
}

// Disk is a disk in memory. It is safe for concurrent use.
type Disk struct {
	size   int64
	sector int
	// Fail, if not nil, is asked before each operation and may let it fail. n counts from 0.
	Fail func(n int, op Op) error

	mu    sync.Mutex
	pages map[int64]*page
	sum   uint64 // of all pages and where they are
	log   []Op
	rec   bool
	count int
}

// Kind is the kind of an operation.
type Kind int

// Kinds of operations.
const (
	Write Kind = iota
	Zero
	Sync
	Read // never recorded, only asked of Fail
)

// Op is one operation.
type Op struct {
	Kind Kind
	Off  int64
	Len  int64
	Data []byte // of a Write
}

// New makes a disk of zeros.
func New(size int64, sectorSize int) *Disk {
	return &Disk{size: size, sector: sectorSize, pages: map[int64]*page{}}
}

// Size is the disk's size, in bytes.
func (d *Disk) Size() int64 { return d.size }

// SectorSize is the size of a sector, in bytes.
func (d *Disk) SectorSize() int { return d.sector }

// Clone is a disk with the same content that records nothing.
func (d *Disk) Clone() *Disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	return &Disk{size: d.size, sector: d.sector, pages: maps.Clone(d.pages), sum: d.sum}
}

// Sum tells disks apart: two with the same sum have the same content.
func (d *Disk) Sum() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.sum
}

// ReadAt implements io.ReaderAt.
func (d *Disk) ReadAt(p []byte, off int64) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.ask(Op{Kind: Read, Off: off, Len: int64(len(p))}); err != nil {
		return 0, err
	}
	if off < 0 || off >= d.size {
		return 0, io.EOF
	}
	n := int(min(int64(len(p)), d.size-off))
	for i := 0; i < n; {
		at := off + int64(i)
		in := int(at % pageSize)
		k := min(n-i, pageSize-in)
		if pg := d.pages[at/pageSize]; pg != nil {
			copy(p[i:i+k], pg.data[in:])
		} else {
			clear(p[i : i+k])
		}
		i += k
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// WriteAt implements io.WriterAt.
func (d *Disk) WriteAt(p []byte, off int64) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	op := Op{Kind: Write, Off: off, Len: int64(len(p)), Data: append([]byte(nil), p...)}
	if err := d.do(op); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Zero makes a place read as zeros.
func (d *Disk) Zero(off, n int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.do(Op{Kind: Zero, Off: off, Len: n})
}

// Sync is a flush.
func (d *Disk) Sync() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.do(Op{Kind: Sync})
}

func (d *Disk) ask(op Op) error {
	if d.Fail == nil {
		return nil
	}
	d.count++
	return d.Fail(d.count-1, op)
}

func (d *Disk) do(op Op) error {
	if op.Off < 0 || op.Off+op.Len > d.size {
		return fmt.Errorf("%d bytes at %d are outside the disk of %d bytes", op.Len, op.Off, d.size)
	}
	if err := d.ask(op); err != nil {
		return err
	}
	if d.rec {
		d.log = append(d.log, op)
	}
	d.apply(op, op.Len)
	return nil
}

// apply does the first n bytes of an operation.
func (d *Disk) apply(op Op, n int64) {
	if op.Kind == Sync {
		return
	}
	for i := int64(0); i < n; {
		at := op.Off + i
		in := at % pageSize
		k := min(n-i, pageSize-in)
		var src []byte
		if op.Kind == Write {
			src = op.Data[i : i+k]
		}
		d.put(at/pageSize, int(in), int(k), src)
		i += k
	}
}

// put replaces k bytes of a page from in on; src nil is zeros.
func (d *Disk) put(number int64, in, k int, src []byte) {
	old := d.pages[number]
	if old == nil && src == nil {
		return
	}
	fresh := &page{}
	if old != nil {
		d.sum ^= old.sum
		fresh.data = old.data
	}
	if src != nil {
		copy(fresh.data[in:in+k], src)
	} else {
		clear(fresh.data[in : in+k])
	}
	if fresh.data == [pageSize]byte{} {
		delete(d.pages, number)
		return
	}
	var place [8]byte
	binary.LittleEndian.PutUint64(place[:], uint64(number))
	h := sha256.New()
	h.Write(place[:])
	h.Write(fresh.data[:])
	fresh.sum = binary.LittleEndian.Uint64(h.Sum(nil))
	d.sum ^= fresh.sum
	d.pages[number] = fresh
}
