package gpt

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"unicode/utf16"
)

// Write writes protective MBR, primary and backup table for a disk of t.Size bytes. The primary header comes last, so
// that what was cut short has none.
func Write(w io.WriterAt, t *Table) error {
	if err := writeTable(w, t, nil, nil); err != nil {
		return fmt.Errorf("write partition table: %w", err)
	}
	return nil
}

// writeTable writes backup, then primary, with a sync after each. bootCode is put into the MBR.
func writeTable(w io.WriterAt, t *Table, bootCode []byte, sync func() error) error {
	if sync == nil {
		sync = func() error { return nil }
	}
	if t.SectorSize != 512 && t.SectorSize != 4096 {
		return fmt.Errorf("the sector size %d is neither 512 nor 4096", t.SectorSize)
	}
	s := int64(t.SectorSize)
	first, end := usable(t.Size, t.SectorSize)
	if t.Size%s != 0 || first >= end {
		return fmt.Errorf("a disk of %d bytes with sectors of %d has no room for one", t.Size, s)
	}
	if err := t.check(first, end); err != nil {
		return err
	}
	entries, err := t.entries()
	if err != nil {
		return err
	}
	sectors := t.Size / s
	write := func(what string, b []byte, sector int64) error {
		if _, err := w.WriteAt(b, sector*s); err != nil {
			return fmt.Errorf("%s in sector %d: %w", what, sector, err)
		}
		return nil
	}
	backupAt := sectors - 1 - entrySectors(t.SectorSize)
	if err := write("backup entries", entries, backupAt); err != nil {
		return err
	}
	if err := write("backup header", t.header(entries, sectors-1, 1, backupAt), sectors-1); err != nil {
		return err
	}
	if err := sync(); err != nil {
		return err
	}
	if err := write("protective MBR", t.mbr(bootCode), 0); err != nil {
		return err
	}
	if err := write("primary entries", entries, 2); err != nil {
		return err
	}
	if err := write("primary header", t.header(entries, 1, sectors-1, 2), 1); err != nil {
		return err
	}
	return sync()
}

// mbr is the protective MBR: one entry over the whole disk, as far as its 32 bits reach.
func (t *Table) mbr(bootCode []byte) []byte {
	b := make([]byte, t.SectorSize)
	copy(b[:440], bootCode)
	e := b[446:]
	copy(e, []byte{0, 0, 2, 0, 0xee, 0xff, 0xff, 0xff}) // from CHS 0/0/2 to what CHS cannot say
	binary.LittleEndian.PutUint32(e[8:], 1)
	binary.LittleEndian.PutUint32(e[12:], uint32(min(t.Size/int64(t.SectorSize)-1, 0xffffffff)))
	b[510], b[511] = 0x55, 0xaa
	return b
}

func (t *Table) header(entries []byte, here, other, entriesAt int64) []byte {
	b := make([]byte, t.SectorSize)
	le := binary.LittleEndian
	s := int64(t.SectorSize)
	first, end := usable(t.Size, t.SectorSize)
	copy(b, "EFI PART")
	le.PutUint32(b[8:], 0x10000)
	le.PutUint32(b[12:], headerSize)
	le.PutUint64(b[24:], uint64(here))
	le.PutUint64(b[32:], uint64(other))
	le.PutUint64(b[40:], uint64(first/s))
	le.PutUint64(b[48:], uint64(end/s-1))
	copy(b[56:], t.DiskGUID[:])
	le.PutUint64(b[72:], uint64(entriesAt))
	le.PutUint32(b[80:], entryCount)
	le.PutUint32(b[84:], entrySize)
	le.PutUint32(b[88:], crc32.ChecksumIEEE(entries))
	le.PutUint32(b[16:], crc32.ChecksumIEEE(b[:headerSize]))
	return b
}

func (t *Table) entries() ([]byte, error) {
	b := make([]byte, entryCount*entrySize) // a whole number of sectors of either size
	le := binary.LittleEndian
	s := int64(t.SectorSize)
	for _, p := range t.Partitions {
		if p.Number > entryCount {
			return nil, fmt.Errorf("partition %d is above %d", p.Number, entryCount)
		}
		name := utf16.Encode([]rune(p.Name))
		if len(name) > nameUnits {
			return nil, fmt.Errorf("the partition name %q has more than %d characters", p.Name, nameUnits)
		}
		e := b[(p.Number-1)*entrySize:]
		copy(e, p.Type[:])
		copy(e[16:], p.GUID[:])
		le.PutUint64(e[32:], uint64(p.Start/s))
		le.PutUint64(e[40:], uint64((p.Start+p.Size)/s-1))
		le.PutUint64(e[48:], p.Attributes)
		for i, u := range name {
			le.PutUint16(e[56+2*i:], u)
		}
	}
	return b, nil
}

// Grow moves the backup table to the end of a disk that is now size bytes and gives the last partition all the space up
// to it, in steps of Align. It returns the table as it is then. Writes go in the order that leaves a valid table at
// every cut: backup, sync, primary, sync; then the old backup is cleared, so it must be called before anything uses
// the new space. A disk on which nothing is to be done is not written to. sync may be nil.
func Grow(f File, size int64, sectorSize int, sync func() error) (*Table, error) {
	t, err := Read(f, size, sectorSize)
	if err != nil {
		return nil, fmt.Errorf("grow partition table: %w", err)
	}
	if len(t.Partitions) == 0 {
		return nil, fmt.Errorf("grow partition table: there is no partition to grow")
	}
	last := &t.Partitions[0]
	for i := range t.Partitions {
		if t.Partitions[i].Start > last.Start {
			last = &t.Partitions[i]
		}
	}
	old := *t
	s := int64(t.SectorSize)
	t.Size = size / s * s
	_, end := usable(t.Size, t.SectorSize)
	if grown := end/Align*Align - last.Start; grown > last.Size {
		last.Size = grown
	} else if t.Size == old.Size && !t.FromBackup {
		return t, nil
	}
	t.FromBackup = false
	if err := Rewrite(f, t, sync); err != nil {
		return nil, fmt.Errorf("grow partition table: %w", err)
	}
	// What is left of the old backup would be taken for a table if the disk were ever cut to its old size. It is
	// cleared where the new one does not lie over it.
	n := (1 + entrySectors(t.SectorSize)) * s
	if t.Size-old.Size >= n {
		if _, err := f.WriteAt(make([]byte, n), old.Size-n); err != nil {
			return nil, fmt.Errorf("grow partition table: clear the old backup: %w", err)
		}
	}
	return t, nil
}

// Rewrite writes t, which Read gave and which may have been changed since, over the table of its disk. Writes go in the
// order that leaves a valid table at every cut: backup, sync, primary, sync. Boot code in the MBR stays. sync may be nil.
func Rewrite(f File, t *Table, sync func() error) error {
	bootCode := make([]byte, 440)
	if n, err := f.ReadAt(bootCode, 0); n < len(bootCode) {
		return fmt.Errorf("rewrite partition table: read MBR: %w", err)
	}
	if err := writeTable(f, t, bootCode, sync); err != nil {
		return fmt.Errorf("rewrite partition table: %w", err)
	}
	return nil
}
