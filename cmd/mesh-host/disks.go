package main

import (
	"context"
	"io"
	"os"

	"kingpost/installer/install"
	"kingpost/internal/blockdev"
	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
)

// disks looks at this machine's disks, and says what an installation by cfg would do.
func disks(ctx context.Context, boot mesh.BootInfo, cfg *mesh.InstallConfig) (hostapi.Disks, error) {
	m, err := machine(ctx, boot)
	if err != nil {
		return hostapi.Disks{}, err
	}
	return install.Make(m, cfg)
}

// machine describes this machine's disks. What a disk would get is laid out as the one that the node booted from.
func machine(ctx context.Context, boot mesh.BootInfo) (install.Machine, error) {
	found, err := install.Look(ctx, blockdev.System(), func(path string) (io.ReaderAt, io.Closer, error) {
		f, err := os.Open(path)
		return f, f, err
	})
	if err != nil {
		return install.Machine{}, err
	}
	m := install.Machine{Disks: found, Booted: boot.Disk, Layout: install.Layout{Arch: boot.Release.Architecture}}
	for _, f := range found {
		if f.Path == boot.Disk {
			m.Layout = install.LayoutOf(boot.Release.Architecture, f.Contents.Table)
		}
	}
	if n, err := install.DataImageSize(dataImage); err == nil {
		m.Layout.Data = n
	}
	return m, nil
}

// dataImage opens the release's empty data partition.
func dataImage() (io.ReadCloser, error) { return os.Open(mesh.PathDataImage) }
