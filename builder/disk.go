package builder

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"kingpost/internal/ext4img"
	"kingpost/internal/mesh"
	"kingpost/internal/release"
)

// writeDisk writes the raw disk image to file: ESP with the release's entry and the rescue entry, root-A, an empty
// root-B, and an empty data partition that a node grows.
func writeDisk(ctx context.Context, file string, r *Recipe, info mesh.ReleaseInfo, b *bootFiles, root *rootImage, phase Phase) (err error) {
	plan, err := release.NewPlan(release.DiskSpec{
		Arch: info.Architecture, ESPSize: int64(r.Slots.ESP), RootSize: int64(r.Slots.Root), DataSize: int64(r.Slots.Data),
	})
	if err != nil {
		return err
	}
	esp, err := release.ESPFiles(release.ESPSpec{Arch: info.Architecture, Info: info, Bootloader: b.loader, UKI: b.uki, Rescue: b.rescue})
	if err != nil {
		return err
	}
	part, ok := plan.Partition(release.PartData)
	if !ok {
		return fmt.Errorf("the disk's plan has no partition %s", release.PartData)
	}
	data := filepath.Join(filepath.Dir(file), ".data.img")
	defer os.Remove(data)
	size := part.Size
	if err := ext4img.Make(ctx, data, ext4img.Options{Size: size, UUID: fixedID(info, "data"), HashSeed: fixedID(info, "hash"), Time: r.Time()}); err != nil {
		return err
	}
	dataFile, err := os.Open(data)
	if err != nil {
		return err
	}
	defer dataFile.Close()
	rootFile, err := os.Open(root.file)
	if err != nil {
		return err
	}
	defer rootFile.Close()
	out, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if err := out.Truncate(plan.Size); err != nil {
		return err
	}
	return release.WriteDisk(ctx, out, plan, release.Contents{
		ESP: esp, Time: r.Time(),
		RootA: &release.Content{ReaderAt: rootFile, Size: root.Size},
		Data:  &release.Content{ReaderAt: dataFile, Size: size},
	}, phase.Progress)
}
