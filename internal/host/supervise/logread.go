package supervise

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"kingpost/internal/mesh"
)

func (s *Supervisor) logDir(key string) string { return filepath.Join(s.cfg.State, "logs", key) }

// Logs implements API.
func (s *Supervisor) Logs(ctx context.Context, key string, o LogOptions) (io.ReadCloser, error) {
	keys := s.logKeys(key)
	if len(keys) == 0 {
		return nil, &mesh.CallError{Code: mesh.CodeNotFound, Message: "there is no log of " + key + " on this node"}
	}
	pr, pw := io.Pipe()
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer cancel()
		pw.CloseWithError(s.copyLogs(ctx, pw, keys, o))
	}()
	return &logStream{pr, cancel}, nil
}

type logStream struct {
	*io.PipeReader
	cancel context.CancelFunc
}

func (l *logStream) Close() error {
	l.cancel()
	return l.PipeReader.Close()
}

// logKeys finds the resources that key names and that have or had a log.
func (s *Supervisor) logKeys(key string) []string {
	module, id, one := strings.Cut(key, "/")
	if mesh.CheckName(module) != nil || one && mesh.CheckName(id) != nil {
		return nil
	}
	if one {
		if exists(s.logDir(key)) {
			return []string{key}
		}
		return nil
	}
	es, _ := os.ReadDir(s.logDir(module))
	var keys []string
	for _, e := range es {
		keys = append(keys, module+"/"+e.Name())
	}
	return keys
}

// copyLogs writes what is there, in the order of time, and then, if asked, what comes.
func (s *Supervisor) copyLogs(ctx context.Context, w io.Writer, keys []string, o LogOptions) error {
	type follower struct {
		key     string
		changed <-chan struct{}
		file    *os.File // the newest file, read up to where the lines before end
	}
	var parts []*logPart
	var followers []*follower
	defer func() {
		for _, p := range parts {
			p.close()
		}
		for _, f := range followers {
			if f.file != nil {
				f.file.Close()
			}
		}
	}()
	for _, key := range keys {
		f := &follower{key: key, changed: s.logChanged(key)}
		p, err := openPart(s.logDir(key), o)
		if err != nil {
			return err
		}
		parts = append(parts, p)
		if o.Follow {
			if f.file, err = p.rest(); err != nil {
				return err
			}
			followers = append(followers, f)
		}
	}
	if err := mergeLogs(w, parts); err != nil || !o.Follow {
		return err
	}
	var mu sync.Mutex // lines of different resources are not mixed
	var wg sync.WaitGroup
	for _, f := range followers {
		file := f.file
		f.file = nil
		wg.Go(func() { s.follow(ctx, &mu, w, f.key, file, f.changed) })
	}
	wg.Wait()
	return nil
}

// logChanged is the growth signal of a running log; nil, which never comes, for one that nobody writes.
func (s *Supervisor) logChanged(key string) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if u := s.units[key]; u != nil {
		if l := u.log.Load(); l != nil {
			return l.changed()
		}
	}
	return nil
}

// follow copies what is appended to a log, through rotations, until ctx ends.
func (s *Supervisor) follow(ctx context.Context, mu *sync.Mutex, w io.Writer, key string, f *os.File, changed <-chan struct{}) {
	defer func() {
		if f != nil {
			f.Close()
		}
	}()
	path := logPath(s.logDir(key), 0)
	for {
		if f == nil {
			f, _ = os.Open(path)
		}
		if f != nil {
			if err := copyWhole(mu, w, f); err != nil {
				return
			}
			// A rotated file is finished: its successor is read from its start.
			if now, err := os.Stat(path); err == nil {
				if mine, err := f.Stat(); err == nil && !os.SameFile(now, mine) {
					if copyWhole(mu, w, f) != nil {
						return
					}
					f.Close()
					f = nil
					continue
				}
			}
		}
		retry := time.NewTimer(time.Second) // for a log whose writer comes later
		if changed != nil {
			retry.Stop()
		}
		select {
		case <-ctx.Done():
			retry.Stop()
			return
		case <-changed:
		case <-retry.C:
		}
		changed = s.logChanged(key)
	}
}

func copyWhole(mu *sync.Mutex, w io.Writer, f *os.File) error {
	buf := make([]byte, 32<<10)
	for {
		n, err := f.Read(buf)
		if n == 0 || err != nil && !errors.Is(err, io.EOF) {
			return nil
		}
		// Up to the last whole line, so that two logs do not share one; a longer line goes through as it is.
		if i := bytes.LastIndexByte(buf[:n], '\n'); i >= 0 && i+1 < n {
			if _, err := f.Seek(int64(i+1-n), io.SeekCurrent); err != nil {
				return nil
			}
			n = i + 1
		} else if i < 0 && n < len(buf) {
			if _, err := f.Seek(int64(-n), io.SeekCurrent); err != nil {
				return nil
			}
			return nil
		}
		mu.Lock()
		_, err = w.Write(buf[:n])
		mu.Unlock()
		if err != nil {
			return err
		}
	}
}
