package vmdisk

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"strings"
)

// Sizes of a sparse extent (VMware, Virtual Disk Format 5.0), in sectors of 512 bytes where nothing else is said.
const (
	vmdkGrain      = 128
	vmdkGrainBytes = vmdkGrain * 512
	vmdkEntries    = 512 // grains of a grain table
	vmdkTable      = vmdkEntries * 4 / 512
	vmdkDescriptor = 20
	maxVMDKSize    = 2<<40 - vmdkGrainBytes
)

// WriteVMDK writes im as a vmdk in one file, "monolithicSparse": VMware and VirtualBox. name is the file's, which stands
// in it.
func WriteVMDK(ctx context.Context, w io.Writer, im Image, name string) error {
	if err := writeVMDK(ctx, w, &im, name); err != nil {
		return fmt.Errorf("write vmdk: %w", err)
	}
	return nil
}

func writeVMDK(ctx context.Context, w io.Writer, im *Image, name string) error {
	if err := im.check(maxVMDKSize); err != nil {
		return err
	}
	text := vmdkText(im, name)
	if len(text) > vmdkDescriptor*512 || strings.ContainsAny(name, "\"\n\r") {
		return fmt.Errorf("the file's name %.60q cannot stand in it", name)
	}
	grains := im.blocks(vmdkGrainBytes)
	tables := ceil(im.Size/512, vmdkGrain*vmdkEntries)
	directory := ceil(tables*4, 512)
	// Both directories, each with its tables behind it.
	redundantAt := int64(1 + vmdkDescriptor)
	directoryAt := redundantAt + directory + tables*vmdkTable
	grainsAt := ceil(directoryAt+directory+tables*vmdkTable, vmdkGrain) * vmdkGrain

	le := binary.LittleEndian
	h := make([]byte, 512)
	copy(h, "KDMV")
	le.PutUint32(h[4:], 1)
	le.PutUint32(h[8:], 1|2) // the line ends below are there to be tested; there are redundant tables
	for at, v := range map[int]int64{
		12: im.Size / 512, 20: vmdkGrain, 28: 1, 36: vmdkDescriptor, 48: redundantAt, 56: directoryAt, 64: grainsAt,
	} {
		le.PutUint64(h[at:], uint64(v))
	}
	le.PutUint32(h[44:], vmdkEntries)
	copy(h[73:], "\n \r\n")

	f := newFile(ctx, w)
	if err := f.write(append(h, text...)); err != nil {
		return err
	}
	for _, at := range []int64{redundantAt, directoryAt} {
		if err := f.pad(at * 512); err != nil {
			return err
		}
		for i := range tables {
			if err := f.write(le.AppendUint32(nil, uint32(at+directory+i*vmdkTable))); err != nil {
				return err
			}
		}
		if err := f.pad((at + directory) * 512); err != nil {
			return err
		}
		next := 0
		for i := range tables * vmdkEntries {
			entry := uint32(0)
			if next < len(grains) && grains[next] == i {
				entry = uint32(grainsAt + int64(next)*vmdkGrain)
				next++
			}
			if err := f.write(le.AppendUint32(nil, entry)); err != nil {
				return err
			}
		}
	}
	if err := f.pad(grainsAt * 512); err != nil {
		return err
	}
	if err := f.data(im, grains, vmdkGrainBytes); err != nil {
		return err
	}
	return f.w.Flush()
}

// vmdkText is the descriptor. The geometry is what everybody writes for a disk on a SCSI controller above 1 GiB.
func vmdkText(im *Image, name string) string {
	const heads, sectors = 255, 63
	return fmt.Sprintf(`# Disk DescriptorFile
version=1
CID=%08x
parentCID=ffffffff
createType="monolithicSparse"

# Extent description
RW %d SPARSE "%s"

# The Disk Data Base
#DDB

ddb.virtualHWVersion = "4"
ddb.geometry.cylinders = "%d"
ddb.geometry.heads = "%d"
ddb.geometry.sectors = "%d"
ddb.adapterType = "lsilogic"
`, binary.BigEndian.Uint32(im.ID[:])&0x7fffffff, im.Size/512, name, min(im.Size/512/heads/sectors, 65535), heads, sectors)
}
