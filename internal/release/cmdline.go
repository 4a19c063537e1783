package release

import "errors"

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
	return Cmdline{}, errors.ErrUnsupported
}

// RescueCmdline is the command line of the rescue entry.
func RescueCmdline(arch string, extra ...string) (Cmdline, error) {
	return Cmdline{}, errors.ErrUnsupported
}

// String is the command line as the kernel takes it.
func (c Cmdline) String() string { return "" }

// ParseCmdline reads a kernel command line (/proc/cmdline). Words that are not ours go to Extra; quotes are kept.
// A malformed or repeated word of ours is an error.
func ParseCmdline(s string) (Cmdline, error) { return Cmdline{}, errors.ErrUnsupported }
