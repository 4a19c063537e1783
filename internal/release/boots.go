package release

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"kingpost/internal/fat32"
	"kingpost/internal/gpt"
	"kingpost/internal/uki"
	"kingpost/internal/verity"
)

// Boot is what a disk starts when firmware is pointed at it, as far as the disk itself decides: without NVRAM, without a
// one-shot entry.
type Boot struct {
	Table   *gpt.Table
	Entry   BootEntry
	Cmdline Cmdline
	// Slot is where the entry's root is; zero for rescue.
	Slot Slot
	// Others are the entries that come after it, in order.
	Others []BootEntry
}

// Depth is how much of what a disk starts is read.
type Depth int

// Depths of FindBoot.
const (
	DepthTop      Depth = iota // the structures, and the top of the root's hash tree
	DepthPrograms              // and every byte of the UKI
	DepthWhole                 // and every block of the root
)

// ErrNotBootable is wrapped by errors of FindBoot for a disk that firmware would pass over: nothing on it can be started,
// rightly or wrongly.
var ErrNotBootable = errors.New("not bootable")

const maxUKI = 1 << 30 // bytes

// FindBoot works out what a disk of size bytes starts, and checks all of it: partition table, boot loader, entry, the UKI
// against the hash in its name, the root in a slot against the hash that the UKI pins, as deep as depth says. A disk without a partition table or boot loader is ErrNotBootable; any other error means that something
// starts which is not whole. It reads as the boot does: ReadGPT, the boot loader's order of entries, FindRoots and
// verity.VerifyAll.
func FindBoot(ctx context.Context, r io.ReaderAt, size int64, depth Depth) (*Boot, error) {
	t, err := ReadGPT(r, size, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotBootable, err)
	}
	if !IsKingpost(t) {
		return nil, fmt.Errorf("%w: it is no disk of Kingpost, it has not all four partitions", ErrNotBootable)
	}
	esp, err := OpenESP(fat32.ReadOnly(r), t)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotBootable, err)
	}
	if !hasLoader(esp) {
		return nil, fmt.Errorf("%w: there is no boot loader below EFI/BOOT", ErrNotBootable)
	}
	entries, err := ReadEntries(esp)
	if err != nil {
		return nil, fmt.Errorf("boot entries: %w", err)
	}
	if len(entries) == 0 {
		return nil, errors.New("the boot loader has no entry to start")
	}
	b := &Boot{Table: t, Entry: entries[0], Others: entries[1:]}
	if err := b.check(ctx, r, esp, depth); err != nil {
		return nil, fmt.Errorf("boot entry %s: %w", b.Entry.FileName(), err)
	}
	return b, nil
}

func hasLoader(esp *fat32.FS) bool {
	names, err := esp.List("EFI/BOOT")
	return err == nil && slices.ContainsFunc(names, func(i fat32.Info) bool {
		return strings.HasPrefix(strings.ToUpper(i.Name), "BOOT") && strings.HasSuffix(strings.ToUpper(i.Name), ".EFI") && i.Size > 0
	})
}

// ReadEntries returns the entries in the order in which the boot loader takes them. One that does not parse is left out,
// as the boot loader does.
func ReadEntries(esp *fat32.FS) ([]BootEntry, error) {
	names, err := esp.List(ESPEntries)
	if err != nil {
		return nil, err
	}
	var out []BootEntry
	for _, i := range names {
		if i.Dir || !strings.HasSuffix(i.Name, ".conf") {
			continue
		}
		raw, err := esp.ReadFile(path.Join(ESPEntries, i.Name), MaxBootEntry)
		if err != nil {
			return nil, err
		}
		if e, err := ParseBootEntry(i.Name, raw); err == nil {
			out = append(out, e)
		}
	}
	SortEntries(out)
	return out, nil
}

// SortEntries puts entries into the order in which systemd-boot takes them: those whose tries are used up last, then by
// sort-key, then the higher version first (UAPI Boot Loader Specification, sorting).
func SortEntries(e []BootEntry) {
	slices.SortStableFunc(e, func(a, b BootEntry) int {
		if a.Bad() != b.Bad() {
			if a.Bad() {
				return 1
			}
			return -1
		}
		return cmp.Or(strings.Compare(a.SortKey, b.SortKey), -CompareVersions(a.Version, b.Version), strings.Compare(a.ID, b.ID))
	})
}

// CompareVersions orders versions as the UAPI version format specification does: numbers by value, letters by the
// alphabet, "~" before nothing at all.
func CompareVersions(a, b string) int {
	const separators = "-.^~"
	for {
		trim := func(s string) string {
			return strings.TrimLeftFunc(s, func(r rune) bool { return !isAlnum(byte(r)) && !strings.ContainsRune(separators, r) || r > 0x7f })
		}
		a, b = trim(a), trim(b)
		for _, sep := range "~" + "\x00" + "-^." {
			if sep == 0 {
				// Nothing is left of one of them: the shorter is the older.
				if a == "" || b == "" {
					return cmp.Compare(min(len(a), 1), min(len(b), 1))
				}
				continue
			}
			hasA, hasB := strings.HasPrefix(a, string(sep)), strings.HasPrefix(b, string(sep))
			if hasA && hasB {
				a, b = a[1:], b[1:]
			} else if hasA {
				return -1
			} else if hasB {
				return 1
			}
		}
		kind := isDigit
		if !(a != "" && isDigit(a[0]) || b != "" && isDigit(b[0])) {
			kind = isLetter
		}
		x, y := prefix(a, kind), prefix(b, kind)
		a, b = a[len(x):], b[len(y):]
		if kind('0') {
			x, y = strings.TrimLeft(x, "0"), strings.TrimLeft(y, "0")
			if c := cmp.Compare(len(x), len(y)); c != 0 {
				return c
			}
		}
		if c := strings.Compare(x, y); c != 0 {
			return c
		}
		if a == "" && b == "" {
			return 0
		}
	}
}

func isDigit(c byte) bool  { return c >= '0' && c <= '9' }
func isLetter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }
func isAlnum(c byte) bool  { return isDigit(c) || isLetter(c) }

func prefix(s string, is func(byte) bool) string {
	i := 0
	for i < len(s) && is(s[i]) {
		i++
	}
	return s[:i]
}

func (b *Boot) check(ctx context.Context, r io.ReaderAt, esp *fat32.FS, depth Depth) error {
	name := strings.TrimPrefix(b.Entry.EFI, "/")
	f, err := esp.OpenFile(name)
	if err != nil {
		return err
	}
	if f.Size() > maxUKI {
		return fmt.Errorf("%s has %d bytes", name, f.Size())
	}
	sum, ok := strings.CutSuffix(path.Base(name), ".efi")
	if !ok || len(sum) != 2*sha256.Size {
		return fmt.Errorf("%s is not named by the hash of its bytes", name)
	}
	if depth >= DepthPrograms {
		h := sha256.New()
		if _, err := io.CopyBuffer(h, io.NewSectionReader(f, 0, f.Size()), make([]byte, copyChunk)); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if got := hex.EncodeToString(h.Sum(nil)); got != sum {
			return fmt.Errorf("%s hashes to %s", name, got)
		}
	}
	img, err := uki.Read(f, f.Size())
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	text, err := img.Text(uki.Cmdline)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if b.Cmdline, err = ParseCmdline(text); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if b.Cmdline.Rescue {
		return nil
	}
	if b.Cmdline.RootHash == "" {
		return fmt.Errorf("%s pins no root", name)
	}
	hash, err := hex.DecodeString(b.Cmdline.RootHash)
	if err != nil {
		return err
	}
	var reasons []error
	for _, root := range FindRoots(r, b.Table, hash, b.Cmdline.HashOffset) {
		if root.Err == nil && depth >= DepthWhole {
			root.Err = verity.VerifyAll(ctx, io.NewSectionReader(r, root.Start, root.Size), hash, b.Cmdline.HashOffset, nil)
		}
		if root.Err == nil {
			b.Slot = root.Slot
			return nil
		}
		reasons = append(reasons, fmt.Errorf("slot %s: %w", root.Letter, root.Err))
	}
	return fmt.Errorf("no slot has its root %.16s...: %w", b.Cmdline.RootHash, errors.Join(reasons...))
}
