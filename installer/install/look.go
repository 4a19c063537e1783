package install

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"kingpost/internal/blockdev"
	"kingpost/internal/fat32"
	"kingpost/internal/gpt"
	"kingpost/internal/mesh/hostapi"
	"kingpost/internal/release"
)

// lookTime is how long one disk may take: a dying one must not keep the others from being shown.
const lookTime = 8 * time.Second

// Look describes a machine's disks. open opens a disk to be read. A disk that cannot be read, or not in time, is told of as
// Unread.
func Look(ctx context.Context, inv blockdev.Inventory, open func(path string) (io.ReaderAt, io.Closer, error)) ([]Found, error) {
	all, err := inv.Drives()
	if err != nil {
		return nil, err
	}
	var out []Found
	for _, d := range all {
		f := Found{Survey: blockdev.Survey{Disk: d}}
		if f.Uses, err = inv.Uses(d); err != nil {
			return nil, err
		}
		if d.Size > 0 {
			f.read(ctx, open)
		}
		out = append(out, f)
	}
	return out, nil
}

func (f *Found) read(ctx context.Context, open func(path string) (io.ReaderAt, io.Closer, error)) {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	r, c, err := open(f.Path)
	if err != nil {
		f.Unread = err.Error()
		return
	}
	defer c.Close()
	w := &watched{ctx: ctx, r: r}
	f.Contents = blockdev.Look(w, f.Size)
	if t := f.Contents.Table; t != nil && release.IsKingpost(t) {
		f.Kingpost = installed(ctx, w, f.Size, t)
	}
	if err := w.failed(); err != nil {
		f.Unread = err.Error()
	}
}

func installed(ctx context.Context, r io.ReaderAt, size int64, t *gpt.Table) *hostapi.InstalledDisk {
	k := &hostapi.InstalledDisk{DiskGUID: t.DiskGUID.String()}
	if m, err := readMark(r, t); err == nil {
		k.Medium, k.Root, k.Config = m.Medium, m.Root, m.Config
	}
	b, err := release.FindBoot(ctx, r, size, release.DepthTop)
	if err != nil {
		k.Trouble = err.Error()
		return k
	}
	k.Starts = b.Entry.ID
	return k
}

// readMark reads the mark on a disk's ESP.
func readMark(r io.ReaderAt, t *gpt.Table) (Mark, error) {
	esp, err := release.OpenESP(fat32.ReadOnly(r), t)
	if err != nil {
		return Mark{}, err
	}
	b, err := esp.ReadFile(MarkFile, maxMark)
	if err != nil {
		return Mark{}, err
	}
	return ParseMark(b)
}

// watched remembers the first read that failed, and lets none begin after ctx is done.
type watched struct {
	ctx context.Context
	r   io.ReaderAt

	mu  sync.Mutex
	err error
}

// ReadAt implements io.ReaderAt.
func (w *watched) ReadAt(p []byte, off int64) (int, error) {
	if w.ctx.Err() != nil {
		return 0, w.fail(fmt.Errorf("reading it took longer than %v", lookTime))
	}
	n, err := w.r.ReadAt(p, off)
	if err != nil && !errors.Is(err, io.EOF) {
		w.fail(err)
	}
	return n, err
}

func (w *watched) fail(err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = err
	}
	return err
}

func (w *watched) failed() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}
