package supervise

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"
)

// logPart reads the lines of one log that are there already, piece by piece: a line may be longer than memory should hold.
type logPart struct {
	files []*os.File // newest first
	end   int64      // of the newest, when it was opened
	since time.Time
	cut   bool // the front may be cut off within a line
	r     *bufio.Reader

	piece []byte    // the next one, nil at the end
	at    time.Time // of the line that piece is of
	mid   bool      // piece goes on with a line
}

// openPart opens the files of a log.
func openPart(dir string, o LogOptions) (_ *logPart, err error) {
	p := &logPart{since: o.Since, cut: o.Bytes > 0}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	var rs []*io.SectionReader // oldest first
	var total int64
	var newer fs.FileInfo
	var written time.Time
	for i := 0; i < logFiles; i++ {
		f, err := os.Open(logPath(dir, i))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read the log: %w", err)
		}
		st, err := f.Stat()
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("read the log: %w", err)
		}
		if newer != nil && os.SameFile(newer, st) {
			f.Close() // it was turned over while the files were opened
			continue
		}
		newer = st
		p.files = append(p.files, f)
		if len(p.files) == 1 {
			p.end, written = st.Size(), st.ModTime()
		} else if st.ModTime().Before(o.Since) {
			break // all that is older was written before
		}
		size, from := st.Size(), int64(0)
		if o.Bytes > 0 && total+size > o.Bytes {
			from = size - (o.Bytes - total)
		}
		rs = append([]*io.SectionReader{io.NewSectionReader(f, from, size-from)}, rs...)
		total += size - from
		if o.Bytes > 0 && total >= o.Bytes {
			break
		}
	}
	if err := p.read(rs); err != nil {
		return p, err
	}
	if p.piece == nil && p.cut && total > 0 && o.Since.IsZero() {
		// No line begins in there: it is the end of one that is longer, which was written when the file was.
		p.at, p.mid = written, true
		return p, p.read(rs)
	}
	return p, nil
}

// read begins with the first of the pieces in rs.
func (p *logPart) read(rs []*io.SectionReader) error {
	var all []io.Reader
	for _, r := range rs {
		if _, err := r.Seek(0, io.SeekStart); err != nil {
			return err
		}
		all = append(all, r)
	}
	p.r = bufio.NewReaderSize(io.MultiReader(all...), 64<<10)
	return p.next()
}

func (p *logPart) close() {
	for _, f := range p.files {
		f.Close()
	}
	p.files = nil
}

// rest is the newest file from where the part ends; nil while there is none.
func (p *logPart) rest() (*os.File, error) {
	if len(p.files) == 0 {
		return nil, nil
	}
	f := p.files[0]
	p.files = p.files[1:]
	// The part itself reads at offsets of its own, before the file is followed.
	_, err := f.Seek(p.end, io.SeekStart)
	return f, err
}

// next goes to the next piece that is wanted. The one before is no longer valid.
func (p *logPart) next() error {
	for {
		mid := p.mid
		b, err := p.r.ReadSlice('\n')
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, bufio.ErrBufferFull) {
			return err
		}
		if len(b) == 0 {
			p.piece = nil
			return nil
		}
		p.mid = b[len(b)-1] != '\n'
		switch at, ok := parseLine(b); {
		case !mid && ok:
			p.at, p.cut = at, false
		case p.at.IsZero() && (p.cut || !p.since.IsZero()):
			continue // the front of this line is not here
		}
		if !p.at.Before(p.since) {
			p.piece = b
			return nil
		}
	}
}

// mergeLogs writes the lines of all parts in the order of time, each whole.
func mergeLogs(w io.Writer, parts []*logPart) error {
	for {
		var first *logPart
		for _, p := range parts {
			if p.piece != nil && (first == nil || p.at.Before(first.at)) {
				first = p
			}
		}
		if first == nil {
			return nil
		}
		for at := first.at; first.piece != nil && first.at.Equal(at); {
			mid := first.mid
			if _, err := w.Write(first.piece); err != nil {
				return err
			}
			if err := first.next(); err != nil {
				return err
			}
			if !mid && first.piece != nil && len(parts) > 1 {
				if _, ok := parseLine(first.piece); ok {
					break
				}
			}
		}
	}
}
