package release

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"kingpost/internal/verity"
)

// Words of ours on the kernel command line.
const (
	wordRoot   = "kingpost.root"
	wordOffset = "kingpost.hashoffset"
	wordRescue = "kingpost.rescue"
)

// MaxCmdline is the longest command line, in bytes: what x86 kernels take (COMMAND_LINE_SIZE) with the final zero.
const MaxCmdline = 2047

// Cmdline is the kernel command line of a release.
type Cmdline struct {
	RootHash   string // hex, the verity root hash; empty for rescue
	HashOffset int64  // bytes into the root image where the verity superblock is
	Rescue     bool
	// Extra is all other words, in order.
	Extra []string
}

// NewCmdline is the command line that a release of arch is built with: consoles, gpt, panic and log level, then
// extra, the recipe's own words.
func NewCmdline(arch, rootHash string, hashOffset int64, extra ...string) (Cmdline, error) {
	return newCmdline(arch, Cmdline{RootHash: rootHash, HashOffset: hashOffset}, extra)
}

// RescueCmdline is the command line of the rescue entry: no root, and the word that says so.
func RescueCmdline(arch string, extra ...string) (Cmdline, error) {
	return newCmdline(arch, Cmdline{Rescue: true}, extra)
}

func newCmdline(architecture string, c Cmdline, extra []string) (Cmdline, error) {
	a, err := lookupArch(architecture)
	if err != nil {
		return Cmdline{}, fmt.Errorf("kernel command line: %w", err)
	}
	// "gpt" makes Linux take the backup table when the primary one is damaged. Huge pages go to who asks for them: given
	// unasked they let each small server hold megabytes that it never touches, and every start clears them.
	c.Extra = append([]string{"console=tty0", "console=" + a.serial, "gpt", "panic=10", "quiet", "loglevel=3", "transparent_hugepage=madvise"}, extra...)
	for _, w := range extra {
		if strings.HasPrefix(w, "kingpost.") {
			return Cmdline{}, fmt.Errorf("kernel command line: the word %q is not the recipe's to set", w)
		}
		if got := words(w); len(got) != 1 || got[0] != w || strings.Count(w, `"`)%2 != 0 {
			return Cmdline{}, fmt.Errorf("kernel command line: %q is not one word", w)
		}
		for i := range len(w) {
			if w[i] < 0x20 || w[i] > 0x7e {
				return Cmdline{}, fmt.Errorf("kernel command line: the word %q has a character that is not printable ASCII", w)
			}
		}
	}
	s := c.String()
	if len(s) > MaxCmdline {
		return Cmdline{}, fmt.Errorf("kernel command line: it has %d bytes, kernels take %d", len(s), MaxCmdline)
	}
	if _, err := ParseCmdline(s); err != nil {
		return Cmdline{}, err
	}
	return c, nil
}

// String is the command line as the kernel takes it, without a line end.
func (c Cmdline) String() string {
	var w []string
	if c.RootHash != "" {
		w = append(w, wordRoot+"="+c.RootHash, wordOffset+"="+strconv.FormatInt(c.HashOffset, 10))
	}
	if c.Rescue {
		w = append(w, wordRescue+"=1")
	}
	return strings.Join(append(w, c.Extra...), " ")
}

// words splits a command line at spaces outside double quotes, as the kernel does (next_arg in lib/cmdline.c).
func words(s string) []string {
	var out []string
	start, quoted := -1, false
	for i := 0; i <= len(s); i++ {
		end := i == len(s)
		space := !end && !quoted && strings.IndexByte(" \t\r\n\v\f\x00", s[i]) >= 0
		switch {
		case end || space:
			if start >= 0 {
				out = append(out, s[start:i])
			}
			start = -1
			continue
		case s[i] == '"':
			quoted = !quoted
		}
		if start < 0 {
			start = i
		}
	}
	return out
}

// ParseCmdline reads a kernel command line (/proc/cmdline). Words that are not ours go to Extra, quotes and all.
// A malformed, repeated or contradictory word of ours is an error. One without any of ours gives a Cmdline without
// RootHash and Rescue.
func ParseCmdline(s string) (Cmdline, error) {
	var c Cmdline
	seen := map[string]bool{}
	for _, w := range words(s) {
		key, value, _ := strings.Cut(w, "=")
		switch key {
		case wordRoot, wordOffset, wordRescue:
			if seen[key] {
				return Cmdline{}, fmt.Errorf("kernel command line: %s is there twice", key)
			}
			seen[key] = true
		default:
			c.Extra = append(c.Extra, w)
			continue
		}
		switch key {
		case wordRoot:
			b, err := hex.DecodeString(value)
			if err != nil || len(b) != verity.HashSize || hex.EncodeToString(b) != value {
				return Cmdline{}, fmt.Errorf("kernel command line: %s=%.80q is no root hash, which has %d lower-case hex digits", key, value, 2*verity.HashSize)
			}
			c.RootHash = value
		case wordOffset:
			n, err := strconv.ParseInt(value, 10, 64)
			if err != nil || n <= 0 || n%verity.BlockSize != 0 || strconv.FormatInt(n, 10) != value {
				return Cmdline{}, fmt.Errorf("kernel command line: %s=%.80q is no positive multiple of %d", key, value, verity.BlockSize)
			}
			c.HashOffset = n
		case wordRescue:
			if value != "1" {
				return Cmdline{}, fmt.Errorf("kernel command line: %s=%.80q can only be 1", key, value)
			}
			c.Rescue = true
		}
	}
	if seen[wordRoot] != seen[wordOffset] {
		return Cmdline{}, fmt.Errorf("kernel command line: %s and %s belong together, only one of them is there", wordRoot, wordOffset)
	}
	if c.Rescue && c.RootHash != "" {
		return Cmdline{}, fmt.Errorf("kernel command line: %s and %s exclude each other", wordRescue, wordRoot)
	}
	return c, nil
}
