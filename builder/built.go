package builder

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"kingpost/internal/blockmap"
	"kingpost/internal/ext4img"
	"kingpost/internal/mesh"
	"kingpost/internal/release"
)

// Built is a release that was built, and what its outputs are made of. Outputs are written one after the other, so what
// several of them need is made once.
type Built struct {
	recipe *Recipe
	info   mesh.ReleaseInfo
	dir    string // where outputs go
	wanted []string
	boot   *bootFiles
	root   *rootImage
	room   []Room

	disk *diskImage
}

// diskImage is the raw disk image, which several outputs are another form of.
type diskImage struct {
	file string
	size int64
	m    *blockmap.Map
}

func newBuilt(r *Recipe, info mesh.ReleaseInfo, dir string, wanted []Output) *Built {
	b := &Built{recipe: r, info: info, dir: dir}
	for _, o := range wanted {
		b.wanted = append(b.wanted, o.Files(r.Name)...)
	}
	return b
}

// path is where a file of an output goes.
func (b *Built) path(name string) string { return filepath.Join(b.dir, filepath.FromSlash(name)) }

// work is where a file goes that is no output itself.
func (b *Built) work(name string) (string, error) {
	dir := filepath.Join(b.dir, workDir)
	return filepath.Join(dir, name), os.MkdirAll(dir, 0o700)
}

// place is where a file goes that is an output, or only what others are made of.
func (b *Built) place(name string) (string, error) {
	if slices.Contains(b.wanted, name) {
		return b.path(name), nil
	}
	return b.work(name)
}

// Disk makes the raw disk image where it is not there yet.
func (b *Built) Disk(ctx context.Context, progress func(done, total int64)) (*diskImage, error) {
	if b.disk != nil {
		return b.disk, nil
	}
	plan, err := b.plan(release.DiskSpec{})
	if err != nil {
		return nil, err
	}
	file, err := b.place(FileDisk)
	if err != nil {
		return nil, err
	}
	if err := b.writeDisk(ctx, file, plan, progress); err != nil {
		return nil, err
	}
	b.disk = &diskImage{file: file, size: plan.Size}
	return b.disk, nil
}

// Map is the block map of the raw disk image.
func (b *Built) Map(ctx context.Context) (*blockmap.Map, error) {
	d, err := b.Disk(ctx, nil)
	if err != nil || d.m != nil {
		return d.m, err
	}
	f, err := os.Open(d.file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	d.m, err = blockmap.MakeFile(ctx, f)
	return d.m, err
}

// mapWriter writes the block map to a file; nil where no output has one.
func (b *Built) mapWriter() func(ctx context.Context, file string) error {
	if !slices.Contains(b.wanted, FileMap) {
		return nil
	}
	return func(ctx context.Context, file string) error {
		m, err := b.Map(ctx)
		if err != nil {
			return err
		}
		return os.WriteFile(file, m.Encode(), 0o644)
	}
}

// plan plans a disk of the recipe's sizes; s says what else it is to be.
func (b *Built) plan(s release.DiskSpec) (release.Plan, error) {
	s.Arch, s.RootSize, s.DataSize = b.info.Architecture, int64(b.recipe.Slots.Root), int64(b.recipe.Slots.Data)
	if s.ESPSize == 0 {
		s.ESPSize = int64(b.recipe.Slots.ESP)
	}
	return release.NewPlan(s)
}

// writeDisk writes a raw disk to file with what plan has of these: ESP with the release's entry and the rescue entry,
// root-A, an empty root-B, and an empty data partition that a node grows.
func (b *Built) writeDisk(ctx context.Context, file string, plan release.Plan, progress func(done, total int64)) (err error) {
	c := release.Contents{Time: b.recipe.Time()}
	if _, ok := plan.Partition(release.PartESP); ok {
		if c.ESP, err = b.espFiles(); err != nil {
			return err
		}
	}
	if _, ok := plan.Partition(release.PartRootA); ok {
		root, err := os.Open(b.root.file)
		if err != nil {
			return err
		}
		defer root.Close()
		c.RootA = &release.Content{ReaderAt: root, Size: b.root.Size}
	}
	if p, ok := plan.Partition(release.PartData); ok {
		data, err := b.dataImage(ctx, p.Size)
		if err != nil {
			return err
		}
		defer data.Close()
		c.Data = &release.Content{ReaderAt: data, Size: p.Size}
	}
	out, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if err := out.Truncate(plan.Size); err != nil {
		return err
	}
	return release.WriteDisk(ctx, out, plan, c, progress)
}

// dataImage is an empty data partition of size bytes. The caller closes it.
func (b *Built) dataImage(ctx context.Context, size int64) (*os.File, error) {
	file, err := b.work(fmt.Sprintf("data-%d", size))
	if err != nil {
		return nil, err
	}
	if f, err := os.Open(file); err == nil {
		return f, nil
	}
	o := ext4img.Options{Size: size, UUID: fixedID(b.info, "data"), HashSeed: fixedID(b.info, "hash"), Time: b.recipe.Time()}
	if err := ext4img.Make(ctx, file, o); err != nil {
		return nil, err
	}
	return os.Open(file)
}

// packedData is the empty data partition as the root carries it, for the disks that a node installs itself onto.
func (b *Built) packedData(ctx context.Context) (string, error) {
	plan, err := b.plan(release.DiskSpec{})
	if err != nil {
		return "", err
	}
	part, ok := plan.Partition(release.PartData)
	if !ok {
		return "", fmt.Errorf("the disk's plan has no partition %s", release.PartData)
	}
	in, err := b.dataImage(ctx, part.Size)
	if err != nil {
		return "", err
	}
	defer in.Close()
	file, err := b.work("data.zst")
	if err != nil {
		return "", err
	}
	_, err = writeFile(file, func(w io.Writer) error { return compress(ctx, w, in, part.Size, 0, nil) })
	return file, err
}
