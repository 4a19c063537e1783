package release

import (
	"context"
	"errors"
	"io"
	"time"

	"kingpost/internal/fat32"
)

// Contents is what goes into the partitions of a new disk.
type Contents struct {
	ESP []fat32.File
	// Time is the time of every file on the ESP.
	Time time.Time
	// RootA and Data are copied to the start of their partitions. Nil leaves one empty.
	RootA, Data *Content
}

// Content is bytes to copy.
type Content struct {
	io.ReaderAt
	Size int64 // bytes
}

// WriteDisk writes partition table, ESP and contents. w must read as zeros where nothing is written, as a new file does:
// blocks of zeros are skipped, so the image stays sparse; the caller truncates the file to p.Size. The table is
// written last, so that what was cut short is no disk. progress, if not nil, is called with bytes done of total.
func WriteDisk(ctx context.Context, w io.WriterAt, p Plan, c Contents, progress func(done, total int64)) error {
	return errors.ErrUnsupported
}
