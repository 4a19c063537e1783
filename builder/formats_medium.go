package builder

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"kingpost/internal/cpiofs"
	"kingpost/internal/fat32"
	"kingpost/internal/gpt"
	"kingpost/internal/iso9660"
	"kingpost/internal/release"
)

// FileISO is the name of a release's hybrid image.
func FileISO(recipe string) string { return recipe + ".iso" }

// isoOutput is one file that is a CD and a disk: a GPT in the system area of an ISO 9660 volume, whose files are two of
// the partitions.
type isoOutput struct{}

func (isoOutput) Info() OutputInfo {
	return OutputInfo{Name: "iso", About: "hybrid UEFI image: a CD, virtual media or a USB stick from the same file", Data: true}
}

func (isoOutput) Files(recipe string) []string { return []string{FileISO(recipe)} }

func (isoOutput) Write(ctx context.Context, b *Built, progress func(done, total int64)) (string, error) {
	esp, err := b.espFiles()
	if err != nil {
		return "", err
	}
	plan, err := release.NewMediumPlan(release.DiskSpec{
		Arch: b.info.Architecture, ESPSize: espSize(esp), DataSize: int64(b.recipe.Slots.Data),
	}, b.root.Size)
	if err != nil {
		return "", err
	}
	file := b.path(FileISO(b.recipe.Name))
	if err := b.writeDisk(ctx, file, plan, progress); err != nil {
		return "", err
	}
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	err = iso9660.Write(f, isoVolume(b, plan))
	return mib(plan.Size), errors.Join(err, f.Close())
}

// Names of a hybrid image's partitions as files of the CD.
const (
	isoESP  = "EFI.IMG"
	isoRoot = "ROOT.IMG"
)

func isoVolume(b *Built, plan release.Plan) iso9660.Volume {
	v := iso9660.Volume{Size: plan.Size, Label: release.ESPLabel, Time: b.recipe.Time(), Boot: isoESP}
	for _, q := range []struct {
		part, name string
		size       int64
	}{{release.PartESP, isoESP, 0}, {release.PartRootA, isoRoot, b.root.Size}} {
		if p, ok := plan.Partition(q.part); ok {
			if q.size == 0 {
				q.size = p.Size
			}
			v.Files = append(v.Files, iso9660.File{Name: q.name, Start: p.Start, Size: q.size})
		}
	}
	return v
}

// espSpare is what an ESP that is made to measure has beyond its files: folders, tables, and node.yaml.
const espSpare = 4 << 20

// espSize is the size of an ESP for those files and nothing more, in bytes.
func espSize(files []fat32.File) int64 {
	const cluster = 4096
	n := int64(espSpare)
	for _, f := range files {
		n += (int64(len(f.Data)) + cluster - 1) / cluster * cluster
	}
	n += n / cluster * 8 // two tables with four bytes a cluster
	return max((n+gpt.Align-1)/gpt.Align*gpt.Align, fat32.MinSize(512))
}

// FileDataDisk is a disk for the data of a node whose medium cannot be written to.
const FileDataDisk = "data.img"

// dataOutput is that disk.
type dataOutput struct{}

func (dataOutput) Info() OutputInfo {
	return OutputInfo{Name: FileDataDisk, About: "disk with an empty data partition alone, for a node booted from a CD or the network", Data: true}
}

func (dataOutput) Files(string) []string { return []string{FileDataDisk} }

func (dataOutput) Write(ctx context.Context, b *Built, progress func(done, total int64)) (string, error) {
	plan, err := release.NewDataPlan(release.DiskSpec{Arch: b.info.Architecture, DataSize: int64(b.recipe.Slots.Data)})
	if err != nil {
		return "", err
	}
	return mib(plan.Size), b.writeDisk(ctx, b.path(FileDataDisk), plan, progress)
}

// netbootDir is the folder of the netboot bundle.
const netbootDir = "netboot"

// Files of the netboot bundle beside those that an output of their own has too.
const (
	netbootScript = netbootDir + "/boot.ipxe"
	netbootRoot   = netbootDir + "/root.cpio"
)

// netbootOutput is what an HTTP or TFTP server needs.
type netbootOutput struct{}

func (netbootOutput) Info() OutputInfo {
	return OutputInfo{Name: "netboot", About: "folder to boot from over the network: kernel, initrd, root image, UKI, iPXE script"}
}

func (netbootOutput) Files(recipe string) []string {
	var names []string
	for _, n := range []string{FileKernel, FileInitrd, FileCmdline, FileRoot, FileUKI(recipe)} {
		names = append(names, netbootDir+"/"+n)
	}
	return append(names, netbootScript, netbootRoot)
}

func (netbootOutput) Write(ctx context.Context, b *Built, progress func(done, total int64)) (string, error) {
	if err := os.Mkdir(b.path(netbootDir), 0o755); err != nil {
		return "", err
	}
	// What follows an initrd in memory begins at a multiple of 4, and boot loaders do not see to that.
	initrd := append(b.boot.initrd[:len(b.boot.initrd):len(b.boot.initrd)], make([]byte, -len(b.boot.initrd)&511)...)
	small, err := writeFiles(b, map[string][]byte{
		netbootDir + "/" + FileKernel: b.boot.kernel, netbootDir + "/" + FileInitrd: initrd,
		netbootDir + "/" + FileCmdline:            []byte(b.boot.cmdline.String() + "\n"),
		netbootDir + "/" + FileUKI(b.recipe.Name): b.boot.uki, netbootScript: []byte(ipxeScript(b)),
	})
	if err != nil {
		return "", err
	}
	root, err := os.Open(b.root.file)
	if err != nil {
		return "", err
	}
	defer root.Close()
	n, err := writeFile(b.path(netbootRoot), func(w io.Writer) error {
		return cpiofs.WriteFile(w, FileRoot, ctxReaderAt{ctx, root, b.root.Size, progress}, b.root.Size)
	})
	if err != nil {
		return "", err
	}
	// The same bytes as root.img, where the file system can have them once.
	to := b.path(netbootDir + "/" + FileRoot)
	if os.Link(b.root.file, to) != nil {
		if err := copyFile(ctx, to, b.root.file); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%s to load, and %s", mib(n), small), nil
}

// ctxReaderAt ends a long copy when ctx ends, and tells how far it is.
type ctxReaderAt struct {
	ctx      context.Context
	r        io.ReaderAt
	total    int64
	progress func(done, total int64)
}

func (c ctxReaderAt) ReadAt(p []byte, off int64) (int, error) {
	if c.ctx.Err() != nil {
		return 0, context.Cause(c.ctx)
	}
	n, err := c.r.ReadAt(p, off)
	if c.progress != nil {
		c.progress(off+int64(n), c.total)
	}
	return n, err
}

// ipxeScript starts the release (ipxe.org/scripting). The kernel unpacks one archive after the other; firmware that has
// them as files finds them by the words initrd=. node.cpio is the operator's, with a node.yaml in it, and may be missing.
func ipxeScript(b *Built) string {
	var s strings.Builder
	fmt.Fprintf(&s, "#!ipxe\n# Kingpost %s %s for %s: serve this folder and chain this file\n", b.info.Name, b.info.Version, b.info.Architecture)
	fmt.Fprintf(&s, "initrd %s\ninitrd root.cpio\nset more\ninitrd node.cpio && set more initrd=node.cpio ||\n", FileInitrd)
	fmt.Fprintf(&s, "kernel %s initrd=%s initrd=root.cpio ${more} %s\nboot\n", FileKernel, FileInitrd, b.boot.cmdline)
	return s.String()
}
