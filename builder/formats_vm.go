package builder

import (
	"context"
	"fmt"
	"io"
	"os"

	"kingpost/internal/vmdisk"
)

// vmOutput is the disk image as a disk file of virtual machines: thin, and as large as slots.disk says.
type vmOutput struct {
	format, about string
	write         func(ctx context.Context, w io.Writer, im vmdisk.Image, name string) error
}

// vmOutputs are the formats that there are.
func vmOutputs() []Output {
	noName := func(write func(context.Context, io.Writer, vmdisk.Image) error) func(context.Context, io.Writer, vmdisk.Image, string) error {
		return func(ctx context.Context, w io.Writer, im vmdisk.Image, _ string) error { return write(ctx, w, im) }
	}
	return []Output{
		vmOutput{"qcow2", "thin disk for QEMU and what stands upon it", noName(vmdisk.WriteQCOW2)},
		vmOutput{"vmdk", "thin disk for VMware and VirtualBox, in one file", vmdisk.WriteVMDK},
		vmOutput{"vhdx", "thin disk for Hyper-V", noName(vmdisk.WriteVHDX)},
	}
}

func (o vmOutput) Info() OutputInfo { return OutputInfo{Name: o.format, About: o.about, Data: true} }

func (o vmOutput) Files(recipe string) []string { return []string{recipe + "." + o.format} }

func (o vmOutput) Write(ctx context.Context, b *Built, progress func(done, total int64)) (string, error) {
	d, err := b.Disk(ctx, nil)
	if err != nil {
		return "", err
	}
	m, err := b.Map(ctx)
	if err != nil {
		return "", err
	}
	size := int64(b.recipe.Slots.Disk)
	if size == 0 {
		size = max(defaultVMDisk, d.size)
	}
	if size < d.size {
		return "", fmt.Errorf("the image has %s, slots.disk is %s: raise it, or leave it out", mib(d.size), b.recipe.Slots.Disk)
	}
	in, err := os.Open(d.file)
	if err != nil {
		return "", err
	}
	defer in.Close()
	name := o.Files(b.recipe.Name)[0]
	im := vmdisk.Image{ReaderAt: in, Map: m, Size: size, ID: fixedID(b.info, o.format), Progress: progress}
	n, err := writeFile(b.path(name), func(w io.Writer) error { return o.write(ctx, w, im, name) })
	return fmt.Sprintf("%s, a disk of %s", mib(n), Size(size)), err
}

// defaultVMDisk is the size of a virtual machine's disk, in bytes. It is thin, so room costs nothing.
const defaultVMDisk = 8 << 30
