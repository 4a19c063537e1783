package rootfs

import (
	"context"
	"errors"
	"io"
	"time"
)

// Output is where an image is written; an *os.File, empty at first, is one.
type Output interface {
	io.WriteSeeker
	io.ReaderAt
	io.WriterAt
}

// Options pins what a file system would otherwise take from the clock and from chance.
type Options struct {
	UUID [16]byte
	// Time is the modification time of every entry and of the file system.
	Time time.Time
	// TempDir is where contents are spooled while the image is laid out. Empty: the system's.
	TempDir string
}

// WriteEROFS writes t as an EROFS image (uncompressed, 4096-byte blocks) and returns its size in bytes, a multiple of
// 4096. The same entries and options give the same bytes.
func WriteEROFS(ctx context.Context, w Output, t *Tree, o Options) (int64, error) {
	return 0, errors.ErrUnsupported
}
