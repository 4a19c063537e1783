// Package loopdev makes a read-only block device of a file, or of a part of another device (loop(4)).
//
// The kernel makes devices of partitions by itself, but not on optical media and not of files in memory. What is attached
// stays until the machine is switched off: this package detaches only what it failed to attach. The kernel module loop
// must be loaded. Start with Attach.
package loopdev

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Control is the device that tells a free loop device; it is there once the module is loaded.
const Control = "/dev/loop-control"

// tries bounds how often another program may take the free device first.
const tries = 8

// Attach makes a device of size bytes of path from offset on, both multiples of 512, and returns its node, "/dev/loop0".
// Its sectors have 512 bytes whatever those of path have. It lives on when path is removed.
func Attach(path string, offset, size int64) (string, error) {
	node, err := attach(path, offset, size)
	if err != nil {
		return "", fmt.Errorf("make a device of %d bytes at %d of %s: %w", size, offset, path, err)
	}
	return node, nil
}

func attach(path string, offset, size int64) (string, error) {
	if offset < 0 || size <= 0 || offset%512 != 0 || size%512 != 0 {
		return "", errors.New("that is no whole number of sectors")
	}
	control, err := unix.Open(Control, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("open %s (is the module loop loaded?): %w", Control, err)
	}
	defer unix.Close(control)
	file, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(file)
	for range tries {
		n, err := unix.IoctlRetInt(control, unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return "", fmt.Errorf("ask for a free loop device: %w", err)
		}
		node := fmt.Sprintf("/dev/loop%d", n)
		err = configure(node, file, offset, size)
		if err == nil {
			return node, nil
		}
		if !errors.Is(err, unix.EBUSY) { // else somebody was quicker
			return "", fmt.Errorf("%s: %w", node, err)
		}
	}
	return "", errors.New("others take every loop device that is free")
}

func configure(node string, file int, offset, size int64) error {
	fd, err := unix.Open(node, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.IoctlLoopConfigure(fd, &unix.LoopConfig{
		Fd: uint32(file), Size: 512,
		Info: unix.LoopInfo64{Offset: uint64(offset), Sizelimit: uint64(size), Flags: unix.LO_FLAGS_READ_ONLY},
	})
}
