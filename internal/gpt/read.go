package gpt

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"unicode/utf16"
)

// Read reads the table of a disk of size bytes. sectorSize is 512, 4096, or 0 to try both. Header and entries
// are checked by their CRCs, and partitions for lying on the disk and not over each other. Where the primary table
// does not check, the one in the disk's last sector counts; without that either the error is ErrNoTable and says what
// is wrong with each.
func Read(r io.ReaderAt, size int64, sectorSize int) (*Table, error) {
	sizes := []int{sectorSize}
	switch sectorSize {
	case 512, 4096:
	case 0:
		sizes = []int{512, 4096}
	default:
		return nil, fmt.Errorf("read partition table: the sector size %d is neither 512 nor 4096", sectorSize)
	}
	var errs []error
	for _, backup := range []bool{false, true} {
		for _, s := range sizes {
			lba, name := int64(1), "primary"
			if backup {
				lba, name = size/int64(s)-1, "backup"
			}
			t, err := readAt(r, size, s, lba)
			if err == nil {
				t.FromBackup = backup
				return t, nil
			}
			errs = append(errs, fmt.Errorf("%s table with sectors of %d bytes: %w", name, s, err))
		}
	}
	return nil, fmt.Errorf("read partition table: %w: %w", ErrNoTable, errors.Join(errs...))
}

func readAt(r io.ReaderAt, size int64, sectorSize int, lba int64) (*Table, error) {
	s := int64(sectorSize)
	sectors := size / s
	if lba < 1 || sectors < 2+2*entrySectors(sectorSize)+2 {
		return nil, fmt.Errorf("the disk of %d bytes is too small for one", size)
	}
	h := make([]byte, sectorSize)
	if n, err := r.ReadAt(h, lba*s); n < len(h) {
		return nil, fmt.Errorf("read header: %w", err)
	}
	le := binary.LittleEndian
	if string(h[:8]) != "EFI PART" {
		return nil, fmt.Errorf("there is no header")
	}
	if v := le.Uint32(h[8:]); v != 0x10000 {
		return nil, fmt.Errorf("the header's revision is %#x", v)
	}
	n := le.Uint32(h[12:])
	if n < headerSize || n > uint32(sectorSize) {
		return nil, fmt.Errorf("the header says that it has %d bytes", n)
	}
	sum := le.Uint32(h[16:])
	le.PutUint32(h[16:], 0)
	if got := crc32.ChecksumIEEE(h[:n]); got != sum {
		return nil, fmt.Errorf("the header's checksum is %#08x, it should be %#08x", sum, got)
	}
	if got := le.Uint64(h[24:]); got != uint64(lba) {
		return nil, fmt.Errorf("the header says that it is in sector %d, but it is in %d", got, lba)
	}
	// From here on the checksum held, so what is wrong now was written so.
	alternate, first, last := le.Uint64(h[32:]), le.Uint64(h[40:]), le.Uint64(h[48:])
	entriesAt, count, each := le.Uint64(h[72:]), le.Uint32(h[80:]), le.Uint32(h[84:])
	end := alternate
	if lba > 1 {
		end = uint64(lba)
	}
	if end >= uint64(sectors) || first > last || last >= end {
		return nil, fmt.Errorf("it is for a disk of %d sectors, this one has %d; it was cut short, or is not whole yet", end+1, sectors)
	}
	if count == 0 || count > maxEntries || each < entrySize || each > 4096 || each%entrySize != 0 {
		return nil, fmt.Errorf("it has %d entries of %d bytes", count, each)
	}
	length := int64(count) * int64(each)
	if entriesAt < 2 || entriesAt > uint64(sectors) || length > (sectors-int64(entriesAt))*s {
		return nil, fmt.Errorf("its entries would be in sector %d", entriesAt)
	}
	e := make([]byte, length)
	if n, err := r.ReadAt(e, int64(entriesAt)*s); n < len(e) {
		return nil, fmt.Errorf("read entries: %w", err)
	}
	if sum, got := le.Uint32(h[88:]), crc32.ChecksumIEEE(e); got != sum {
		return nil, fmt.Errorf("the entries' checksum is %#08x, it should be %#08x", sum, got)
	}
	t := &Table{SectorSize: sectorSize, Size: (int64(end) + 1) * s, DiskGUID: GUID(h[56:72])}
	for i := range int(count) {
		p, err := parseEntry(e[i*int(each):], s)
		if err != nil {
			return nil, fmt.Errorf("partition %d: %w", i+1, err)
		}
		if p != nil {
			p.Number = i + 1
			t.Partitions = append(t.Partitions, *p)
		}
	}
	if err := t.check(int64(first)*s, (int64(last)+1)*s); err != nil {
		return nil, err
	}
	return t, nil
}

// parseEntry returns nil for an unused entry.
func parseEntry(e []byte, sector int64) (*Partition, error) {
	p := &Partition{Type: GUID(e[:16]), GUID: GUID(e[16:32])}
	if p.Type.IsZero() {
		return nil, nil
	}
	le := binary.LittleEndian
	first, last := le.Uint64(e[32:]), le.Uint64(e[40:])
	if first > last || last >= 1<<50 {
		return nil, fmt.Errorf("it goes from sector %d to %d", first, last)
	}
	p.Start, p.Size = int64(first)*sector, int64(last-first+1)*sector
	p.Attributes = le.Uint64(e[48:])
	var name []uint16
	for i := range nameUnits {
		u := le.Uint16(e[56+2*i:])
		if u == 0 {
			break
		}
		name = append(name, u)
	}
	p.Name = string(utf16.Decode(name))
	return p, nil
}
