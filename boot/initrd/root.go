package initrd

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"kingpost/boot/bootdisk"
	"kingpost/boot/dm"
	"kingpost/internal/release"
	"kingpost/internal/verity"
)

// newRoot is where the root is mounted before it becomes the root.
const newRoot = "/sysroot"

// mapName is the name of the root's device-mapper device.
const mapName = "kingpost-root"

// root finds the release's root among the slots, verifies it and mounts it on newRoot.
func (s *stage) root(ctx context.Context, disk *bootdisk.Disk, cmd release.Cmdline) error {
	want, err := hex.DecodeString(cmd.RootHash)
	if err != nil {
		return fmt.Errorf("kingpost.root=%s: %w", cmd.RootHash, err)
	}
	letter, node, err := pick(release.Slots(disk.Table), disk.Node, func(node string) error {
		dev, err := bootdisk.OpenDirect(node)
		if err != nil {
			return err
		}
		defer dev.Close()
		if err := verity.CheckRoot(dev, want, cmd.HashOffset); err != nil {
			return err
		}
		return verity.VerifyAll(ctx, dev, want, cmd.HashOffset, nil)
	})
	if err != nil {
		return err
	}
	s.times.Mark("verify")
	if err := mapRoot(node, want, cmd.HashOffset); err != nil {
		return fmt.Errorf("mount the root from slot %s (%s): %w", letter, node, err)
	}
	s.info.Slot, s.info.RootHash = letter, cmd.RootHash
	s.times.Mark("root")
	return nil
}

// pick returns the first slot of which check says that it is, whole, the root that is looked for. Where there is none the
// error says of each slot why not; the slot that begins like the root but has a bad block is said first.
func pick(slots []release.Slot, nodeOf func(int) string, check func(node string) error) (letter, node string, err error) {
	var bad, other []string
	for _, sl := range slots {
		node := nodeOf(sl.Number)
		if node == "" {
			other = append(other, fmt.Sprintf("%s has no device", sl.Name))
			continue
		}
		err := check(node)
		if err == nil {
			return sl.Letter, node, nil
		}
		text := fmt.Sprintf("%s (%s): %v", sl.Name, node, err)
		var corrupt *verity.CorruptError
		if errors.As(err, &corrupt) && corrupt.Level < 0 {
			bad = append(bad, text)
		} else {
			other = append(other, text)
		}
	}
	if len(slots) == 0 {
		other = []string{"the disk has no root slot"}
	}
	return "", "", &rootError{append(bad, other...)}
}

// rootError says for each slot why it is not mounted.
type rootError struct{ reasons []string }

func (e *rootError) Error() string {
	return "no root that can be trusted, so none is mounted: " + strings.Join(e.reasons, "; ") +
		"; write the release to the disk again, or boot another entry"
}

func mapRoot(node string, rootHash []byte, hashOffset int64) error {
	f, err := os.Open(node)
	if err != nil {
		return err
	}
	sb, err := verity.ReadSuperblock(f, hashOffset)
	f.Close()
	if err != nil {
		return err
	}
	// A block that goes bad later is an I/O error for who reads it, not a dead node: what runs already goes on.
	t := verity.DMTable(node, sb, rootHash, hashOffset, false)
	dev, err := dm.Map(mapName, t.Sectors, t.Type, t.Params)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(newRoot, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(dev, newRoot, "erofs", unix.MS_RDONLY|unix.MS_NODEV, ""); err != nil {
		return fmt.Errorf("mount %s as EROFS: %w", dev, err)
	}
	return nil
}
