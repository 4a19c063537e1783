package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"kingpost/installer/install"
	"kingpost/internal/blockdev"
	"kingpost/internal/efiboot"
	"kingpost/internal/gpt"
	"kingpost/internal/host"
	"kingpost/internal/mesh"
	"kingpost/internal/release"
)

// installer returns what installs this node onto another disk; nil where this is not a node.
func (o options) installer(log *logrus.Logger) func(*host.InstallNode) host.Installer {
	if !o.onNode() {
		return nil
	}
	return func(n *host.InstallNode) host.Installer {
		boot := n.Boot()
		c := install.Config{
			Install: n.Install(), Busy: n.Busy, Power: n.Power, Random: rand.Reader, Now: time.Now, Log: log,
			Machine: func(ctx context.Context) (install.Machine, error) { return machine(ctx, boot) },
			Medium:  func() (*install.Medium, io.Closer, error) { return medium(boot) },
			Target:  func(path string) (install.Target, error) { return openTarget(path) },
		}
		// A disk that was installed, or a node that is in a mesh, does not install itself by its node.yaml once more.
		if _, err := os.Stat(filepath.Join(mesh.PathESP, install.MarkFile)); !errors.Is(err, os.ErrNotExist) || n.Busy() != "" {
			c.Install = nil
		}
		if _, err := os.Stat(efivars); err == nil {
			c.Firmware = setFirmware
		}
		return install.NewJob(c)
	}
}

func medium(boot mesh.BootInfo) (*install.Medium, io.Closer, error) {
	if boot.Disk == "" {
		return nil, nil, errors.New("it is no disk of Kingpost, so nothing can be copied from it; boot from a flashed stick")
	}
	f, err := os.Open(boot.Disk)
	if err != nil {
		return nil, nil, err
	}
	end, err := f.Seek(0, io.SeekEnd)
	if err == nil {
		var m *install.Medium
		if m, err = install.ReadMedium(f, end, boot.Release.Architecture, boot.RootHash, dataImage); err == nil {
			return m, f, nil
		}
	}
	return nil, nil, errors.Join(fmt.Errorf("%s: %w", boot.Disk, err), f.Close())
}

// openTarget opens a disk. The kernel learns of its new partitions when it is let go.
func openTarget(path string) (install.Target, error) {
	t, err := blockdev.Open(path)
	if err != nil {
		return nil, err
	}
	return t, nil
}

// efivars is where the firmware's variables are; the boot mounts it read-only.
const efivars = "/sys/firmware/efi/efivars"

// bootLabel is the name of the boot entries of ours in the firmware.
const bootLabel = "Kingpost"

// setFirmware makes the firmware start the installed disk.
func setFirmware(r *install.Result, arch string) (_ string, err error) {
	const flags = unix.MS_REMOUNT | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("", efivars, "", flags, ""); err != nil {
		return "", fmt.Errorf("have %s take writes: %w", efivars, err)
	}
	defer func() { err = errors.Join(err, unix.Mount("", efivars, "", flags|unix.MS_RDONLY, "")) }()
	loader, err := release.RemovableLoader(arch)
	if err != nil {
		return "", err
	}
	e := efiboot.Entry{Label: bootLabel, Sector: r.Table.SectorSize, Loader: `\EFI\BOOT\` + loader}
	for _, p := range r.Table.Partitions {
		if p.Name == release.PartESP {
			e.Partition = p
		}
	}
	var stale []gpt.GUID
	if !r.OldESP.IsZero() {
		stale = append(stale, r.OldESP)
	}
	name, err := efiboot.Set(efivars, e, stale...)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("the firmware starts the disk next and first, by its entry %s", name), nil
}
