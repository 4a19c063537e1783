package fat32

import (
	"fmt"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// longAt is where the 13 UTF-16 units of a piece of a long name are.
var longAt = [13]int{1, 3, 5, 7, 9, 14, 16, 18, 20, 22, 24, 28, 30}

// maxLongSlots is how many pieces the longest name has: 255 units.
const maxLongSlots = 20

func checkName(name string) error {
	if name == "" || name == "." || name == ".." || !utf8.ValidString(name) || len(utf16.Encode([]rune(name))) > 255 {
		return fmt.Errorf("%q is no name for a file", name)
	}
	for _, c := range name {
		if c < 0x20 || c == 0x7f || strings.ContainsRune(`"*/:<>?\|`, c) {
			return fmt.Errorf("the file name %q has %q, which FAT cannot hold", name, c)
		}
	}
	if strings.HasSuffix(name, " ") || strings.HasSuffix(name, ".") {
		return fmt.Errorf("the file name %q ends in a space or a dot, which FAT drops", name)
	}
	return nil
}

// shortName is an on-disk short name as text.
func shortName(s [11]byte) string {
	base, ext := strings.TrimRight(string(s[:8]), " "), strings.TrimRight(string(s[8:]), " ")
	if base != "" && base[0] == 0x05 {
		base = "\xe5" + base[1:]
	}
	if ext != "" {
		base += "." + ext
	}
	return base
}

// exact reports whether name can be stored as a short name alone.
func exact(name string) (short [11]byte, ok bool) {
	base, ext, _ := strings.Cut(name, ".")
	if base == "" || len(base) > 8 || len(ext) > 3 || strings.HasSuffix(name, ".") {
		return short, false
	}
	for _, c := range base + ext {
		if !shortChar(c) {
			return short, false
		}
	}
	copy(short[:], fmt.Sprintf("%-8s%-3s", base, ext))
	return short, true
}

func shortChar(c rune) bool {
	return c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("!#$%&'()-@^_`{}~", c)
}

// alias makes a short name for name that taken does not have: BASE~N.EXT, as the specification describes.
func alias(name string, taken func([11]byte) bool) ([11]byte, error) {
	clean := func(s string, n int) string {
		var b strings.Builder
		for _, c := range strings.ToUpper(s) {
			if c == ' ' || c == '.' {
				continue
			}
			if !shortChar(c) {
				c = '_'
			}
			if b.Len() < n {
				b.WriteRune(c)
			}
		}
		return b.String()
	}
	name = strings.TrimLeft(name, ".")
	base, ext := name, ""
	if i := strings.LastIndexByte(name, '.'); i > 0 {
		base, ext = name[:i], name[i+1:]
	}
	base, ext = clean(base, 8), clean(ext, 3)
	for n := 1; n < 1_000_000; n++ {
		tail := fmt.Sprintf("~%d", n)
		var s [11]byte
		copy(s[:], fmt.Sprintf("%-8s%-3s", base[:min(len(base), 8-len(tail))]+tail, ext))
		if !taken(s) {
			return s, nil
		}
	}
	return [11]byte{}, fmt.Errorf("there are too many names like %q in one folder", name)
}

// checksum ties the pieces of a long name to their short one.
func checksum(short [11]byte) (sum byte) {
	for _, c := range short {
		sum = sum>>1 | sum<<7
		sum += c
	}
	return sum
}

// longPieces returns the pieces of a long name in the order in which they are on disk.
func longPieces(name string, short [11]byte) []byte {
	units := utf16.Encode([]rune(name))
	n := (len(units) + 12) / 13
	out := make([]byte, n*entrySize)
	for i := range n {
		b := out[(n-1-i)*entrySize:][:entrySize]
		b[0] = byte(i + 1)
		if i == n-1 {
			b[0] |= lastLong
		}
		b[atAttr], b[13] = attrLong, checksum(short)
		for j, at := range longAt {
			u := uint16(0xffff)
			if k := i*13 + j; k < len(units) {
				u = units[k]
			} else if k == len(units) {
				u = 0
			}
			b[at], b[at+1] = byte(u), byte(u>>8)
		}
	}
	return out
}
