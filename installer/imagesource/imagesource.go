// Package imagesource opens disk images to be written somewhere: raw files and disks, with their holes, files that are
// compressed with zstd, and both over HTTP, where a broken download goes on where it broke.
//
// It gives an image's bytes in order, once, and finds what vouches for them: the block map and the digest in the
// release.json beside an image. It decides nothing about what an image is. Start with Open.
package imagesource

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/klauspost/compress/zstd"

	"kingpost/installer/diskwrite"
	"kingpost/internal/blockmap"
)

// Image is an opened image.
type Image struct {
	diskwrite.Source
	Name string
	// Size is in bytes, -1 where only the image itself can tell.
	Size int64
	// Reader reads at any place; nil for what comes as a stream.
	Reader io.ReaderAt
	// Vouched is what is known of the image's bytes before they are read.
	Vouched Vouched

	close []func() error
}

// Close ends it.
func (i *Image) Close() error {
	var errs []error
	for n := len(i.close) - 1; n >= 0; n-- {
		errs = append(errs, i.close[n]())
	}
	i.close = nil
	return errors.Join(errs...)
}

// Options says how images are opened.
type Options struct {
	Client *http.Client // nil is one with limits of its own
	// Warn, if not nil, is told what a person should know: a download that broke and goes on.
	Warn func(format string, args ...any)
}

// zstdMagic begins a zstd frame (RFC 8878, section 3.1.1).
var zstdMagic = []byte{0x28, 0xb5, 0x2f, 0xfd}

// Open opens an image: a file, a disk, the folder of a build, or an http or https URL. What begins as zstd does is
// decompressed, whatever its name is.
func Open(ctx context.Context, name string, o Options) (*Image, error) {
	if o.Warn == nil {
		o.Warn = func(string, ...any) {}
	}
	var img *Image
	var err error
	if strings.HasPrefix(name, "http://") || strings.HasPrefix(name, "https://") {
		img, err = openURL(ctx, name, o, firstPause)
	} else {
		img, err = openFile(name)
	}
	if err != nil {
		return nil, fmt.Errorf("open the image: %w", err)
	}
	return img, nil
}

// diskName is the image in the folder of a build.
const diskName = "disk.img"

func openFile(name string) (_ *Image, err error) {
	st, err := os.Stat(name)
	if err != nil {
		return nil, fmt.Errorf("%w; `kingpost build` makes one", err)
	}
	if st.IsDir() {
		name = filepath.Join(name, diskName)
	}
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe without a writer must not hold us up
	if err != nil {
		return nil, err
	}
	i := &Image{Name: name, Size: -1, close: []func() error{f.Close}}
	defer func() {
		if err != nil {
			i.Close()
		}
	}()
	if st, err = f.Stat(); err != nil {
		return nil, err
	}
	if st.IsDir() {
		return nil, fmt.Errorf("%s is a folder", name)
	}
	if st.Mode()&(fs.ModeNamedPipe|fs.ModeCharDevice) != 0 {
		return nil, fmt.Errorf("%s can be read once and in order only; an image is a file or a disk", name)
	}
	head := make([]byte, len(zstdMagic))
	if n, _ := f.ReadAt(head, 0); n == len(head) && bytes.Equal(head, zstdMagic) {
		if err := i.decompress(f, filepath.Base(name)); err != nil {
			return nil, err
		}
	} else {
		// A disk's own size says nothing of the image's on it; its head does.
		if st.Mode().IsRegular() {
			i.Size = st.Size()
		}
		i.Source, i.Reader = &fileSource{f: f, size: i.Size}, f
	}
	dir, base := filepath.Split(name)
	i.Vouched, err = vouch(strings.TrimSuffix(base, ".zst"), func(file string, limit int64) ([]byte, error) { return readFile(filepath.Join(dir, file), limit) })
	return i, err
}

func readFile(name string, limit int64) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe without a writer must not hold us up
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readAll(f, limit)
}

func readAll(r io.Reader, limit int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("it has more than %d bytes", limit)
	}
	return b, err
}

// maxWindow bounds what a frame may ask of memory, in bytes; `zstd --ultra --long=31` asks for 2 GiB.
const maxWindow = 256 << 20

func (i *Image) decompress(r io.Reader, name string) error {
	z, err := zstd.NewReader(r, zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderConcurrency(2))
	if err != nil {
		return fmt.Errorf("decompress %s: %w", name, err)
	}
	i.close = append(i.close, func() error { z.Close(); return nil })
	i.Source = &streamSource{r: z, what: "decompress " + name}
	return nil
}

// streamSource is an image that comes as a stream.
type streamSource struct {
	r    io.Reader
	what string
	at   int64
	end  bool
}

// Next implements diskwrite.Source.
func (s *streamSource) Next(ctx context.Context, buf []byte) (diskwrite.Block, error) {
	if err := ctx.Err(); err != nil {
		return diskwrite.Block{}, context.Cause(ctx)
	}
	if s.end {
		return diskwrite.Block{}, io.EOF
	}
	// Not io.ReadFull: what it says of the end of a stream is what zstd says of one that was cut.
	n := 0
	for n < len(buf) && !s.end {
		k, err := s.r.Read(buf[n:])
		n += k
		switch {
		case err == io.EOF:
			s.end = true
		case ctx.Err() != nil:
			return diskwrite.Block{}, context.Cause(ctx)
		case errors.Is(err, ErrChanged):
			return diskwrite.Block{}, fmt.Errorf("%s, after %d bytes: %w", s.what, s.at, err)
		case err != nil:
			return diskwrite.Block{}, fmt.Errorf("%w: %s, after %d bytes: %w; fetch it again", diskwrite.ErrSource, s.what, s.at+int64(n), err)
		}
	}
	if n == 0 {
		return diskwrite.Block{}, io.EOF
	}
	b := diskwrite.Block{Off: s.at, Data: buf[:n]}
	if blockmap.IsZero(b.Data) {
		b = diskwrite.Block{Off: s.at, Zeros: int64(n)}
	}
	s.at += int64(n)
	return b, nil
}
