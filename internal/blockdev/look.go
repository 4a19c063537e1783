package blockdev

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"strings"

	"kingpost/internal/gpt"
)

// Signature is something that another program would take a disk or a partition for.
type Signature struct {
	Type  string `json:"type"`  // "ext4", "LVM", "GPT"
	Off   int64  `json:"off"`   // bytes, where it was found
	Label string `json:"label"` // of a file system; may be empty
}

func (s Signature) String() string {
	if s.Label != "" {
		return fmt.Sprintf("%s %q", s.Type, s.Label)
	}
	return s.Type
}

// Contents is what is on a disk.
type Contents struct {
	Signatures []Signature `json:"signatures,omitempty"`
	Partitions []Content   `json:"partitions,omitempty"`
	// Table is the GPT, nil where there is no valid one.
	Table *gpt.Table `json:"-"`
}

// Content is a partition and what is in it.
type Content struct {
	Number     int         `json:"number"`
	Name       string      `json:"name,omitempty"`
	Size       int64       `json:"size"` // bytes
	Signatures []Signature `json:"signatures,omitempty"`
}

// Look says what is on a disk of size bytes. What cannot be read is passed over: the answer is for people who are about to
// overwrite it.
func Look(r io.ReaderAt, size int64) Contents {
	c := Contents{Signatures: Signatures(r, size)}
	t, err := gpt.Read(r, size, 0)
	if err != nil {
		c.Partitions = mbr(r, size)
		return c
	}
	kind := "GPT"
	if t.FromBackup {
		kind = "GPT (the backup only)"
	}
	c.Table = t
	c.Signatures = append([]Signature{{Type: kind, Off: int64(t.SectorSize)}}, c.Signatures...)
	for _, p := range t.Partitions {
		c.Partitions = append(c.Partitions, Content{p.Number, clean(p.Name), p.Size, Signatures(io.NewSectionReader(r, p.Start, p.Size), p.Size)})
	}
	return c
}

// mbr reads the four partitions of a disk without a GPT.
func mbr(r io.ReaderAt, size int64) []Content {
	b := make([]byte, 512)
	if n, _ := r.ReadAt(b, 0); n < len(b) || b[510] != 0x55 || b[511] != 0xaa {
		return nil
	}
	var out []Content
	for i := range 4 {
		e := b[446+16*i:]
		start, n := int64(binary.LittleEndian.Uint32(e[8:]))*512, int64(binary.LittleEndian.Uint32(e[12:]))*512
		// A boot sector of a file system has code here, not partitions: their flags and places give it away.
		if e[0]&0x7f != 0 || e[4] == 0 || e[4] == 0xee || start == 0 || n == 0 || start > size {
			continue
		}
		n = min(n, size-start)
		out = append(out, Content{Number: i + 1, Size: n, Signatures: Signatures(io.NewSectionReader(r, start, n), n)})
	}
	return out
}

// fixed are signatures at one place from the start; label is where a name is, if it has one.
var fixed = []struct {
	kind         string
	off          int64
	magic        string
	label, bytes int64
}{
	{"ext2, ext3 or ext4", 0x438, "\x53\xef", 0x478, 16},
	{"XFS", 0, "XFSB", 108, 12},
	{"btrfs", 0x10040, "_BHRfS_M", 0x1012b, 64},
	{"F2FS", 0x400, "\x10\x20\xf5\xf2", 0, 0},
	{"FAT", 0x52, "FAT32   ", 71, 11},
	{"FAT", 0x36, "FAT1", 43, 11},
	{"NTFS", 3, "NTFS    ", 0, 0},
	{"exFAT", 3, "EXFAT   ", 0, 0},
	{"ISO 9660", 32769, "CD001", 32808, 32},
	{"EROFS", 0x400, "\xe2\xe1\xf5\xe0", 0x440, 16},
	{"SquashFS", 0, "hsqs", 0, 0},
	{"LUKS", 0, "LUKS\xba\xbe", 24, 48},
	{"LUKS", 0x4000, "SKUL\xba\xbe", 0, 0},
	{"swap", 4086, "SWAPSPACE2", 0x41c, 16},
	{"swap", 4086, "SWAP-SPACE", 0, 0},
	{"swap", 65526, "SWAPSPACE2", 0, 0},
	{"MD array", 0, "\xfc\x4e\x2b\xa9", 32, 32},
	{"MD array", 4096, "\xfc\x4e\x2b\xa9", 4096 + 32, 32},
	{"bcache", 0x1018, "\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81", 0, 0},
	{"Ceph OSD", 0, "bluestore block device", 0, 0},
	{"LVM", 0x218, "LVM2 001", 0, 0},
	{"LVM", 0x18, "LVM2 001", 0, 0},
	{"LVM", 0x418, "LVM2 001", 0, 0},
	{"LVM", 0x618, "LVM2 001", 0, 0},
}

// Signatures finds what a disk or partition of size bytes would be taken for, partition tables aside.
func Signatures(r io.ReaderAt, size int64) []Signature {
	var out []Signature
	read := func(off, n int64) []byte {
		if off < 0 || n <= 0 || off+n > size {
			return nil
		}
		b := make([]byte, n)
		if k, _ := r.ReadAt(b, off); int64(k) < n {
			return nil
		}
		return b
	}
	for _, f := range fixed {
		if string(read(f.off, int64(len(f.magic)))) != f.magic {
			continue
		}
		label, _, _ := bytes.Cut(read(f.label, f.bytes), []byte{0})
		out = append(out, Signature{f.kind, f.off, strings.TrimRight(clean(string(label)), " ")})
	}
	// At the end: MD 1.0 (8 KiB before it, on 4 KiB), MD 0.90 (the last whole 64 KiB), firmware RAID (the last sectors).
	for _, f := range []struct {
		kind, magic string
		off         int64
	}{
		{"MD array", "\xfc\x4e\x2b\xa9", (size - 8192) &^ 4095},
		{"MD array", "\xfc\x4e\x2b\xa9", size&^65535 - 65536},
		{"MD array", "\xa9\x2b\x4e\xfc", size&^65535 - 65536},
		{"firmware RAID (DDF)", "\xde\x11\xde\x11", size - 512},
		{"firmware RAID (Intel)", "Intel Raid ISM Cfg Sig. ", size - 1024},
	} {
		if string(read(f.off, int64(len(f.magic)))) == f.magic {
			out = append(out, Signature{Type: f.kind, Off: f.off})
		}
	}
	return append(out, zfs(read, size)...)
}

// zfs looks for a valid uberblock in each of the four labels (ZFS On-Disk Specification, section 1.3): 256 KiB each, two at
// the start, two at the end, uberblocks in the second half of one.
func zfs(read func(off, n int64) []byte, size int64) []Signature {
	const label = 256 << 10
	var out []Signature
	for _, at := range []int64{0, label, size&^(label-1) - 2*label, size&^(label-1) - label} {
		b := read(at+label/2, label/2)
		for i := 0; i+8 <= len(b); i += 1024 {
			m := binary.LittleEndian.Uint64(b[i:])
			if m == 0x00bab10c || m == 0x0cb1ba0000000000 {
				out = append(out, Signature{Type: "ZFS", Off: at + label/2 + int64(i)})
				break
			}
		}
	}
	return out
}
