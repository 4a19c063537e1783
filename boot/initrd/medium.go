package initrd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"kingpost/boot/bootdisk"
	"kingpost/boot/loopdev"
	"kingpost/internal/atomicfile"
	"kingpost/internal/gpt"
	"kingpost/internal/mesh"
	"kingpost/internal/release"
)

// medium is where a root may be: the slots of a disk, or an image in memory.
type medium struct {
	slots []release.Slot
	node  func(number int) string
}

// What a boot from the network brings in an archive of its own behind the initrd's. The command line pins the root as it
// does on a disk, so where it comes from does not matter.
const (
	memoryRoot   = "/root.img"
	memoryConfig = "/node.yaml"
)

// inMemory returns the root image that came with the initrd; nil where none did.
func (s *stage) inMemory(ctx context.Context) (*medium, error) {
	st, err := os.Stat(memoryRoot)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err := s.need("loop"); err != nil {
		return nil, fmt.Errorf("root image in memory: %w", err)
	}
	// A file that was cut short does not verify; that it ends in the middle of a sector must not be what is said of it.
	node, err := loopdev.Attach(memoryRoot, 0, st.Size()&^511)
	if err != nil {
		return nil, err
	}
	if err := s.keepConfig(); err != nil {
		s.console.Line("warning node.yaml in memory: %v; it does not count", err)
	}
	slot := release.Slot{Partition: gpt.Partition{Name: "root image in memory"}}
	return &medium{[]release.Slot{slot}, func(int) string { return node }}, ctx.Err()
}

// keepConfig puts node.yaml where PID 1 finds it: a machine without an ESP has it nowhere else.
func (s *stage) keepConfig() error {
	st, err := os.Stat(memoryConfig)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if st.Size() > mesh.MaxNodeConfig {
		return fmt.Errorf("it has %d bytes, at most %d are taken", st.Size(), mesh.MaxNodeConfig)
	}
	b, err := os.ReadFile(memoryConfig)
	if err != nil {
		return err
	}
	return atomicfile.Write(mesh.PathMemoryConfig, b, 0o600)
}

// onDisk finds the booted disk. The partitions of an optical medium are given devices.
func (s *stage) onDisk(ctx context.Context, efivars fs.FS) (*medium, error) {
	esp, err := bootdisk.LoaderPartition(efivars)
	if err != nil {
		s.console.Line("warning %v", err)
	}
	loader, err := bootdisk.LoaderVariable(efivars, "LoaderInfo")
	s.finder.Optical = err == nil && esp == "" && loader != ""
	disk, err := s.finder.Wait(ctx, esp, diskWait, s.more)
	if err != nil {
		return nil, fmt.Errorf("find the booted disk: %w", err)
	}
	if disk.Optical() {
		if err := s.attach(disk); err != nil {
			return nil, err
		}
	}
	s.info.Disk = disk.Path
	if p, ok := disk.Partition(release.PartESP); ok {
		s.info.ESP = disk.Node(p.Number)
	}
	return &medium{release.Slots(disk.Table), disk.Node}, nil
}

// attach gives the ESP and the slots of an optical medium devices.
func (s *stage) attach(disk *bootdisk.Disk) error {
	if err := s.need("loop"); err != nil {
		return fmt.Errorf("partitions of %s: %w", disk.Path, err)
	}
	parts := []gpt.Partition{}
	if p, ok := disk.Partition(release.PartESP); ok {
		parts = append(parts, p)
	}
	for _, sl := range release.Slots(disk.Table) {
		parts = append(parts, sl.Partition)
	}
	for _, p := range parts {
		node, err := loopdev.Attach(disk.Path, p.Start, p.Size)
		if err != nil {
			return err
		}
		disk.SetNode(p.Number, node)
	}
	return nil
}
