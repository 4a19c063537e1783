package builder

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// hashStrings is the hex SHA-256 of strings, each with its length, so that no two lists are the same.
func hashStrings(s ...string) string {
	h := sha256.New()
	for _, x := range s {
		fmt.Fprintf(h, "%d:", len(x))
		io.WriteString(h, x)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// hashFile is the hex SHA-256 of a file and its size in bytes. Holes are not read: a disk image is mostly holes.
func hashFile(ctx context.Context, name string) (string, int64, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return "", 0, err
	}
	h := sha256.New()
	buf, zeros := make([]byte, 1<<20), make([]byte, 1<<20)
	for pos := int64(0); pos < st.Size(); {
		data, end := extent(f, pos, st.Size())
		for ; pos < data; pos += min(data-pos, int64(len(zeros))) {
			h.Write(zeros[:min(data-pos, int64(len(zeros)))])
			if ctx.Err() != nil {
				return "", 0, context.Cause(ctx)
			}
		}
		n, err := io.CopyBuffer(h, struct{ io.Reader }{ctxReader{ctx, io.NewSectionReader(f, pos, end-pos)}}, buf)
		if err == nil && n != end-pos {
			err = fmt.Errorf("%s changed while it was read: %w", name, io.ErrUnexpectedEOF)
		}
		if err != nil {
			return "", 0, err
		}
		pos = end
	}
	return hex.EncodeToString(h.Sum(nil)), st.Size(), nil
}

// extent returns where the next data at or after pos begins and ends; a file system that knows no holes has one
// extent.
func extent(f *os.File, pos, size int64) (start, end int64) {
	start, err := unix.Seek(int(f.Fd()), pos, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) {
		return size, size // only a hole is left
	}
	if err != nil {
		return pos, size
	}
	if end, err = unix.Seek(int(f.Fd()), start, unix.SEEK_HOLE); err != nil {
		end = size
	}
	return min(start, size), min(end, size)
}

// ctxReader ends a long copy when ctx ends.
type ctxReader struct {
	ctx context.Context
	r   io.Reader
}

func (c ctxReader) Read(p []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, context.Cause(c.ctx)
	}
	return c.r.Read(p)
}

func hashBytes(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
