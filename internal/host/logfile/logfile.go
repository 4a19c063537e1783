// Package logfile is a log file that cannot fill a disk: at a size it becomes NAME.1, replacing the one
// before, and a new one begins. So at most twice the size is used.
//
// It never blocks on anything but the disk. Start with Open.
package logfile

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
)

// File is a bounded log file. It is safe for concurrent use.
type File struct {
	path string
	most int64

	mu     sync.Mutex
	f      *os.File
	size   int64
	closed bool
}

// Open opens or continues the file at path; most is the size in bytes at which it is turned over. The
// folder is made.
func Open(path string, most int64) (*File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, fmt.Errorf("open the log %s: %w", path, err)
	}
	l := &File{path: path, most: most}
	if err := l.open(); err != nil {
		return nil, err
	}
	return l, nil
}

func (l *File) open() error {
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return fmt.Errorf("open the log: %w", err)
	}
	fi, err := f.Stat()
	if err != nil {
		f.Close()
		return fmt.Errorf("open the log: %w", err)
	}
	l.f, l.size = f, fi.Size()
	return nil
}

// Write appends one record. One that does not fit begins a new file.
func (l *File) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return 0, os.ErrClosed
	}
	if l.f == nil { // it could not be opened again the last time, and there may be room now
		if err := l.open(); err != nil {
			return 0, err
		}
	}
	if l.size > 0 && l.size+int64(len(p)) > l.most {
		if err := os.Rename(l.path, l.path+".1"); err != nil {
			return 0, fmt.Errorf("turn over the log: %w", err)
		}
		l.f.Close()
		l.f = nil
		if err := l.open(); err != nil {
			return 0, err
		}
	}
	n, err := l.f.Write(p)
	l.size += int64(n)
	return n, err
}

// Close closes the file.
func (l *File) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.f == nil {
		return nil
	}
	err := l.f.Close()
	l.f = nil
	return err
}
