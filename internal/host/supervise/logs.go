package supervise

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"kingpost/internal/mesh"
)

// Logs are text: each line starts with the time it began to arrive, in logTime, and a blank, then
// carries the bytes as they were written. A resource keeps at most logFiles files, which share its bound.
const (
	logTime   = "2006-01-02T15:04:05.000000Z"
	logFiles  = 4
	logBuffer = 256 << 10 // bytes: how much the FIFO holds, and one read of it
)

// logBuffers are shared: a log that is silent holds none.
var logBuffers = sync.Pool{New: func() any { return new([logBuffer]byte) }}

// logLines are what reads become with their times.
var logLines = sync.Pool{New: func() any { b := make([]byte, 0, logBuffer+logBuffer/2); return &b }}

// logWriter carries a resource's FIFO into its files.
type logWriter struct {
	dir  string
	fifo *os.File
	now  func() time.Time
	warn func(format string, a ...any)
	done chan struct{}

	mu    sync.Mutex
	file  *os.File
	size  int64
	most  int64         // of one file, in bytes
	mid   bool          // the last byte was no newline
	grown chan struct{} // closed when something was written
	err   error         // why nothing can be written, said once
}

// makeFIFO makes the FIFO if it is not there. PID 1 and earlier hosts may hold it open.
func makeFIFO(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := unix.Mkfifo(path, 0o600); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("make the log pipe %s: %w", path, err)
	}
	return nil
}

// startLog reads fifo into dir until close.
func startLog(fifo, dir string, now func() time.Time, warn func(string, ...any)) (*logWriter, error) {
	if err := makeFIFO(fifo); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("make the log folder: %w", err)
	}
	// Open for writing as well: then the FIFO never ends, however often its writers come and go.
	f, err := os.OpenFile(fifo, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open the log pipe: %w", err)
	}
	// A larger pipe is fewer changes between its two ends. Where it is refused the pipe is as it was.
	if rc, err := f.SyscallConn(); err == nil {
		_ = rc.Control(func(fd uintptr) { _, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, logBuffer) })
	}
	l := &logWriter{dir: dir, fifo: f, now: now, warn: warn, done: make(chan struct{}), grown: make(chan struct{}), most: mesh.DefaultLog / logFiles}
	go l.pump()
	return l, nil
}

// bound changes how much is kept of the log, in bytes.
func (l *logWriter) bound(most int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.most = max(most, mesh.MinLog) / logFiles
}

// close takes in what is in the FIFO still and ends the log's goroutine.
func (l *logWriter) close() {
	l.fifo.SetReadDeadline(time.Now()) // wakes the read; what is there is read without waiting
	<-l.done
	l.fifo.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		l.file.Close()
		l.file = nil
	}
}

func (l *logWriter) pump() {
	defer close(l.done)
	rc, err := l.fifo.SyscallConn()
	if err != nil {
		return
	}
	for {
		// The buffer is taken only when there is something to read.
		n, buf := 0, (*[logBuffer]byte)(nil)
		var rerr error
		read := func(fd uintptr) bool {
			if ready(fd) {
				buf = logBuffers.Get().(*[logBuffer]byte)
				n, rerr = unix.Read(int(fd), buf[:])
				return rerr != unix.EAGAIN && rerr != unix.EINTR
			}
			return false
		}
		err := rc.Read(read)
		if err != nil {
			// Closing: the last words of a workload are in the pipe already.
			rc.Control(func(fd uintptr) {
				for ready(fd) && read(fd) && n > 0 && rerr == nil {
					l.write(buf[:n])
				}
			})
			return
		}
		if n > 0 && rerr == nil {
			l.write(buf[:n])
		}
		if buf != nil {
			logBuffers.Put(buf)
		}
		if rerr != nil {
			return
		}
	}
}

func ready(fd uintptr) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	return err == nil && n > 0
}

// write appends b, putting the time before each line. A disk that is full or gone loses log, never the workload.
func (l *logWriter) write(b []byte) {
	stamp := l.now().UTC().AppendFormat(make([]byte, 0, 32), logTime+" ")
	kept := logLines.Get().(*[]byte)
	out := (*kept)[:0]
	defer func() {
		*kept = out
		logLines.Put(kept)
	}()
	for len(b) > 0 {
		if !l.mid {
			out = append(out, stamp...)
		}
		i := bytes.IndexByte(b, '\n')
		if i < 0 {
			out, l.mid = append(out, b...), true
			break
		}
		out, l.mid, b = append(out, b[:i+1]...), false, b[i+1:]
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.append(out); err != nil {
		if l.err == nil {
			l.warn("log lost: %v", err)
		}
		l.err = err
		return
	}
	l.err = nil
	close(l.grown)
	l.grown = make(chan struct{})
}

// append writes b, turning the files over where one is full: between two lines if there is an end of one.
func (l *logWriter) append(b []byte) error {
	for len(b) > 0 {
		if l.file == nil {
			f, err := os.OpenFile(logPath(l.dir, 0), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o640)
			if err != nil {
				return err
			}
			st, err := f.Stat()
			if err != nil {
				f.Close()
				return err
			}
			l.file, l.size = f, st.Size()
		}
		fits := b
		if room := l.most - l.size; int64(len(b)) > room {
			fits = b[:max(room, 0)]
			if i := bytes.LastIndexByte(fits, '\n'); i >= 0 {
				fits = fits[:i+1]
			}
		}
		n, err := l.file.Write(fits)
		l.size += int64(n)
		if err != nil {
			return err
		}
		if b = b[n:]; len(b) == 0 {
			return nil
		}
		if err := l.turn(); err != nil {
			return err
		}
	}
	return nil
}

// turn begins a new file; the oldest one goes.
func (l *logWriter) turn() error {
	l.file.Close()
	l.file = nil
	for i := logFiles - 1; i > 0; i-- {
		if err := os.Rename(logPath(l.dir, i-1), logPath(l.dir, i)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// logPath is the i-th file of a log, 0 the newest.
func logPath(dir string, i int) string { return filepath.Join(dir, "log."+strconv.Itoa(i)) }

// changed is closed when the log grows next. Take it before reading.
func (l *logWriter) changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.grown
}

// parseLine finds a line's time. A line without one belongs to the line before it.
func parseLine(b []byte) (time.Time, bool) {
	if len(b) <= len(logTime) || b[len(logTime)] != ' ' {
		return time.Time{}, false
	}
	t, err := time.Parse(logTime, string(b[:len(logTime)]))
	return t, err == nil
}
