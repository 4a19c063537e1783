package release

import "errors"

// BootEntry is a boot loader entry (UAPI Boot Loader Specification, type 1), a file below loader/entries.
type BootEntry struct {
	// ID is the file's name without counter and ".conf": the release's version, or "rescue".
	ID string
	// Counter is the boot counter in the name, nil for an uncounted entry.
	Counter *Counter

	Title   string
	Version string
	SortKey string
	// EFI is the absolute path of the UKI on the ESP: "/EFI/kingpost/HASH.efi".
	EFI string
}

// Counter is a boot counter: "+LEFT-DONE".
type Counter struct{ Left, Done int }

// SortKey is the sort-key of every entry of ours; entries sort by it, then by version.
const SortKey = "kingpost"

// FileName is the entry's name in loader/entries: "0.1.0+3.conf", "0.1.0+2-1.conf", "rescue.conf".
func (e BootEntry) FileName() string { return "" }

// Render is the entry's text.
func (e BootEntry) Render() []byte { return nil }

// ParseBootEntry reads an entry from its file name and content. Keys that are not in BootEntry are skipped.
func ParseBootEntry(fileName string, data []byte) (BootEntry, error) {
	return BootEntry{}, errors.ErrUnsupported
}
