package qemu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"
)

// Overlay makes a qcow2 file at path that reads as base, a disk image of the given format, and takes all writes itself.
// base must not change while it exists.
func Overlay(ctx context.Context, path, base, format string, size int64) error {
	args := []string{"create", "-q", "-f", "qcow2", "-b", base, "-F", format, path}
	if size > 0 {
		args = append(args, fmt.Sprint(size))
	}
	out, err := exec.CommandContext(ctx, "qemu-img", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("make overlay %s of %s: %w: %s", path, base, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// Copy copies a raw disk image, holes as holes, and makes the copy size bytes long where it is shorter. A copy that was
// cut short is removed.
func Copy(ctx context.Context, to, from string, size int64) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("copy disk image: %w", err)
	}
	defer in.Close()
	st, err := in.Stat()
	if err != nil {
		return fmt.Errorf("copy disk image: %w", err)
	}
	out, err := os.OpenFile(to, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return fmt.Errorf("copy disk image: %w", err)
	}
	defer func() {
		if cerr := out.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			os.Remove(to)
			err = fmt.Errorf("copy disk image %s to %s: %w", from, to, err)
		}
	}()
	if err := out.Truncate(max(size, st.Size())); err != nil {
		return err
	}
	// A file system that can share blocks makes the copy at once; it then also brings the holes.
	if unix.IoctlFileClone(int(out.Fd()), int(in.Fd())) == nil {
		return out.Truncate(max(size, st.Size()))
	}
	return copyData(ctx, out, in, st.Size())
}

// copyData copies what is no hole.
func copyData(ctx context.Context, out, in *os.File, size int64) error {
	for at := int64(0); at < size; {
		data, err := unix.Seek(int(in.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // a hole to the end
		}
		if err != nil {
			return fmt.Errorf("find data from byte %d on: %w", at, err)
		}
		hole, err := unix.Seek(int(in.Fd()), data, unix.SEEK_HOLE)
		if err != nil {
			return fmt.Errorf("find the hole after byte %d: %w", data, err)
		}
		for data < hole {
			if err := ctx.Err(); err != nil {
				return err
			}
			n := min(hole-data, 16<<20)
			if _, err := io.Copy(io.NewOffsetWriter(out, data), io.NewSectionReader(in, data, n)); err != nil {
				return err
			}
			data += n
		}
		at = hole
	}
	return nil
}
