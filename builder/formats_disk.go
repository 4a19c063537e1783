package builder

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/klauspost/compress/zstd"

	"kingpost/internal/fat32"
	"kingpost/internal/release"
)

// diskOutput is the raw disk image with its block map.
type diskOutput struct{}

func (diskOutput) Info() OutputInfo {
	return OutputInfo{Name: FileDisk, About: "raw GPT disk image, sparse, and its block map: to flash, or for a virtual machine", Default: true, Data: true}
}

func (diskOutput) Files(string) []string { return []string{FileDisk, FileMap} }

// Write makes the image; its block map comes with release.json, since both read all of it.
func (diskOutput) Write(ctx context.Context, b *Built, progress func(done, total int64)) (string, error) {
	d, err := b.Disk(ctx, progress)
	if err != nil {
		return "", err
	}
	return mib(d.size), nil
}

// FileZst is the raw disk image in a zstd frame.
const FileZst = FileDisk + ".zst"

// zstOutput is the raw disk image, compressed.
type zstOutput struct{}

func (zstOutput) Info() OutputInfo {
	return OutputInfo{Name: FileZst, About: "the raw disk image in one zstd frame, and its block map: to download and flash", Data: true}
}

func (zstOutput) Files(string) []string { return []string{FileZst, FileMap} }

func (zstOutput) Write(ctx context.Context, b *Built, progress func(done, total int64)) (string, error) {
	d, err := b.Disk(ctx, nil)
	if err != nil {
		return "", err
	}
	in, err := os.Open(d.file)
	if err != nil {
		return "", err
	}
	defer in.Close()
	n, err := writeFile(b.path(FileZst), func(w io.Writer) error { return compress(ctx, w, in, d.size, 0, progress) })
	return fmt.Sprintf("%s of %s", mib(n), mib(d.size)), err
}

// compress writes size bytes of r as one zstd frame (RFC 8878) that says how many they are. The bytes are the same for any
// number of CPUs; 0 takes those that there are.
func compress(ctx context.Context, w io.Writer, r io.Reader, size int64, cpus int, progress func(done, total int64)) error {
	o := []zstd.EOption{zstd.WithEncoderLevel(zstd.SpeedBetterCompression), zstd.WithWindowSize(8 << 20), zstd.WithEncoderCRC(true)}
	if cpus > 0 {
		o = append(o, zstd.WithEncoderConcurrency(cpus))
	}
	z, err := zstd.NewWriter(nil, o...)
	if err != nil {
		return err
	}
	z.ResetContentSize(w, size)
	n, err := io.CopyBuffer(z, struct{ io.Reader }{&counter{ctxReader{ctx, r}, size, 0, progress}}, make([]byte, 1<<20))
	if err == nil && n != size {
		err = io.ErrUnexpectedEOF
	}
	return errors.Join(err, z.Close())
}

// FileDisk4K is the raw disk image for a disk with sectors of 4096 bytes.
const FileDisk4K = "disk-4k.img"

// disk4KOutput is that image. FAT32 needs a larger ESP there, so it has at least that.
type disk4KOutput struct{}

func (disk4KOutput) Info() OutputInfo {
	return OutputInfo{Name: FileDisk4K, About: "raw disk image for disks with sectors of 4096 bytes, sparse", Data: true}
}

func (disk4KOutput) Files(string) []string { return []string{FileDisk4K} }

func (disk4KOutput) Write(ctx context.Context, b *Built, progress func(done, total int64)) (string, error) {
	const sector = 4096
	plan, err := b.plan(release.DiskSpec{SectorSize: sector, ESPSize: max(int64(b.recipe.Slots.ESP), fat32.MinSize(sector))})
	if err != nil {
		return "", err
	}
	return mib(plan.Size), b.writeDisk(ctx, b.path(FileDisk4K), plan, progress)
}

// counter tells progress of what is read through it.
type counter struct {
	r           io.Reader
	total, done int64
	progress    func(done, total int64)
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	if c.done += int64(n); c.progress != nil && n > 0 {
		c.progress(c.done, c.total)
	}
	return n, err
}

// writeFile makes a new file by write and returns its size.
func writeFile(name string, write func(io.Writer) error) (int64, error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return 0, err
	}
	err = write(f)
	st, serr := f.Stat()
	if err := errors.Join(err, serr, f.Close()); err != nil {
		return 0, err
	}
	return st.Size(), nil
}
