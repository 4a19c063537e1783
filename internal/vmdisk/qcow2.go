package vmdisk

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
)

// Sizes of a qcow2 file (QEMU, docs/interop/qcow2.rst), in bytes where nothing else is said.
const (
	qcowBits     = 16
	qcowCluster  = 1 << qcowBits
	qcowEntries  = qcowCluster / 8 // of an L1 or L2 table's cluster
	qcowCounts   = qcowCluster / 2 // of a block of reference counts, 16 bits each
	qcowCopied   = 1 << 63         // "this cluster is referred to once"
	qcowHeader   = 104             // version 3
	maxQCOW2Size = 64 << 40
)

// WriteQCOW2 writes im as qcow2 of version 3, not compressed: QEMU, and whatever stands upon it.
func WriteQCOW2(ctx context.Context, w io.Writer, im Image) error {
	if err := writeQCOW2(ctx, w, &im); err != nil {
		return fmt.Errorf("write qcow2: %w", err)
	}
	return nil
}

func writeQCOW2(ctx context.Context, w io.Writer, im *Image) error {
	if err := im.check(maxQCOW2Size); err != nil {
		return err
	}
	data := im.blocks(qcowCluster)
	// An L2 table for each stretch of the disk that has data.
	var tables []int64
	for _, b := range data {
		if n := b / qcowEntries; len(tables) == 0 || tables[len(tables)-1] < n {
			tables = append(tables, n)
		}
	}
	l1 := ceil(im.Size, qcowCluster*qcowEntries) // entries
	l1Clusters := ceil(l1, qcowEntries)
	// The reference counts count themselves.
	counts, countTable := int64(1), int64(1)
	total := func() int64 { return 1 + countTable + counts + l1Clusters + int64(len(tables)+len(data)) }
	for counts < ceil(total(), qcowCounts) || countTable < ceil(counts, qcowEntries) {
		counts = ceil(total(), qcowCounts)
		countTable = ceil(counts, qcowEntries)
	}
	countsAt := 1 + countTable // clusters
	l1At := countsAt + counts
	l2At := l1At + l1Clusters
	dataAt := l2At + int64(len(tables))

	be := binary.BigEndian
	f := newFile(ctx, w)
	h := make([]byte, qcowHeader+8) // with an empty list of extensions
	copy(h, "QFI\xfb")
	be.PutUint32(h[4:], 3)
	be.PutUint32(h[20:], qcowBits)
	be.PutUint64(h[24:], uint64(im.Size))
	be.PutUint32(h[36:], uint32(l1))
	be.PutUint64(h[40:], uint64(l1At*qcowCluster))
	be.PutUint64(h[48:], qcowCluster)
	be.PutUint32(h[56:], uint32(countTable))
	be.PutUint32(h[96:], 4) // counts of 2^4 bits
	be.PutUint32(h[100:], qcowHeader)
	if err := f.write(h); err != nil {
		return err
	}
	list := func(at, n int64, entry func(i int64) uint64) error {
		if err := f.pad(at * qcowCluster); err != nil {
			return err
		}
		for i := range n {
			if err := f.write(be.AppendUint64(nil, entry(i))); err != nil {
				return err
			}
		}
		return nil
	}
	if err := list(1, counts, func(i int64) uint64 { return uint64((countsAt + i) * qcowCluster) }); err != nil {
		return err
	}
	if err := f.pad(countsAt * qcowCluster); err != nil {
		return err
	}
	for range total() {
		if err := f.write([]byte{0, 1}); err != nil {
			return err
		}
	}
	used := 0
	err := list(l1At, l1, func(i int64) uint64 {
		if used == len(tables) || tables[used] != i {
			return 0
		}
		used++
		return uint64((l2At+int64(used)-1)*qcowCluster) | qcowCopied
	})
	if err != nil {
		return err
	}
	next := 0
	for i, n := range tables {
		err := list(l2At+int64(i), qcowEntries, func(j int64) uint64 {
			if next == len(data) || data[next] != n*qcowEntries+j {
				return 0
			}
			next++
			return uint64((dataAt+int64(next)-1)*qcowCluster) | qcowCopied
		})
		if err != nil {
			return err
		}
	}
	if err := f.pad(dataAt * qcowCluster); err != nil {
		return err
	}
	if err := f.data(im, data, qcowCluster); err != nil {
		return err
	}
	return f.w.Flush()
}
