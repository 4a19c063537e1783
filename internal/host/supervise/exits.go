package supervise

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"kingpost/internal/mesh"
)

// exits reads the records that PID 1 writes of every orphan it reaps. Those of processes that are
// watched are kept until they were taken; all others are removed, since nobody else does.
type exits struct {
	dir string
	mu  sync.Mutex
	// watched processes, and the channel that is closed when a record came.
	watched map[procID]chan struct{}
	records map[procID]mesh.ExitRecord
}

type procID struct {
	pid   int
	start uint64
}

// maxExitRecord bounds a record file, in bytes.
const maxExitRecord = 64 << 10

func newExits(dir string) (*exits, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the folder of exit records: %w", err)
	}
	return &exits{dir: dir, watched: map[procID]chan struct{}{}, records: map[procID]mesh.ExitRecord{}}, nil
}

func (e *exits) file(id procID) string {
	return filepath.Join(e.dir, fmt.Sprintf("%d-%d.json", id.pid, id.start))
}

// watch says that the record of id will be asked for.
func (e *exits) watch(id procID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.watched[id] == nil {
		e.watched[id] = make(chan struct{})
	}
}

// take waits for the record of id, at most limit, and returns it. It stays on disk until drop, so that a
// host that dies in between leaves it to the next.
func (e *exits) take(ctx context.Context, id procID, limit time.Duration) (mesh.ExitRecord, bool) {
	e.watch(id)
	e.mu.Lock()
	ch := e.watched[id]
	e.mu.Unlock()
	e.read(filepath.Base(e.file(id)))
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-ch:
	case <-t.C:
	case <-ctx.Done():
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	r, ok := e.records[id]
	return r, ok
}

func (e *exits) drop(id procID) {
	e.mu.Lock()
	delete(e.watched, id)
	delete(e.records, id)
	e.mu.Unlock()
	os.Remove(e.file(id))
}

// read takes in one file. Unwatched records go at once.
func (e *exits) read(name string) {
	if !strings.HasSuffix(name, ".json") || strings.HasPrefix(name, ".") {
		return
	}
	path := filepath.Join(e.dir, name)
	st, err := os.Lstat(path)
	if err != nil {
		return
	}
	var r mesh.ExitRecord
	if st.Size() <= maxExitRecord {
		if b, rerr := os.ReadFile(path); rerr != nil {
			return
		} else {
			err = json.Unmarshal(b, &r)
		}
	}
	if err != nil || st.Size() > maxExitRecord {
		// Either it is being written and comes again, or it will never be whole.
		if time.Since(st.ModTime()) > time.Minute {
			os.Remove(path)
		}
		return
	}
	id := procID{r.PID, r.Start}
	e.mu.Lock()
	ch := e.watched[id]
	if ch == nil {
		e.mu.Unlock()
		os.Remove(path)
		return
	}
	if _, seen := e.records[id]; !seen {
		e.records[id] = r
		close(ch)
	}
	e.mu.Unlock()
}

// run follows the folder until ctx ends. What is to be kept must be watched before it is called.
func (e *exits) run(ctx context.Context) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("follow the exit records: %w", err)
	}
	f := os.NewFile(uintptr(fd), "inotify")
	defer f.Close()
	if _, err := unix.InotifyAddWatch(fd, e.dir, unix.IN_MOVED_TO|unix.IN_CLOSE_WRITE|unix.IN_ONLYDIR); err != nil {
		return fmt.Errorf("follow the exit records in %s: %w", e.dir, err)
	}
	stop := context.AfterFunc(ctx, func() { f.Close() })
	defer stop()
	buf := make([]byte, 4096)
	for {
		// The names in the events are not needed: the folder is short, and an overflow loses none this way.
		es, err := os.ReadDir(e.dir)
		if err != nil {
			return fmt.Errorf("read the exit records: %w", err)
		}
		for _, de := range es {
			e.read(de.Name())
		}
		if _, err := f.Read(buf); err != nil {
			if ctx.Err() != nil || errors.Is(err, fs.ErrClosed) {
				return nil
			}
			return fmt.Errorf("follow the exit records: %w", err)
		}
	}
}
