// Package efiboot makes a boot entry of the firmware for a loader on a disk (UEFI specification 2.10, sections 3.1, 3.3 and
// 10.3), through the files that Linux shows variables as (efivarfs).
//
// It writes only variables that are named BootXXXX, BootOrder and BootNext, and takes away only entries of its own label. It
// works on a folder, so it is tested without a firmware. Start with Set.
package efiboot

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"

	"golang.org/x/sys/unix"

	"kingpost/internal/gpt"
)

// globalVendor is the vendor GUID of the firmware's own variables (EFI_GLOBAL_VARIABLE).
const globalVendor = "8be4df61-93ca-11d2-aa0d-00e098032b8c"

// attributes of every variable here: non-volatile, for boot services and at run time.
const attributes = 7

// maxVariable bounds what is read of a variable, in bytes.
const maxVariable = 64 << 10

// Entry is a loader on a disk.
type Entry struct {
	Label     string // ASCII; entries of another label are left alone
	Partition gpt.Partition
	Sector    int    // bytes
	Loader    string // from the root of the partition, `\EFI\BOOT\BOOTX64.EFI`
}

// Set makes an entry the first in the firmware's order and the next that is started, and takes away entries with the same
// label for the same partition or for one of stale. It returns the entry's name, "Boot0003". dir is
// /sys/firmware/efi/efivars.
func Set(dir string, e Entry, stale ...gpt.GUID) (string, error) {
	number, err := set(dir, e, stale)
	if err != nil {
		return "", fmt.Errorf("set the firmware's boot entry: %w", err)
	}
	return name(number), nil
}

func name(number uint16) string { return fmt.Sprintf("Boot%04X", number) }

func set(dir string, e Entry, stale []gpt.GUID) (uint16, error) {
	used := map[uint16]bool{}
	files, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	for _, f := range files {
		number, ok := entryNumber(f.Name())
		if !ok {
			continue
		}
		b, err := read(dir, name(number))
		if err != nil {
			return 0, err
		}
		label, partition := parseOption(b)
		if label == e.Label && (partition == e.Partition.GUID || slices.Contains(stale, partition)) && !partition.IsZero() {
			if err := remove(dir, name(number)); err != nil {
				return 0, err
			}
			continue
		}
		used[number] = true
	}
	number := uint16(0)
	for used[number] {
		number++
	}
	order, err := read(dir, "BootOrder")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	next := binary.LittleEndian.AppendUint16(nil, number)
	fresh := slices.Clone(next)
	for ; len(order) >= 2; order = order[2:] {
		if n := binary.LittleEndian.Uint16(order); n != number && used[n] {
			fresh = binary.LittleEndian.AppendUint16(fresh, n)
		}
	}
	for _, v := range []struct {
		name  string
		value []byte
	}{{name(number), e.option()}, {"BootOrder", fresh}, {"BootNext", next}} {
		if err := write(dir, v.name, v.value); err != nil {
			return 0, err
		}
	}
	return number, nil
}

// entryNumber reads "Boot0003-GUID".
func entryNumber(file string) (uint16, bool) {
	digits, ok := strings.CutSuffix(strings.TrimPrefix(file, "Boot"), "-"+globalVendor)
	if !ok || !strings.HasPrefix(file, "Boot") || len(digits) != 4 || strings.ToUpper(digits) != digits {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 16, 16)
	return uint16(n), err == nil
}

// Device paths (UEFI specification 2.10, section 10.3.5).
const (
	media       = 4
	hardDrive   = 1 // media
	filePath    = 4 // media
	endOfPath   = 0x7f
	formatGPT   = 2
	signature   = 2 // a GUID
	activeEntry = 1
)

// option is the EFI_LOAD_OPTION of an entry.
func (e Entry) option() []byte {
	le := binary.LittleEndian
	drive := []byte{media, hardDrive, 42, 0}
	drive = le.AppendUint32(drive, uint32(e.Partition.Number))
	drive = le.AppendUint64(drive, uint64(e.Partition.Start/int64(e.Sector)))
	drive = le.AppendUint64(drive, uint64(e.Partition.Size/int64(e.Sector)))
	drive = append(drive, e.Partition.GUID[:]...)
	drive = append(drive, formatGPT, signature)
	file := text(e.Loader)
	paths := append(drive, media, filePath)
	paths = le.AppendUint16(paths, uint16(4+len(file)))
	paths = append(paths, file...)
	paths = append(paths, endOfPath, 0xff, 4, 0)
	b := le.AppendUint32(nil, activeEntry)
	b = le.AppendUint16(b, uint16(len(paths)))
	b = append(b, text(e.Label)...)
	return append(b, paths...)
}

// text is UTF-16 that ends in zero.
func text(s string) []byte {
	var b []byte
	for _, u := range utf16.Encode([]rune(s)) {
		b = binary.LittleEndian.AppendUint16(b, u)
	}
	return append(b, 0, 0)
}

// parseOption reads an EFI_LOAD_OPTION: its label, and the GUID of the first partition in its paths. What cannot be read is
// empty.
func parseOption(b []byte) (label string, partition gpt.GUID) {
	if len(b) < 6 {
		return "", partition
	}
	length := int(binary.LittleEndian.Uint16(b[4:]))
	b = b[6:]
	var units []uint16
	for {
		if len(b) < 2 {
			return "", partition
		}
		u := binary.LittleEndian.Uint16(b)
		b = b[2:]
		if u == 0 {
			break
		}
		units = append(units, u)
	}
	label = string(utf16.Decode(units))
	for p := b[:min(length, len(b))]; len(p) >= 4; {
		n := int(binary.LittleEndian.Uint16(p[2:]))
		if n < 4 || n > len(p) {
			break
		}
		if p[0] == media && p[1] == hardDrive && n >= 42 && p[41] == signature {
			return label, gpt.GUID(p[24:40])
		}
		p = p[n:]
	}
	return label, partition
}

func path(dir, variable string) string { return filepath.Join(dir, variable+"-"+globalVendor) }

// read returns a variable without its attributes.
func read(dir, variable string) ([]byte, error) {
	b, err := os.ReadFile(path(dir, variable))
	if err != nil {
		return nil, err
	}
	if len(b) < 4 || len(b) > maxVariable {
		return nil, fmt.Errorf("the variable %s has %d bytes", variable, len(b))
	}
	return b[4:], nil
}

// write replaces a variable, in one call as efivarfs wants it, and reads it back.
func write(dir, variable string, value []byte) error {
	if err := mutable(path(dir, variable)); err != nil {
		return fmt.Errorf("%s: %w", variable, err)
	}
	f, err := os.OpenFile(path(dir, variable), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	b := append(binary.LittleEndian.AppendUint32(nil, attributes), value...)
	_, err = f.Write(b)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("%s: %w", variable, err)
	}
	got, err := read(dir, variable)
	if err == nil && !bytes.Equal(got, value) {
		err = errors.New("the firmware keeps another value than was written")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", variable, err)
	}
	return nil
}

func remove(dir, variable string) error {
	if err := mutable(path(dir, variable)); err != nil {
		return fmt.Errorf("%s: %w", variable, err)
	}
	return os.Remove(path(dir, variable))
}

// immutable is FS_IMMUTABLE_FL of linux/fs.h.
const immutable = 0x10

// mutable takes away the flag by which the kernel guards variables against a slip of the hand
// (Documentation/filesystems/efivarfs.rst).
func mutable(file string) error {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	flags, err := unix.IoctlGetUint32(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	if err != nil || flags&immutable == 0 {
		return nil // a file system without such flags, or one that is not set
	}
	if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, int(flags&^immutable)); err != nil {
		return fmt.Errorf("let it be changed: %w", err)
	}
	return nil
}
