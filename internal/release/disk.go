package release

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"time"

	"kingpost/internal/fat32"
	"kingpost/internal/gpt"
)

// Contents is what goes into the partitions of a new disk.
type Contents struct {
	ESP []fat32.File
	// Time is the time of every file on the ESP.
	Time time.Time
	// RootA and Data are copied to the start of their partitions. Nil leaves one empty.
	RootA, Data *Content
}

// Content is bytes to copy.
type Content struct {
	io.ReaderAt
	Size int64 // bytes
}

// ESPLabel is the volume label of the ESP.
const ESPLabel = "KINGPOST"

// WriteDisk writes partition table, ESP and contents. d must read as zeros, as a new file of p.Size bytes does: blocks
// of zeros are skipped, so the image stays sparse. The table is written last, so that what was cut short is no disk.
// progress, if not nil, is called with bytes done of total.
func WriteDisk(ctx context.Context, d Disk, p Plan, c Contents, progress func(done, total int64)) error {
	if err := writeDisk(ctx, d, p, c, progress); err != nil {
		return fmt.Errorf("write disk: %w", err)
	}
	return nil
}

func writeDisk(ctx context.Context, d Disk, p Plan, c Contents, progress func(done, total int64)) error {
	if err := p.checkContents(c); err != nil {
		return err
	}
	copies := []struct {
		name string
		c    *Content
	}{{PartRootA, c.RootA}, {PartData, c.Data}}
	total := int64(1) // the ESP counts as something
	for _, q := range copies {
		total += max(q.c.size(), 0)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if esp, ok := p.Partition(PartESP); ok {
		err := fat32.Format(part{d, esp.Start, esp.Size}, fat32.Options{
			Size: esp.Size, SectorSize: p.SectorSize, Label: ESPLabel, Time: c.Time,
			VolumeID: binary.LittleEndian.Uint32(esp.GUID[:]),
		}, c.ESP)
		if err != nil {
			return fmt.Errorf("%s: %w", PartESP, err)
		}
	}
	done := int64(1)
	count := func(n int64) {
		done += n
		if progress != nil {
			progress(done, total)
		}
	}
	for _, q := range copies {
		if q.c == nil {
			continue
		}
		to, _ := p.Partition(q.name)
		if err := copySparse(ctx, d, to.Start, q.c, count); err != nil {
			return fmt.Errorf("%s: %w", q.name, err)
		}
	}
	return gpt.Write(d, &p.Table)
}

const (
	copyChunk  = 1 << 20
	sparseUnit = 4096
)

// copySparse copies c to w at offset at, leaving out blocks of zeros.
func copySparse(ctx context.Context, w io.WriterAt, at int64, c *Content, count func(n int64)) error {
	buf, zeros := make([]byte, copyChunk), make([]byte, sparseUnit)
	for off := int64(0); off < c.Size; {
		if err := ctx.Err(); err != nil {
			return err
		}
		b := buf[:min(copyChunk, c.Size-off)]
		if n, err := c.ReadAt(b, off); n < len(b) {
			if err == nil || err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return fmt.Errorf("read at byte %d of %d: %w", off, c.Size, err)
		}
		// Runs of blocks that are not zeros, each in one write.
		for i := 0; i < len(b); {
			unit := b[i:min(i+sparseUnit, len(b))]
			if bytes.Equal(unit, zeros[:len(unit)]) {
				i += len(unit)
				continue
			}
			end := i + len(unit)
			for end < len(b) {
				unit = b[end:min(end+sparseUnit, len(b))]
				if bytes.Equal(unit, zeros[:len(unit)]) {
					break
				}
				end += len(unit)
			}
			if _, err := w.WriteAt(b[i:end], at+off+int64(i)); err != nil {
				return fmt.Errorf("write at byte %d: %w", off+int64(i), err)
			}
			i = end
		}
		off += int64(len(b))
		count(int64(len(b)))
	}
	return nil
}
