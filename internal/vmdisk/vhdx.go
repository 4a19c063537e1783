package vmdisk

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"unicode/utf16"

	"kingpost/internal/gpt"
)

// Sizes and places of a vhdx file (MS-VHDX), in bytes.
const (
	vhdxHeader1  = 64 << 10
	vhdxHeader2  = 128 << 10
	vhdxRegions1 = 192 << 10
	vhdxRegions2 = 256 << 10
	vhdxLog      = 1 * mebi
	vhdxMetadata = 2 * mebi
	vhdxBAT      = 3 * mebi
	vhdxBlock    = mebi
	vhdxItems    = 64 << 10 // into the metadata
	maxVHDXSize  = 64 << 40

	vhdxLogical, vhdxPhysical = 512, 4096
	// vhdxChunk is how many blocks one sector bitmap is for.
	vhdxChunk = (1 << 23) * vhdxLogical / vhdxBlock

	vhdxPresent = 6 // PAYLOAD_BLOCK_FULLY_PRESENT
)

// WriteVHDX writes im as a dynamic vhdx: Hyper-V.
func WriteVHDX(ctx context.Context, w io.Writer, im Image) error {
	if err := writeVHDX(ctx, w, &im); err != nil {
		return fmt.Errorf("write vhdx: %w", err)
	}
	return nil
}

func writeVHDX(ctx context.Context, w io.Writer, im *Image) error {
	if err := im.check(maxVHDXSize); err != nil {
		return err
	}
	le := binary.LittleEndian
	data := im.blocks(vhdxBlock)
	blocks := im.Size / vhdxBlock
	entries := blocks + (blocks-1)/vhdxChunk // between chunks a place for a sector bitmap, which only differencing disks have
	batSize := ceil(entries*8, mebi) * mebi
	dataAt := vhdxBAT + batSize

	f := newFile(ctx, w)
	id := []byte("vhdxfile")
	for _, u := range utf16.Encode([]rune("Kingpost")) {
		id = le.AppendUint16(id, u)
	}
	regions := vhdxRegions(batSize)
	for _, p := range []struct {
		at int64
		b  []byte
	}{
		{0, id}, {vhdxHeader1, vhdxHead(im, 1)}, {vhdxHeader2, vhdxHead(im, 2)},
		{vhdxRegions1, regions}, {vhdxRegions2, regions}, {vhdxMetadata, vhdxMeta(im)},
	} {
		if err := f.pad(p.at); err != nil {
			return err
		}
		if err := f.write(p.b); err != nil {
			return err
		}
	}
	if err := f.pad(vhdxBAT); err != nil {
		return err
	}
	next := 0
	for i := range blocks {
		entry := uint64(0)
		if next < len(data) && data[next] == i {
			entry = uint64(dataAt+int64(next)*vhdxBlock) | vhdxPresent
			next++
		}
		b := le.AppendUint64(nil, entry)
		if (i+1)%vhdxChunk == 0 && i+1 < blocks {
			b = le.AppendUint64(b, 0)
		}
		if err := f.write(b); err != nil {
			return err
		}
	}
	if err := f.pad(dataAt); err != nil {
		return err
	}
	if err := f.data(im, data, vhdxBlock); err != nil {
		return err
	}
	return f.w.Flush()
}

// vhdxHead is one of the two headers; the one with the larger number counts. No log GUID: nothing is to be replayed.
func vhdxHead(im *Image, number uint64) []byte {
	le := binary.LittleEndian
	b := make([]byte, 4096)
	copy(b, "head")
	le.PutUint64(b[8:], number)
	copy(b[16:], im.ID[:]) // who wrote the file last
	copy(b[32:], im.ID[:]) // who wrote the disk last
	le.PutUint16(b[66:], 1)
	le.PutUint32(b[68:], mebi)
	le.PutUint64(b[72:], vhdxLog)
	return vhdxSum(b)
}

// vhdxSum puts the checksum of b into it.
func vhdxSum(b []byte) []byte {
	binary.LittleEndian.PutUint32(b[4:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// vhdxRegions is the region table: where the block allocation table and the metadata are.
func vhdxRegions(batSize int64) []byte {
	le := binary.LittleEndian
	b := make([]byte, 64<<10)
	copy(b, "regi")
	le.PutUint32(b[8:], 2)
	for i, r := range []struct {
		guid     string
		at, size int64
	}{
		{"2dc27766-f623-4200-9d64-115e9bfd4a08", vhdxBAT, batSize},
		{"8b7ca206-4790-4b9a-b8fe-575f050f886e", vhdxMetadata, mebi},
	} {
		e := b[16+32*i:]
		g := gpt.MustGUID(r.guid)
		copy(e, g[:])
		le.PutUint64(e[16:], uint64(r.at))
		le.PutUint32(e[24:], uint32(r.size))
		le.PutUint32(e[28:], 1) // required
	}
	return vhdxSum(b)
}

// vhdxMeta is the metadata: block size, disk size, the disk's identity and its sectors.
func vhdxMeta(im *Image) []byte {
	le := binary.LittleEndian
	const ofDisk, required = 2, 4
	b := make([]byte, vhdxItems)
	copy(b, "metadata")
	items := []struct {
		guid  string
		value []byte
		flags uint32
	}{
		{"caa16737-fa36-4d43-b3b6-33f0aa44e76b", le.AppendUint64(nil, vhdxBlock), required},
		{"2fa54224-cd1b-4876-b211-5dbed83bf4b8", le.AppendUint64(nil, uint64(im.Size)), ofDisk | required},
		{"beca12ab-b2e6-4523-93ef-c309e000c746", im.ID[:], ofDisk | required},
		{"8141bf1d-a96f-4709-ba47-f233a8faab5f", le.AppendUint32(nil, vhdxLogical), ofDisk | required},
		{"cda348c7-445d-4471-9cc9-e9885251c556", le.AppendUint32(nil, vhdxPhysical), ofDisk | required},
	}
	le.PutUint16(b[10:], uint16(len(items)))
	var values []byte
	for i, it := range items {
		e := b[32+32*i:]
		g := gpt.MustGUID(it.guid)
		copy(e, g[:])
		le.PutUint32(e[16:], uint32(vhdxItems+len(values)))
		le.PutUint32(e[20:], uint32(len(it.value)))
		le.PutUint32(e[24:], it.flags)
		values = append(values, it.value...)
	}
	return append(b, values...)
}
