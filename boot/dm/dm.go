// Package dm makes read-only device-mapper devices by ioctl (Linux, include/uapi/linux/dm-ioctl.h), without libdevmapper
// or udev.
//
// It knows no target: the caller brings a table line. /dev/mapper/NAME never appears without udev, so a device is used as
// /dev/dm-N. Start with Map.
package dm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Control is the device that takes the ioctls; it is there once dm-mod is loaded.
const Control = "/dev/mapper/control"

const (
	headerSize = unix.SizeofDmIoctl
	specSize   = unix.SizeofDmTargetSpec
)

// Map makes the read-only device name with one target that covers sectors 512-byte sectors, and returns its node,
// "/dev/dm-N". When a step fails the half-made device is removed again.
func Map(name string, sectors uint64, target, params string) (string, error) {
	fd, err := unix.Open(Control, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("open %s (is the module dm-mod loaded?): %w", Control, err)
	}
	defer unix.Close(fd)
	h, _, err := request(name, nil)
	if err != nil {
		return "", err
	}
	if err := ioctl(fd, unix.DM_DEV_CREATE, h); err != nil {
		return "", fmt.Errorf("create the device-mapper device %s: %w", name, err)
	}
	minor := unix.Minor(header(h).Dev)
	err = func() error {
		h, hdr, err := request(name, table(sectors, target, params))
		if err != nil {
			return err
		}
		hdr.Target_count = 1
		hdr.Flags = unix.DM_READONLY_FLAG
		if err := ioctl(fd, unix.DM_TABLE_LOAD, h); err != nil {
			return fmt.Errorf("load the %s table of %s (is the module dm-%s loaded?): %w", target, name, target, err)
		}
		h, _, err = request(name, nil)
		if err != nil {
			return err
		}
		// Without the suspend flag this resumes, which makes the table live.
		if err := ioctl(fd, unix.DM_DEV_SUSPEND, h); err != nil {
			return fmt.Errorf("activate the device-mapper device %s: %w", name, err)
		}
		return nil
	}()
	if err != nil {
		return "", errors.Join(err, remove(fd, name))
	}
	return fmt.Sprintf("/dev/dm-%d", minor), nil
}

// Remove removes the device name, which nobody may have open.
func Remove(name string) error {
	fd, err := unix.Open(Control, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", Control, err)
	}
	defer unix.Close(fd)
	return remove(fd, name)
}

func remove(fd int, name string) error {
	h, _, err := request(name, nil)
	if err != nil {
		return err
	}
	if err := ioctl(fd, unix.DM_DEV_REMOVE, h); err != nil {
		return fmt.Errorf("remove the device-mapper device %s: %w", name, err)
	}
	return nil
}

// table is a dm_target_spec and its parameters, as DM_TABLE_LOAD takes them: padded to 8 bytes, the string ended by zero.
func table(sectors uint64, target, params string) []byte {
	n := (specSize + len(params) + 1 + 7) &^ 7
	b := make([]byte, n)
	binary.NativeEndian.PutUint64(b[8:], sectors)
	binary.NativeEndian.PutUint32(b[20:], uint32(n)) // next
	copy(b[24:40], target)
	copy(b[specSize:], params)
	return b
}

func request(name string, data []byte) ([]byte, *unix.DmIoctl, error) {
	b := make([]byte, headerSize+len(data))
	h := header(b)
	if len(name) >= len(h.Name) {
		return nil, nil, fmt.Errorf("the device-mapper name %.20q... is longer than %d bytes", name, len(h.Name)-1)
	}
	h.Version = [3]uint32{4, 0, 0}
	h.Data_size = uint32(len(b))
	h.Data_start = headerSize
	for i := range len(name) {
		h.Name[i] = name[i]
	}
	copy(b[headerSize:], data)
	return b, h, nil
}

func header(b []byte) *unix.DmIoctl { return (*unix.DmIoctl)(unsafe.Pointer(&b[0])) }

func ioctl(fd int, req uintptr, b []byte) error {
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), req, uintptr(unsafe.Pointer(&b[0]))); e != 0 {
		return e
	}
	return nil
}
