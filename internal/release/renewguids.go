package release

import (
	"fmt"
	"io"

	"kingpost/internal/gpt"
)

// RenewGUIDs gives the disk, and each partition of ours on it, a new GUID where it still has the one that every image
// has, and reports whether there was any. It changes t alone; gpt.Rewrite puts it on the disk. random is crypto/rand's
// Reader outside tests. keep, if not nil, names partitions whose GUID somebody else relies on.
//
// GUIDs that were made already stay, so that doing it again, after a power cut in the middle too, changes nothing more.
func RenewGUIDs(t *gpt.Table, random io.Reader, keep func(gpt.Partition) bool) (bool, error) {
	changed := false
	renew := func(g *gpt.GUID, name string) error {
		if *g != guid(defaultSeed, name) {
			return nil
		}
		b, err := randomGUID(random)
		if err != nil {
			return fmt.Errorf("make a GUID for %s: %w", name, err)
		}
		*g, changed = b, true
		return nil
	}
	if err := renew(&t.DiskGUID, "disk"); err != nil {
		return false, err
	}
	for i := range t.Partitions {
		p := &t.Partitions[i]
		if p.GUID == guid(defaultSeed, p.Name) && keep != nil && keep(*p) {
			continue
		}
		if err := renew(&p.GUID, p.Name); err != nil {
			return false, err
		}
	}
	return changed, nil
}
