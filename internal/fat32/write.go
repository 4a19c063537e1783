package fat32

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"
)

// WriteFile makes or replaces a file: its bytes go into free clusters first, then the folder's entry is turned to them,
// then the old clusters are freed. Parent folders are made.
func (f *FS) WriteFile(p string, data []byte, t time.Time) error {
	if err := f.writeFile(p, data, t); err != nil {
		return fmt.Errorf("write %q: %w", p, err)
	}
	return nil
}

func (f *FS) writeFile(p string, data []byte, t time.Time) error {
	parts := split(p)
	if len(parts) == 0 {
		return fmt.Errorf("it is no name for a file")
	}
	if int64(len(data)) > math.MaxUint32 {
		return fmt.Errorf("%d bytes are above what FAT32 can hold", len(data))
	}
	for _, n := range parts {
		if err := checkName(n); err != nil {
			return err
		}
	}
	dir := f.root
	for _, name := range parts[:len(parts)-1] {
		next, err := f.folder(dir, name, t)
		if err != nil {
			return err
		}
		dir = next
	}
	name := parts[len(parts)-1]
	d, err := f.readFolder(dir)
	if err != nil {
		return err
	}
	old := find(f.parse(d), name)
	if old != nil && old.dir() {
		return fmt.Errorf("it is a folder")
	}
	clusters, err := f.store(data)
	if err != nil {
		return err
	}
	first := uint32(0)
	if len(clusters) > 0 {
		first = clusters[0]
	}
	if old == nil {
		if err := f.link(dir, name, attrFile, first, uint32(len(data)), t); err != nil {
			return err
		}
		return f.writeInfo()
	}
	e := shortEntry(old.short, old.attr, first, uint32(len(data)), t)
	if _, err := f.d.WriteAt(e, old.slots[len(old.slots)-1]); err != nil {
		return err
	}
	return f.release(old)
}

// Remove removes a file.
func (f *FS) Remove(p string) error {
	e, err := f.lookup(p)
	if err == nil && (e == nil || e.dir()) {
		err = fmt.Errorf("it is a folder")
	}
	if err != nil {
		return fmt.Errorf("remove %q: %w", p, err)
	}
	// The short entry goes first: pieces of a long name without it are nothing to anybody.
	for i := len(e.slots) - 1; i >= 0; i-- {
		if _, err := f.d.WriteAt([]byte{deleted}, e.slots[i]); err != nil {
			return fmt.Errorf("remove %q: %w", p, err)
		}
	}
	if err := f.release(e); err != nil {
		return fmt.Errorf("remove %q: %w", p, err)
	}
	return nil
}

// release frees the clusters of what was removed or replaced.
func (f *FS) release(e *entry) error {
	if e.first != 0 {
		chain, err := f.chain(e.first, math.MaxUint32)
		if err != nil {
			return err
		}
		for _, c := range chain {
			f.fat[c] = 0
		}
		if err := f.writeFAT(chain); err != nil {
			return err
		}
	}
	return f.writeInfo()
}

// folder returns the first cluster of the folder name in dir, made if it is missing.
func (f *FS) folder(dir uint32, name string, t time.Time) (uint32, error) {
	d, err := f.readFolder(dir)
	if err != nil {
		return 0, err
	}
	if e := find(f.parse(d), name); e != nil {
		if !e.dir() {
			return 0, fmt.Errorf("%q is a file", name)
		}
		return e.first, nil
	}
	up := dir
	if dir == f.root {
		up = 0 // by the specification, for whatever cluster the root is in
	}
	clusters, err := f.alloc(1)
	if err != nil {
		return 0, err
	}
	b := make([]byte, f.clusterSize)
	copy(b, shortEntry([11]byte([]byte(".          ")), attrDir, clusters[0], 0, t))
	copy(b[entrySize:], shortEntry([11]byte([]byte("..         ")), attrDir, up, 0, t))
	if _, err := f.d.WriteAt(b, f.clusterAt(clusters[0])); err != nil {
		return 0, err
	}
	if err := f.writeChain(clusters); err != nil {
		return 0, err
	}
	return clusters[0], f.link(dir, name, attrDir, clusters[0], 0, t)
}

func shortEntry(short [11]byte, attr byte, first, size uint32, t time.Time) []byte {
	b := make([]byte, entrySize)
	le := binary.LittleEndian
	date, clock := stamp(t)
	copy(b, short[:])
	b[atAttr] = attr
	le.PutUint16(b[atCreated:], clock)
	le.PutUint16(b[atCreated+2:], date)
	le.PutUint16(b[atAccessed:], date)
	le.PutUint16(b[atTime:], clock)
	le.PutUint16(b[atDate:], date)
	le.PutUint16(b[atClusterHi:], uint16(first>>16))
	le.PutUint16(b[atClusterLo:], uint16(first))
	le.PutUint32(b[atSize:], size)
	return b
}

// link puts a new name into a folder, which grows by a cluster where it is full.
func (f *FS) link(dir uint32, name string, attr byte, first, size uint32, t time.Time) error {
	d, err := f.readFolder(dir)
	if err != nil {
		return err
	}
	entries := f.parse(d)
	var pieces []byte
	short, ok := exact(name)
	if !ok {
		short, err = alias(name, func(s [11]byte) bool { return find(entries, shortName(s)) != nil })
		if err != nil {
			return err
		}
		pieces = longPieces(name, short)
	}
	pieces = append(pieces, shortEntry(short, attr, first, size, t)...)
	off := gap(d.data, len(pieces))
	for off+len(pieces) > len(d.clusters)*int(f.clusterSize) { // a long name can be longer than a small cluster
		if len(d.clusters)*int(f.clusterSize) >= maxDirSize {
			return ErrFull
		}
		more, err := f.alloc(1)
		if err != nil {
			return err
		}
		if _, err := f.d.WriteAt(make([]byte, f.clusterSize), f.clusterAt(more[0])); err != nil {
			return err
		}
		d.clusters = append(d.clusters, more[0])
		if err := f.writeChain(d.clusters[len(d.clusters)-2:]); err != nil {
			return err
		}
	}
	// The short entry comes last, so that it is written when its long name is there.
	for i := 0; i < len(pieces); i += entrySize {
		if _, err := f.d.WriteAt(pieces[i:i+entrySize], f.at(d, off+i)); err != nil {
			return err
		}
	}
	return nil
}

// gap finds room for n bytes in a folder: free pieces one after another, or what is behind the last one, which may
// reach over the end.
func gap(data []byte, n int) int {
	run := 0
	for off := 0; off < len(data); off += entrySize {
		switch data[off] {
		case 0:
			return off - run
		case deleted:
			if run += entrySize; run >= n {
				return off + entrySize - run
			}
		default:
			run = 0
		}
	}
	return len(data) - run
}

// store writes data into new clusters, and their chain.
func (f *FS) store(data []byte) ([]uint32, error) {
	n := (int64(len(data)) + f.clusterSize - 1) / f.clusterSize
	clusters, err := f.alloc(int(n))
	if err != nil {
		return nil, err
	}
	for i := 0; i < len(clusters); {
		run := i + 1
		for run < len(clusters) && clusters[run] == clusters[run-1]+1 {
			run++
		}
		from, to := int64(i)*f.clusterSize, min(int64(run)*f.clusterSize, int64(len(data)))
		if _, err := f.d.WriteAt(data[from:to], f.clusterAt(clusters[i])); err != nil {
			return nil, err
		}
		i = run
	}
	return clusters, f.writeChain(clusters)
}

// alloc finds n free clusters. They are taken only when their chain is written.
func (f *FS) alloc(n int) ([]uint32, error) {
	var out []uint32
	c := f.next
	for range f.clusters {
		if len(out) == n {
			break
		}
		if !f.valid(c) {
			c = firstData
		}
		if f.fat[c]&entryMask == 0 {
			out = append(out, c)
		}
		c++
	}
	if len(out) < n {
		return nil, fmt.Errorf("%w: %d bytes are needed, %d are free", ErrFull, int64(n)*f.clusterSize, int64(len(out))*f.clusterSize)
	}
	if n > 0 {
		f.next = c
	}
	return out, nil
}

// writeChain links clusters one to the next and writes their part of the table.
func (f *FS) writeChain(clusters []uint32) error {
	for i, c := range clusters {
		next := uint32(endOfChain)
		if i+1 < len(clusters) {
			next = clusters[i+1]
		}
		f.fat[c] = f.fat[c]&^entryMask | next
	}
	return f.writeFAT(clusters)
}

// writeFAT writes the table's entries of clusters to every copy of it.
func (f *FS) writeFAT(clusters []uint32) error {
	for i := 0; i < len(clusters); {
		run := i + 1
		for run < len(clusters) && clusters[run] == clusters[run-1]+1 {
			run++
		}
		b := make([]byte, 4*(run-i))
		for j := range run - i {
			binary.LittleEndian.PutUint32(b[4*j:], f.fat[clusters[i+j]])
		}
		for copyN := range f.fats {
			if _, err := f.d.WriteAt(b, f.fatStart+copyN*f.fatSize+4*int64(clusters[i])); err != nil {
				return fmt.Errorf("write allocation table: %w", err)
			}
		}
		i = run
	}
	return nil
}

// writeInfo brings the count of free clusters up to date.
func (f *FS) writeInfo() error {
	if f.infoAt == 0 {
		return nil
	}
	if _, err := f.d.WriteAt(f.infoSector()[:512], f.infoAt); err != nil {
		return fmt.Errorf("write FSInfo: %w", err)
	}
	return nil
}
