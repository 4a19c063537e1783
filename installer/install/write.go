package install

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"kingpost/installer/diskwrite"
	"kingpost/internal/fat32"
	"kingpost/internal/gpt"
	"kingpost/internal/mesh/hostapi"
	"kingpost/internal/release"
)

// Input is one installation.
type Input struct {
	Medium *Medium
	Target diskwrite.Target
	// Partitions are what the plan says that the disk will have.
	Partitions []hostapi.PlannedPartition
	Random     io.Reader // makes the disk's own GUIDs
	Time       time.Time // of the files on the ESP
	// Workers is how many pieces are under way at once; 0 is the engine's own number, 1 makes the order of writes the
	// same each time.
	Workers int
	// Progress, if not nil, is called by one goroutine at a time.
	Progress func(phase string, done, total int64) // bytes
}

// Phases of Write, in order.
const (
	PhaseWrite    = "write"
	PhaseReadBack = "read back"
	PhaseCheck    = "check"
)

// Result is what came out.
type Result struct {
	Table *gpt.Table
	// OldESP is the GUID of the ESP that the disk had before; zero for none. The firmware may have boot entries for it.
	OldESP gpt.GUID
}

// IncompleteError says that the disk has been written to and is not whole: nothing on it can be started. The same
// installation again makes it whole.
type IncompleteError struct {
	Phase string
	Err   error
}

func (e *IncompleteError) Error() string {
	return fmt.Sprintf("%v (in the phase %q); nothing on the disk can be started until the same installation has run to its end", e.Err, e.Phase)
}

func (e *IncompleteError) Unwrap() error { return e.Err }

// writer is one Write.
type writer struct {
	in    Input
	table *gpt.Table // that the disk will have
	old   *gpt.Table // that it has, where its data partition is kept
	res   Result
	phase string
}

// Write installs. The order is what makes it safe:
//
//  1. What can be started on the disk goes: without a data partition to keep its head and tail are cleared; with one its
//     table is replaced by one that has this partition alone. Synced.
//  2. ESP, root-A, an empty root-B and, where none is kept, an empty data partition are written and read back from the
//     medium, and the boot's own code verifies every block of the root.
//  3. The table, backup first, each step synced.
//
// So a cut leaves the old system, nothing that starts, or the new one whole; a data partition that is to be kept is named
// by a valid table at every moment; and doing it again ends in the same. Errors after the first write are an
// *IncompleteError.
func Write(ctx context.Context, in Input) (*Result, error) {
	w := &writer{in: in}
	if err := w.prepare(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	if err := w.run(ctx); err != nil {
		return nil, &IncompleteError{w.phase, err}
	}
	return &w.res, nil
}

// prepare works out the new table and refuses what cannot end well.
func (w *writer) prepare() error {
	t, sector := w.in.Target, int64(w.in.Target.SectorSize())
	if len(w.in.Partitions) != 4 {
		return fmt.Errorf("a plan of %d partitions", len(w.in.Partitions))
	}
	plan, err := release.NewPlan(release.DiskSpec{Arch: w.in.Medium.Arch, SectorSize: int(sector), ESPSize: w.in.Partitions[0].Size, RootSize: w.in.Partitions[1].Size})
	if err != nil {
		return err
	}
	table := plan.Table
	table.Size = t.Size() / sector * sector
	kept := false
	for i := range table.Partitions {
		q, p := w.in.Partitions[i], &table.Partitions[i]
		if p.Name != q.Name {
			return fmt.Errorf("the plan's partition %d is called %q", i+1, q.Name)
		}
		p.Start, p.Size = q.FirstLBA*sector, q.Size
		kept = kept || q.Kept
	}
	if err := release.NewGUIDs(&table, w.in.Random); err != nil {
		return err
	}
	old, err := gpt.Read(t, t.Size(), int(sector))
	if err == nil {
		for _, p := range old.Partitions {
			if p.Name == release.PartESP {
				w.res.OldESP = p.GUID
			}
		}
	}
	data := &table.Partitions[3]
	if kept {
		if err != nil {
			return fmt.Errorf("the plan keeps a data partition, but the disk's table cannot be read: %w", err)
		}
		w.old = old
		before, ok := w.oldData()
		if !ok || before.Start != data.Start || before.Size != data.Size {
			return errors.New("the data partition that the plan keeps is not on the disk; look at the disks again")
		}
		data.GUID, data.Type, data.Attributes = before.GUID, before.Type, before.Attributes
	} else if data.Size < w.in.Medium.dataSize {
		return fmt.Errorf("the data partition would have %s, an empty one of this release has %s; use a larger disk", size(data.Size), size(w.in.Medium.dataSize))
	}
	if root := table.Partitions[1].Size; w.in.Medium.rootSize > root {
		return fmt.Errorf("a slot would have %s, the root has %s", size(root), size(w.in.Medium.rootSize))
	}
	w.table = &table
	return gpt.Write(w.staged(), w.table) // into memory: what it refuses is known before the first write
}

func (w *writer) oldData() (gpt.Partition, bool) {
	for _, p := range w.old.Partitions {
		if p.Name == release.PartData {
			return p, true
		}
	}
	return gpt.Partition{}, false
}

// staged is the target with room for the new table in memory.
func (w *writer) staged() *diskwrite.Stage {
	head, tail := tablePlaces(w.table)
	return diskwrite.NewStage(w.in.Target, map[int64][]byte{head.Off: make([]byte, head.End-head.Off), tail.Off: make([]byte, tail.End-tail.Off)})
}

// tablePlaces are where a table is: MBR, header and entries at the head, entries and header at the tail.
func tablePlaces(t *gpt.Table) (head, tail diskwrite.Span) {
	s := int64(t.SectorSize)
	entries := (tableEntries + s - 1) / s * s
	return diskwrite.Span{Off: 0, End: 2*s + entries}, diskwrite.Span{Off: t.Size - s - entries, End: t.Size}
}

// tableEntries is what 128 entries of a table take, in bytes (UEFI specification 2.10, section 5.3.3).
const tableEntries = 128 * 128

func (w *writer) progress(phase string, done, total int64) {
	w.phase = phase
	if w.in.Progress != nil {
		w.in.Progress(phase, done, total)
	}
}

func (w *writer) run(ctx context.Context) error {
	t, m := w.in.Target, w.in.Medium
	esp, rootA, rootB, data := w.table.Partitions[0], w.table.Partitions[1], w.table.Partitions[2], w.table.Partitions[3]
	end := rootB.Start + rootB.Size
	from := esp.Start
	parts := []part{{rootA.Start - from, m.rootSize, func() (io.ReadCloser, error) {
		return io.NopCloser(io.NewSectionReader(m.root, 0, m.rootSize)), nil
	}}}
	if w.old == nil {
		end = data.Start + m.dataSize
		parts = append(parts, part{data.Start - from, m.dataSize, m.openData})
	}
	w.progress(PhaseWrite, 0, end-from)
	if err := w.unmake(end); err != nil {
		return err
	}
	place := shifted{t, from}
	img := &image{size: end - from, parts: parts}
	job := diskwrite.Job{Source: img, Target: place, Size: end - from, Workers: w.in.Workers, Progress: func(done int64) { w.progress(PhaseWrite, done, end-from) }}
	written, err := job.Write(ctx)
	if err = errors.Join(err, img.close()); err != nil {
		return err
	}
	if err := t.Sync(); err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	back := diskwrite.ReadBack{Target: place, Map: written.Map, Workers: w.in.Workers, Progress: func(done int64) { w.progress(PhaseReadBack, done, end-from) }}
	if err := back.Run(ctx); err != nil {
		return blame(err)
	}
	if w.old == nil {
		for _, s := range diskwrite.OldPlaces(t.Size(), end) {
			if s.Off >= end || s.Off < from {
				if err := diskwrite.IsZero(ctx, t, s); err != nil {
					return blame(err)
				}
			}
		}
	}
	w.progress(PhaseCheck, 0, end-from)
	if err := w.makeESP(esp); err != nil {
		return err
	}
	if err := w.check(ctx); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	if err := w.commit(); err != nil {
		return err
	}
	w.progress(PhaseCheck, end-from, end-from)
	return nil
}

// unmake takes away what can be started, before anything that it would start is written over.
func (w *writer) unmake(end int64) error {
	t := w.in.Target
	if w.old == nil {
		return diskwrite.ClearOld(t, end)
	}
	kept, _ := w.oldData()
	only := *w.old
	only.Partitions, only.Size, only.FromBackup = []gpt.Partition{kept}, w.table.Size, false
	if err := gpt.Rewrite(t, &only, t.Sync); err != nil {
		return err
	}
	// The old backup would be taken for a table if the disk were ever cut to its old size.
	_, tail := tablePlaces(w.old)
	_, place := tablePlaces(w.table)
	if n := min(tail.End, place.Off) - tail.Off; n > 0 && tail.Off >= kept.Start+kept.Size {
		if err := t.Zero(tail.Off, n); err != nil {
			return fmt.Errorf("clear the old backup table: %w", err)
		}
		if err := t.Sync(); err != nil {
			return fmt.Errorf("sync: %w", err)
		}
	}
	return nil
}

// makeESP makes the ESP, in the disk's own sectors.
func (w *writer) makeESP(esp gpt.Partition) error {
	t := w.in.Target
	d := section{t, esp.Start, esp.Size}
	err := fat32.Format(d, fat32.Options{Size: esp.Size, SectorSize: t.SectorSize(), Label: release.ESPLabel, Time: w.in.Time,
		VolumeID: binary.LittleEndian.Uint32(esp.GUID[:])}, nil)
	if err != nil {
		return err
	}
	fs, err := fat32.Open(d)
	if err != nil {
		return err
	}
	if err := w.in.Medium.writeESP(fs, func(name string, data []byte) error { return fs.WriteFile(name, data, w.in.Time) }); err != nil {
		return fmt.Errorf("write the ESP: %w", err)
	}
	if err := t.Sync(); err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	return nil
}

// check has the boot's own code work out what the disk would start, from the medium.
func (w *writer) check(ctx context.Context) error {
	stage := w.staged()
	if err := gpt.Write(stage, w.table); err != nil {
		return err
	}
	esp, err := release.OpenESP(fat32.ReadOnly(w.in.Target), w.table)
	if err != nil {
		return err
	}
	if err := w.in.Medium.compareESP(esp); err != nil {
		return blame(err)
	}
	b, err := release.FindBoot(ctx, stage, w.table.Size, release.DepthWhole)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return fmt.Errorf("the disk would not boot: %w", err)
	case b.Cmdline.RootHash != w.in.Medium.RootHash:
		return fmt.Errorf("the disk would start %s and not what was installed", b.Entry.ID)
	}
	return nil
}

// commit writes the table. Everything else is on the medium and was read back, so from the first step that has an effect on,
// the disk is the new one, whole.
func (w *writer) commit() error {
	t := w.in.Target
	if err := gpt.Rewrite(t, w.table, t.Sync); err != nil {
		return err
	}
	got, err := gpt.Read(t, t.Size(), t.SectorSize())
	if err != nil {
		return fmt.Errorf("read back: %w", blame(err))
	}
	if got.FromBackup || got.DiskGUID != w.table.DiskGUID || len(got.Partitions) != len(w.table.Partitions) {
		return blame(&diskwrite.MismatchError{Off: int64(t.SectorSize())})
	}
	w.res.Table = w.table
	return nil
}

// blame says what a disk that does not give back what it was given means.
func blame(err error) error {
	var m *diskwrite.MismatchError
	if errors.As(err, &m) {
		return fmt.Errorf("%w; this disk does not keep what it is given: it fails, or is badly connected; use another one", err)
	}
	return err
}
