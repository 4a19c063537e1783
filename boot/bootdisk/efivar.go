package bootdisk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"unicode/utf16"
)

// loaderVendor is the vendor GUID of the Boot Loader Interface (systemd.io/BOOT_LOADER_INTERFACE).
const loaderVendor = "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"

// LoaderPartition returns the GUID of the partition that the boot loader was started from, or "" where it did not say
// or there is no EFI. efivars is /sys/firmware/efi/efivars.
func LoaderPartition(efivars fs.FS) (string, error) {
	return LoaderVariable(efivars, "LoaderDevicePartUUID")
}

// CountedTry reports whether the boot entry that was taken is one whose tries are counted: a release that has not
// been marked good yet.
func CountedTry(efivars fs.FS) bool {
	s, err := LoaderVariable(efivars, "LoaderBootCountPath")
	return err == nil && s != ""
}

// LoaderVariable reads a text variable of the Boot Loader Interface; "" where it is not set.
func LoaderVariable(efivars fs.FS, name string) (string, error) {
	b, err := fs.ReadFile(efivars, name+"-"+loaderVendor)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read the EFI variable %s: %w", name, err)
	}
	s, err := parseVariable(b)
	if err != nil {
		return "", fmt.Errorf("the EFI variable %s: %w", name, err)
	}
	return s, nil
}

// parseVariable reads what efivarfs gives: four bytes of attributes, then UTF-16LE text that may end in zeros.
func parseVariable(b []byte) (string, error) {
	if len(b) < 4 || len(b)%2 != 0 || len(b) > 4096 {
		return "", fmt.Errorf("%d bytes are no text", len(b))
	}
	var u []uint16
	for b = b[4:]; len(b) > 0; b = b[2:] {
		u = append(u, binary.LittleEndian.Uint16(b))
	}
	return strings.TrimRight(string(utf16.Decode(u)), "\x00"), nil
}
