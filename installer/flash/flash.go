// Package flash puts a disk image onto a target, so that the target is either whole and read back, or plainly not bootable.
//
// The order is what makes it safe. First the old partition table and what other programs left at head and tail is cleared,
// and synced: from there on nothing can be started. Then the image is written, without its first MiB and its backup
// table; all of it is read back from the medium; node.yaml goes onto the ESP; what the disk would start is worked out by
// the boot's own code and verified, block by block. Only then comes the partition table, its single sectors last. So a cut
// at any moment leaves the old system (before anything of the new one was written), nothing that starts, or the new
// system whole; and running it again always ends in the same.
//
// Look says of a target what it is, what is on it and why it must not be written to; it opens nothing for writing. Devices
// are package blockdev's, images package imagesource's, questions cmd's. Start with Run.
package flash

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"kingpost/installer/diskwrite"
	"kingpost/internal/blockmap"
	"kingpost/internal/gpt"
	"kingpost/internal/release"
)

// Input is what is to be put where.
type Input struct {
	// Source gives the image, Size is its size in bytes, -1 where only its own head can tell.
	Source diskwrite.Source
	Size   int64
	// Reader reads the image at any place, where it can be; then what would not boot is refused before the first write.
	Reader io.ReaderAt
	// Map and Digest (hex SHA-256 of all bytes) are what the image must be; nil and "" where nothing is known. Then its
	// digest is made and the receipt says that nothing has vouched for it.
	Map    *blockmap.Map
	Digest string

	Target diskwrite.Target
	// Config is node.yaml for the ESP; nil leaves the image's own, if it has one.
	Config []byte
	// Random makes the disk's own GUIDs.
	Random io.Reader
	// Time is the time of node.yaml.
	Time time.Time

	// Workers is how many pieces are under way at once; 0 is the engine's own number, 1 makes the order of writes
	// the same each time.
	Workers int
	// Progress, if not nil, is called by one goroutine at a time.
	Progress func(Progress)
}

// Progress is how far a phase is.
type Progress struct {
	Phase       string // PhaseWrite, PhaseReadBack, PhaseCheck
	Done, Total int64  // bytes
}

// Phases of Run, in order.
const (
	PhaseWrite    = "write"
	PhaseReadBack = "read back"
	PhaseCheck    = "check"
)

// Result is what came out.
type Result struct {
	Image Image
	// Digest is the SHA-256 of the image in hex, where it was made; Verified is what has vouched for the image.
	Digest   string
	Verified Verified
	// Map is the map of the image's bytes, each run of which was read back from the medium.
	Map *blockmap.Map
	// Written is how many bytes of the image were written; the rest is zeros or was put together here.
	Written int64
	// Table is the disk's partition table as it is now; nil for an ISO.
	Table *gpt.Table
	// Converted is set where the image was made for other sectors than the target's.
	Converted bool
}

// Verified is what vouched for an image.
type Verified string

// Values of Verified.
const (
	VerifiedMap    Verified = "map"    // every block was compared with a map that was known before
	VerifiedDigest Verified = "digest" // its SHA-256 was known before
	VerifiedNot    Verified = "no"     // nothing was known before
)

// IncompleteError says that the target has been written to and is not whole: nothing on it can be started.
type IncompleteError struct {
	Phase       string
	Done, Total int64 // bytes of that phase
	Err         error
}

func (e *IncompleteError) Error() string {
	return fmt.Sprintf("%v (while it was in the phase %q, %d of %d MiB)", e.Err, e.Phase, e.Done>>20, e.Total>>20)
}

func (e *IncompleteError) Unwrap() error { return e.Err }

// RefusedError says that the image cannot go onto this target. Nothing was written.
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string { return e.Reason }

// run is one Run.
type run struct {
	in   Input
	src  *source
	img  *Image
	at   Progress
	hold []diskwrite.Span
	tail diskwrite.Span // of the target: where the backup table goes
}

// Run flashes. Before the first write it reads the image's head and refuses what cannot end well (*RefusedError). After
// it, errors are an *IncompleteError.
func Run(ctx context.Context, in Input) (*Result, error) {
	r := &run{in: in, src: newSource(in)}
	var err error
	if r.img, err = r.src.identify(ctx, in.Size); err != nil {
		return nil, err
	}
	if err := Fits(r.img, in.Target.Size(), in.Target.SectorSize(), in.Config != nil); err != nil {
		return nil, err
	}
	if in.Map != nil && in.Map.Size != r.img.Size {
		return nil, &RefusedError{fmt.Sprintf("the image says that it has %d bytes, its block map is for %d: they do not belong together", r.img.Size, in.Map.Size)}
	}
	if in.Reader != nil && r.img.Kind == KindDisk {
		// Its top only: all of it is verified from the medium.
		if _, err := release.FindBoot(ctx, in.Reader, r.img.Size, release.DepthTop); err != nil {
			return nil, &RefusedError{fmt.Sprintf("the image would not boot: %v", err)}
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	res, err := r.write(ctx)
	if err != nil {
		return nil, &IncompleteError{r.at.Phase, r.at.Done, r.at.Total, err}
	}
	return res, nil
}

func (r *run) progress(phase string, done, total int64) {
	r.at = Progress{phase, done, total}
	if r.in.Progress != nil {
		r.in.Progress(r.at)
	}
}

func (r *run) write(ctx context.Context) (*Result, error) {
	t, size := r.in.Target, r.img.Size
	r.progress(PhaseWrite, 0, size)
	if err := diskwrite.ClearOld(t, size); err != nil {
		return nil, err
	}
	r.hold = []diskwrite.Span{{Off: 0, End: min(diskwrite.Piece, size)}}
	if r.img.Kind == KindDisk {
		r.hold = append(r.hold, diskwrite.Span{Off: size - gpt.Align, End: size})
	}
	job := diskwrite.Job{Source: r.src, Target: t, Size: size, Withhold: r.hold, Workers: r.in.Workers,
		Progress: func(done int64) { r.progress(PhaseWrite, done, size) }}
	w, err := job.Write(ctx)
	if err != nil {
		return nil, err
	}
	res := &Result{Image: *r.img, Map: w.Map, Written: w.Bytes}
	if err := r.verify(res); err != nil {
		return nil, err
	}
	if err := t.Sync(); err != nil {
		return nil, fmt.Errorf("sync: %w", err)
	}
	stage := r.stage(w.Held)
	if err := r.readBack(ctx, w.Map, stage); err != nil {
		return nil, err
	}
	r.progress(PhaseCheck, 0, size)
	if r.img.Kind == KindDisk {
		if err := r.personalise(ctx, stage, res); err != nil {
			return nil, err
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := r.commit(stage); err != nil {
		return nil, err
	}
	r.progress(PhaseCheck, size, size)
	return res, nil
}

// verify compares the image as it came with what was known of it.
func (r *run) verify(res *Result) error {
	res.Verified = VerifiedNot
	if r.in.Map != nil {
		if err := res.Map.Differs(r.in.Map); err != nil {
			return fmt.Errorf("%w is not the one that its block map is of: %w; fetch it again", diskwrite.ErrSource, err)
		}
		res.Verified = VerifiedMap
	}
	if r.src.sum == nil {
		return nil
	}
	res.Digest = fmt.Sprintf("%x", r.src.sum.Sum(nil))
	switch r.in.Digest {
	case "":
	case res.Digest:
		res.Verified = VerifiedDigest
	default:
		return fmt.Errorf("%w has the digest sha256:%s, it should have sha256:%s; fetch it again", diskwrite.ErrSource, res.Digest, r.in.Digest)
	}
	return nil
}

// readBack compares the medium with what was written, and works out meanwhile what it will start: that reads the same medium,
// and one waits for it while the other one hashes.
func (r *run) readBack(ctx context.Context, m *blockmap.Map, stage *diskwrite.Stage) error {
	var bootErr error
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if r.img.Kind == KindDisk {
		wg.Go(func() { _, bootErr = release.FindBoot(ctx, stage, r.img.Size, release.DepthWhole) })
	}
	t := r.in.Target
	r.progress(PhaseReadBack, 0, m.Size)
	back := diskwrite.ReadBack{Target: t, Map: m, Zero: r.hold, Workers: r.in.Workers,
		Progress: func(done int64) { r.progress(PhaseReadBack, done, m.Size) }}
	if err := back.Run(ctx); err != nil {
		return blame(err)
	}
	for _, s := range diskwrite.OldPlaces(t.Size(), m.Size) {
		if s.Off < m.Size {
			continue // read back with the image
		}
		if err := diskwrite.IsZero(ctx, t, s); err != nil {
			return blame(err)
		}
	}
	wg.Wait()
	return wouldNotBoot(ctx, bootErr)
}

// wouldNotBoot says what FindBoot's error means of an image that is on the medium as it is.
func wouldNotBoot(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fmt.Errorf("%w was written as it is, but would not boot: %w", diskwrite.ErrSource, err)
}

// blame says what a medium that does not give back what it was given means.
func blame(err error) error {
	var m *diskwrite.MismatchError
	if errors.As(err, &m) {
		return fmt.Errorf("%w; this medium does not keep what it is given (a counterfeit size, worn out, or a bad reader): use another one", err)
	}
	return err
}
