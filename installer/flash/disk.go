package flash

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"path"

	"kingpost/installer/diskwrite"
	"kingpost/internal/fat32"
	"kingpost/internal/gpt"
	"kingpost/internal/release"
)

// stage is the target with its head, as the image has it, and its empty tail in memory.
func (r *run) stage(held map[int64][]byte) *diskwrite.Stage {
	t := r.in.Target
	places := map[int64][]byte{0: held[0]}
	if r.img.Kind == KindDisk {
		s := int64(t.SectorSize())
		end := t.Size() / s * s
		r.tail = diskwrite.Span{Off: end - gpt.Align, End: end}
		places[r.tail.Off] = make([]byte, gpt.Align)
	}
	return diskwrite.NewStage(t, places)
}

// personalise makes the disk one of its own: partition table to the real end and for the real sectors, new GUIDs, node.yaml.
// Then it works out what the disk would start.
func (r *run) personalise(ctx context.Context, stage *diskwrite.Stage, res *Result) error {
	t := *r.img.Table
	t.Partitions = append([]gpt.Partition(nil), r.img.Table.Partitions...)
	t.Size, t.SectorSize = r.tail.End, r.in.Target.SectorSize()
	if err := release.NewGUIDs(&t, r.in.Random); err != nil {
		return err
	}
	bootCode := make([]byte, 440)
	if _, err := stage.ReadAt(bootCode, 0); err != nil {
		return err
	}
	if err := gpt.Write(stage, &t); err != nil {
		return err
	}
	if _, err := stage.WriteAt(bootCode, 0); err != nil {
		return err
	}
	var expect []fat32.File
	if t.SectorSize != r.img.Table.SectorSize {
		var err error
		if expect, err = r.convertESP(stage, &t); err != nil {
			return fmt.Errorf("make the ESP anew for sectors of %d bytes: %w", t.SectorSize, err)
		}
		res.Converted = true
	}
	if r.in.Config != nil {
		if err := release.WriteNodeConfig(stage, t.Size, r.in.Config, r.in.Time); err != nil {
			return err
		}
		expect = replace(expect, fat32.File{Path: release.ESPNodeConfig, Data: r.in.Config})
	}
	if err := r.in.Target.Sync(); err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	if err := compareESP(stage, &t, expect); err != nil {
		return err
	}
	// The root was verified when it was read back, and lies where it lay.
	_, err := release.FindBoot(ctx, stage, t.Size, release.DepthPrograms)
	if err := wouldNotBoot(ctx, err); err != nil {
		return err
	}
	res.Table = &t
	return nil
}

func replace(files []fat32.File, f fat32.File) []fat32.File {
	for i := range files {
		if files[i].Path == f.Path {
			files[i] = f
			return files
		}
	}
	return append(files, f)
}

// convertESP makes the ESP anew, with the same files: a FAT file system cannot be mounted on a disk whose sectors are
// larger than its own (UEFI specification 2.10, section 13.3; Linux refuses too).
func (r *run) convertESP(stage *diskwrite.Stage, t *gpt.Table) ([]fat32.File, error) {
	esp, err := release.OpenESP(stage, t)
	if err != nil {
		return nil, err
	}
	files, err := readTree(esp, "", 0)
	if err != nil {
		return nil, err
	}
	part := espOf(t)
	if err := stage.Zero(part.Start, part.Size); err != nil {
		return nil, err
	}
	d := &section{stage, part.Start, part.Size}
	return files, fat32.Format(d, fat32.Options{Size: part.Size, SectorSize: t.SectorSize, Label: release.ESPLabel, Time: r.in.Time,
		VolumeID: binary.LittleEndian.Uint32(part.GUID[:])}, files)
}

func espOf(t *gpt.Table) gpt.Partition {
	for _, p := range t.Partitions {
		if p.Name == release.PartESP {
			return p
		}
	}
	return gpt.Partition{}
}

// maxDepth bounds folders of an ESP.
const maxDepth = 16

func readTree(esp *fat32.FS, dir string, depth int) ([]fat32.File, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("%s: folders lie too deep", dir)
	}
	names, err := esp.List(dir)
	if err != nil {
		return nil, err
	}
	var out []fat32.File
	for _, i := range names {
		p := path.Join(dir, i.Name)
		if i.Dir {
			below, err := readTree(esp, p, depth+1)
			if err != nil {
				return nil, err
			}
			out = append(out, below...)
			continue
		}
		data, err := esp.ReadFile(p, math.MaxUint32)
		if err != nil {
			return nil, err
		}
		out = append(out, fat32.File{Path: p, Data: data})
	}
	return out, nil
}

// compareESP reads files back from the ESP.
func compareESP(stage *diskwrite.Stage, t *gpt.Table, files []fat32.File) error {
	if len(files) == 0 {
		return nil
	}
	esp, err := release.OpenESP(stage, t)
	if err != nil {
		return err
	}
	for _, f := range files {
		got, err := esp.ReadFile(f.Path, int64(len(f.Data)))
		if err == nil && !bytes.Equal(got, f.Data) {
			err = errors.New("it has other bytes than were written")
		}
		if err != nil {
			return fmt.Errorf("read back %s from the ESP: %w", f.Path, err)
		}
	}
	return nil
}

// section is a part of a stage.
type section struct {
	s           *diskwrite.Stage
	start, size int64
}

func (d *section) ReadAt(p []byte, off int64) (int, error) { return d.s.ReadAt(p, d.start+off) }

func (d *section) WriteAt(p []byte, off int64) (int, error) {
	if off < 0 || off+int64(len(p)) > d.size {
		return 0, fmt.Errorf("write of %d bytes at %d is outside the partition", len(p), off)
	}
	return d.s.WriteAt(p, d.start+off)
}

// commit writes what makes the disk a disk. Everything else is on the medium and was read back, so from the first of these
// steps that has an effect on, the disk is the new one, whole. The backup comes first: a node repairs its primary table from
// it, but not the other way round. In each table the header, a single sector, comes when its entries are there.
func (r *run) commit(stage *diskwrite.Stage) error {
	s := int64(r.in.Target.SectorSize())
	head := diskwrite.Span{Off: 0, End: min(diskwrite.Piece, r.img.Size)}
	var places []diskwrite.Span
	if r.tail.End > 0 {
		places = append(places, diskwrite.Span{Off: r.tail.Off, End: r.tail.End - s}, diskwrite.Span{Off: r.tail.End - s, End: r.tail.End})
	}
	places = append(places, diskwrite.Span{Off: 2 * s, End: head.End}, diskwrite.Span{Off: 0, End: s}, diskwrite.Span{Off: s, End: 2 * s})
	for _, p := range places {
		if err := stage.Commit(p); err != nil {
			return fmt.Errorf("partition table: %w", blame(err))
		}
	}
	return nil
}
