package release

import (
	"fmt"
	"io"

	"kingpost/internal/gpt"
)

// NewGUIDs gives a disk of ours a disk GUID and partition GUIDs of its own, out of random, so that
// two disks from one image are never taken for each other. Partition types, names and places stay. RenewGUIDs does it for
// a disk in use, and only where it still has the image's own.
func NewGUIDs(t *gpt.Table, random io.Reader) error {
	all := []*gpt.GUID{&t.DiskGUID}
	for i := range t.Partitions {
		all = append(all, &t.Partitions[i].GUID)
	}
	for _, g := range all {
		var err error
		if *g, err = randomGUID(random); err != nil {
			return fmt.Errorf("make new GUIDs: %w", err)
		}
	}
	return nil
}

// randomGUID makes a GUID of version 4 (RFC 9562).
func randomGUID(random io.Reader) (gpt.GUID, error) {
	var g gpt.GUID
	if _, err := io.ReadFull(random, g[:]); err != nil {
		return g, err
	}
	g[7] = g[7]&0x0f | 0x40 // the version is in the last byte of the third, little-endian field
	g[8] = g[8]&0x3f | 0x80
	return g, nil
}
