package supervise

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sort"
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
	type position struct {
		key     string
		changed <-chan struct{}
		file    *os.File // the newest file, read up to its end
	}
	var lines []logLine
	pos := make([]*position, 0, len(keys))
	defer func() {
		for _, p := range pos {
			if p.file != nil {
				p.file.Close()
			}
		}
	}()
	for _, key := range keys {
		p := &position{key: key, changed: s.logChanged(key)}
		pos = append(pos, p)
		if o.Follow {
			if f, err := os.Open(logPath(s.logDir(key), 0)); err == nil {
				p.file = f
				if _, err := f.Seek(0, io.SeekEnd); err != nil {
					return err
				}
			}
		}
		ls, err := readLines(s.logDir(key), o)
		if err != nil {
			return err
		}
		lines = append(lines, ls...)
	}
	sort.SliceStable(lines, func(i, j int) bool { return lines[i].at.Before(lines[j].at) })
	for _, l := range lines {
		if _, err := w.Write(l.text); err != nil {
			return err
		}
	}
	if !o.Follow {
		return nil
	}
	var mu sync.Mutex // lines of different resources are not mixed
	var wg sync.WaitGroup
	for _, p := range pos {
		wg.Go(func() {
			f := p.file
			p.file = nil
			s.follow(ctx, &mu, w, p.key, f, p.changed)
		})
	}
	wg.Wait()
	return nil
}

func readLines(dir string, o LogOptions) ([]logLine, error) {
	r, shut, err := openLog(dir, o.Bytes)
	if err != nil {
		return nil, err
	}
	defer shut()
	br := bufio.NewReaderSize(r, 64<<10)
	var out []logLine
	for first := true; ; first = false {
		b, err := br.ReadBytes('\n')
		if len(b) > 0 {
			at, ok := parseLine(b)
			switch {
			case !ok && len(out) > 0:
				out[len(out)-1].text = append(out[len(out)-1].text, b...)
			case !ok && first && o.Bytes > 0: // cut off in front by the limit
			case ok && at.Before(o.Since):
			default:
				out = append(out, logLine{at, b})
			}
		}
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
	}
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
