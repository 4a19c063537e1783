package initrd

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"

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

// root finds the release's root where it may be, verifies all of it and only then mounts it, on newRoot.
func (s *stage) root(ctx context.Context, where *medium, cmd release.Cmdline) error {
	want, err := hex.DecodeString(cmd.RootHash)
	if err != nil {
		return fmt.Errorf("kingpost.root=%s: %w", cmd.RootHash, err)
	}
	var dev string
	letter, node, err := pick(where.slots, where.node, func(node string) (err error) {
		dev, err = verified(ctx, node, want, cmd.HashOffset)
		return err
	})
	if err != nil {
		return err
	}
	s.times.Mark("verify")
	if err := os.MkdirAll(newRoot, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(dev, newRoot, "erofs", unix.MS_RDONLY|unix.MS_NODEV, ""); err != nil {
		return fmt.Errorf("mount the root on %s as EROFS: %w", node, err)
	}
	s.info.Slot, s.info.RootHash = letter, cmd.RootHash
	s.times.Mark("root")
	return nil
}

// verified maps the root on node with dm-verity and reads all of it through the map, so that the kernel checks every
// block up to the root hash. It returns the mapped device, or, with nothing left mapped, why it cannot be trusted.
//
// The kernel does it because it is the fastest here: in an emulated machine its plain C hashes 44 MB/s where Go's
// assembly reaches 27, and on a real one it spreads the work over the CPUs. Only when a read fails is the root
// checked once more in this program, to say which block is bad.
func verified(ctx context.Context, node string, rootHash []byte, hashOffset int64) (string, error) {
	slot, err := bootdisk.OpenDirect(node)
	if err != nil {
		return "", err
	}
	defer slot.Close()
	if err := verity.CheckRoot(slot, rootHash, hashOffset); err != nil {
		return "", err
	}
	sb, err := verity.ReadSuperblock(slot, hashOffset)
	if err != nil {
		return "", err
	}
	// A block that goes bad later is an I/O error for who reads it, not a dead node: what runs already goes on.
	t := verity.DMTable(node, sb, rootHash, hashOffset, false)
	dev, err := dm.Map(mapName, t.Sectors, t.Type, t.Params)
	if err != nil {
		return "", err
	}
	bad := readAll(ctx, dev, int64(t.Sectors)*512)
	if bad == nil {
		return dev, nil
	}
	if err := dm.Remove(mapName); err != nil {
		return "", errors.Join(bad, err)
	}
	if err := verity.VerifyAll(ctx, slot, rootHash, hashOffset, nil); err != nil {
		return "", err
	}
	return "", bad
}

// readers is how many reads are under way at once: one is hashed while another comes from the disk.
const readers = 2

// readChunk is how much is read at once, in bytes.
const readChunk = 1 << 20

// readAll reads the first size bytes of a device past the page cache and throws them away.
func readAll(ctx context.Context, path string, size int64) error {
	dev, err := bootdisk.OpenDirect(path)
	if err != nil {
		return err
	}
	defer dev.Close()
	var next atomic.Int64
	var wg sync.WaitGroup
	errs := make([]error, max(readers, runtime.NumCPU()))
	for i := range errs {
		wg.Go(func() {
			buf := make([]byte, readChunk)
			for ctx.Err() == nil {
				off := next.Add(readChunk) - readChunk
				if off >= size {
					return
				}
				b := buf[:min(readChunk, size-off)]
				if _, err := dev.ReadAt(b, off); err != nil {
					errs[i] = fmt.Errorf("read %s at byte %d: %w", path, off, err)
					next.Store(size)
					return
				}
			}
			errs[i] = ctx.Err()
		})
	}
	wg.Wait()
	return errors.Join(errs...)
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
