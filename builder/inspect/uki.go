package inspect

import (
	"errors"
	"io"
	"strings"

	"kingpost/internal/release"
	"kingpost/internal/uki"
)

// UKIReport is what a UKI says about itself.
type UKIReport struct {
	Release  string    `json:"release"` // of its os-release
	Kernel   string    `json:"kernel"`
	Cmdline  string    `json:"cmdline"`
	Sections []Section `json:"sections"`
	// RootHash and HashOffset are what its command line pins; empty and 0 for the rescue entry's.
	RootHash   string `json:"rootHash,omitempty"`
	HashOffset int64  `json:"hashOffset,omitempty"`
	Rescue     bool   `json:"rescue,omitempty"`
}

// Section is a section of a UKI.
type Section struct {
	Name string `json:"name"`
	Size int64  `json:"size"` // bytes
}

// UKI inspects a UKI of size bytes.
func UKI(r io.ReaderAt, size int64) (*UKIReport, error) {
	img, err := uki.Read(r, size)
	if err != nil {
		return nil, err
	}
	if img.Section(uki.Linux) == nil {
		return nil, errors.New("is an EFI program, but no UKI: there is no kernel in it")
	}
	u := &UKIReport{}
	for _, s := range img.Sections {
		u.Sections = append(u.Sections, Section{s.Name, s.Size()})
	}
	osrel, err := img.Text(uki.OSRel)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(osrel) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME="); ok {
			u.Release = strings.Trim(v, `"`)
		}
	}
	if u.Kernel, err = img.Text(uki.Uname); err != nil {
		return nil, err
	}
	if u.Cmdline, err = img.Text(uki.Cmdline); err != nil {
		return nil, err
	}
	c, err := release.ParseCmdline(u.Cmdline)
	if err != nil {
		return nil, err
	}
	u.RootHash, u.HashOffset, u.Rescue = c.RootHash, c.HashOffset, c.Rescue
	return u, nil
}
