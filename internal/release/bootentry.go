package release

import (
	"bytes"
	"fmt"
	"path"
	"strconv"
	"strings"
	"unicode/utf8"
)

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

// Counter is a boot counter: "+LEFT" or "+LEFT-DONE".
type Counter struct{ Left, Done int }

// SortKey is the sort-key of every entry of ours; entries sort by it, then by version.
const SortKey = "kingpost"

// RescueID is the ID of the rescue entry, whose version is RescueVersion: below every release.
const (
	RescueID      = "rescue"
	RescueVersion = "0"
)

// MaxBootEntry bounds an entry's file, in bytes.
const MaxBootEntry = 64 << 10

// Bad reports whether an entry was tried as often as its counter allowed.
func (e BootEntry) Bad() bool { return e.Counter != nil && e.Counter.Left == 0 }

// Check says what keeps e from being written so that it reads back as the same.
func (e BootEntry) Check() error {
	if e.ID == "" || len(e.ID) > 128 {
		return fmt.Errorf("boot entry: the ID %.40q has not 1 to 128 characters", e.ID)
	}
	for _, c := range e.ID {
		// No "+": what follows the first one is the counter.
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("._-~^", c)) {
			return fmt.Errorf("boot entry: the ID %q has %q; letters, digits and . _ - ~ ^ are allowed", e.ID, c)
		}
	}
	if e.ID[0] == '.' {
		return fmt.Errorf("boot entry: the ID %q starts with a dot", e.ID)
	}
	if e.Counter != nil && (e.Counter.Left < 0 || e.Counter.Done < 0 || e.Counter.Left > maxCounter || e.Counter.Done > maxCounter) {
		return fmt.Errorf("boot entry %s: the counter %+v is out of range", e.ID, *e.Counter)
	}
	for key, v := range map[string]string{"title": e.Title, "version": e.Version, "sort-key": e.SortKey, "efi": e.EFI} {
		if strings.ContainsFunc(v, func(r rune) bool { return r < 0x20 || r == 0x7f }) || strings.TrimSpace(v) != v || !utf8.ValidString(v) {
			return fmt.Errorf("boot entry %s: the %s %q cannot be written in one line", e.ID, key, v)
		}
	}
	if e.EFI == "" {
		return fmt.Errorf("boot entry %s: it names no EFI program", e.ID)
	}
	if !strings.HasPrefix(e.EFI, "/") || path.Clean(e.EFI) != e.EFI || strings.ContainsRune(e.EFI, '\\') {
		return fmt.Errorf("boot entry %s: %q is no clean absolute path on the ESP", e.ID, e.EFI)
	}
	return nil
}

// maxCounter bounds a boot counter; systemd-boot's own is far above what anybody uses.
const maxCounter = 1000

// FileName is the entry's name in loader/entries: "0.1.0+3.conf", "0.1.0+2-1.conf", "rescue.conf".
func (e BootEntry) FileName() string {
	switch {
	case e.Counter == nil:
		return e.ID + ".conf"
	case e.Counter.Done == 0:
		return fmt.Sprintf("%s+%d.conf", e.ID, e.Counter.Left)
	}
	return fmt.Sprintf("%s+%d-%d.conf", e.ID, e.Counter.Left, e.Counter.Done)
}

// Render is the entry's text.
func (e BootEntry) Render() []byte {
	var b bytes.Buffer
	for _, l := range [][2]string{{"title", e.Title}, {"version", e.Version}, {"sort-key", e.SortKey}, {"efi", e.EFI}} {
		if l[1] != "" {
			fmt.Fprintf(&b, "%s %s\n", l[0], l[1])
		}
	}
	return b.Bytes()
}

// ParseBootEntry reads an entry from its file name and content. Keys that are not in BootEntry are skipped; one of
// ours that is there twice is an error, as is a name or path that Check refuses.
func ParseBootEntry(fileName string, data []byte) (BootEntry, error) {
	if len(data) > MaxBootEntry {
		return BootEntry{}, fmt.Errorf("boot entry %.40q: it has %d bytes, at most %d are read", fileName, len(data), MaxBootEntry)
	}
	name, ok := strings.CutSuffix(fileName, ".conf")
	if !ok {
		return BootEntry{}, fmt.Errorf("boot entry %.40q: the name does not end in .conf", fileName)
	}
	e := BootEntry{ID: name}
	if id, count, ok := strings.Cut(name, "+"); ok {
		c, err := parseCounter(count)
		if err != nil {
			return BootEntry{}, fmt.Errorf("boot entry %.40q: %w", fileName, err)
		}
		e.ID, e.Counter = id, &c
	}
	fields := map[string]*string{"title": &e.Title, "version": &e.Version, "sort-key": &e.SortKey, "efi": &e.EFI}
	seen := map[string]bool{}
	for _, line := range strings.Split(string(data), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		key, value := line, ""
		if i := strings.IndexAny(line, " \t"); i >= 0 {
			key, value = line[:i], strings.TrimSpace(line[i:])
		}
		to := fields[key]
		if to == nil {
			continue
		}
		if seen[key] {
			return BootEntry{}, fmt.Errorf("boot entry %.40q: the key %s is there twice", fileName, key)
		}
		seen[key] = true
		*to = value
	}
	if err := e.Check(); err != nil {
		return BootEntry{}, err
	}
	return e, nil
}

func parseCounter(s string) (Counter, error) {
	left, done, both := strings.Cut(s, "-")
	var c Counter
	var err error
	if c.Left, err = parseCount(left); err == nil && both {
		c.Done, err = parseCount(done)
	}
	if err != nil {
		return Counter{}, fmt.Errorf("the boot counter %.20q is not LEFT or LEFT-DONE", s)
	}
	return c, nil
}

func parseCount(s string) (int, error) {
	if s == "" || strings.Trim(s, "0123456789") != "" {
		return 0, strconv.ErrSyntax
	}
	n, err := strconv.Atoi(s)
	if err == nil && n > maxCounter {
		err = strconv.ErrRange
	}
	return n, err
}
