package release

import (
	"fmt"
	"io"

	"kingpost/internal/gpt"
)

// NewGUIDs gives a disk of ours a disk GUID and partition GUIDs of its own, out of random (RFC 9562, version 4), so that
// two disks from one image are never taken for each other. Partition types, names and places stay.
func NewGUIDs(t *gpt.Table, random io.Reader) error {
	all := []*gpt.GUID{&t.DiskGUID}
	for i := range t.Partitions {
		all = append(all, &t.Partitions[i].GUID)
	}
	for _, g := range all {
		if _, err := io.ReadFull(random, g[:]); err != nil {
			return fmt.Errorf("make new GUIDs: %w", err)
		}
		g[7] = g[7]&0x0f | 0x40 // the version is in the last byte of the third, little-endian field
		g[8] = g[8]&0x3f | 0x80
	}
	return nil
}
