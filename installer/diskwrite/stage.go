package diskwrite

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"

	"kingpost/internal/blockmap"
)

// Stage is a target with some places kept in memory: what is written there does not reach the target until it is
// committed. It reads as the target will when it is.
type Stage struct {
	Target
	held   []held
	passed []Span // places that were written through
}

type held struct {
	off  int64
	data []byte
}

// NewStage keeps the given places of t in memory, with the given content.
func NewStage(t Target, places map[int64][]byte) *Stage {
	s := &Stage{Target: t}
	for off, data := range places {
		s.held = append(s.held, held{off, data})
	}
	slices.SortFunc(s.held, func(a, b held) int { return cmp.Compare(a.off, b.off) })
	return s
}

// each calls memory or through for the parts of the n bytes at off.
func (s *Stage) each(off, n int64, memory func(at int64, in []byte) error, through func(at, end int64) error) error {
	end := off + n
	for at := off; at < end; {
		next := end
		done := false
		for _, h := range s.held {
			hEnd := h.off + int64(len(h.data))
			if at >= h.off && at < hEnd {
				next = min(end, hEnd)
				if err := memory(at, h.data[at-h.off:next-h.off]); err != nil {
					return err
				}
				done = true
				break
			}
			if h.off > at {
				next = min(next, h.off)
			}
		}
		if !done {
			if err := through(at, next); err != nil {
				return err
			}
		}
		at = next
	}
	return nil
}

// ReadAt implements io.ReaderAt.
func (s *Stage) ReadAt(p []byte, off int64) (int, error) {
	n := int64(len(p))
	if off < 0 || off >= s.Size() {
		return 0, io.EOF
	}
	n = min(n, s.Size()-off)
	err := s.each(off, n, func(at int64, in []byte) error {
		copy(p[at-off:], in)
		return nil
	}, func(at, end int64) error {
		k, err := s.Target.ReadAt(p[at-off:end-off], at)
		if int64(k) == end-at {
			return nil
		}
		if err == nil || err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return err
	})
	if err == nil && n < int64(len(p)) {
		err = io.EOF
	}
	if err != nil && err != io.EOF {
		return 0, err
	}
	return int(n), err
}

// WriteAt implements io.WriterAt.
func (s *Stage) WriteAt(p []byte, off int64) (int, error) {
	if off < 0 || off+int64(len(p)) > s.Size() {
		return 0, fmt.Errorf("write of %d bytes at %d is outside the target of %d bytes", len(p), off, s.Size())
	}
	err := s.each(off, int64(len(p)), func(at int64, in []byte) error {
		copy(in, p[at-off:])
		return nil
	}, func(at, end int64) error {
		s.passed = append(s.passed, Span{at, end})
		_, err := s.Target.WriteAt(p[at-off:end-off], at)
		return err
	})
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

// Zero implements Target.
func (s *Stage) Zero(off, n int64) error {
	return s.each(off, n, func(_ int64, in []byte) error {
		clear(in)
		return nil
	}, func(at, end int64) error {
		s.passed = append(s.passed, Span{at, end})
		return s.Target.Zero(at, end-at)
	})
}

// Passed are the places that were written through to the target since the stage was made.
func (s *Stage) Passed() []Span { return s.passed }

// Commit writes the bytes of a place that is kept in memory to the target, syncs, and reads the place back from the
// medium. The target must read as zeros there: units of zeros are left out.
func (s *Stage) Commit(place Span) error {
	var data []byte
	if err := s.each(place.Off, place.End-place.Off, func(_ int64, in []byte) error {
		data = append(data, in...)
		return nil
	}, func(at, end int64) error {
		return fmt.Errorf("commit the bytes %d to %d: they are not kept back", at, end)
	}); err != nil {
		return err
	}
	err := blockmap.Split(data, func(from, to int) error {
		if _, err := s.Target.WriteAt(data[from:to], place.Off+int64(from)); err != nil {
			return fmt.Errorf("write %d bytes at %d: %w", to-from, place.Off+int64(from), err)
		}
		return nil
	}, nil)
	if err != nil {
		return err
	}
	if err := s.Target.Sync(); err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	got := AlignedBuffer(len(data))
	if n, err := s.Target.ReadAt(got, place.Off); n < len(got) {
		return fmt.Errorf("read back %d bytes at %d: %w", len(got), place.Off, err)
	}
	if !bytes.Equal(got, data) {
		return &MismatchError{Off: place.Off}
	}
	return nil
}
