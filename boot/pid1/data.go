package pid1

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"kingpost/boot/bootdisk"
	"kingpost/internal/gpt"
	"kingpost/internal/mesh"
	"kingpost/internal/release"
)

// data mounts the data partition of the booted disk, grown to fill it. A node without one still comes up, with its state
// in memory, and says so: then a person can reach it, and nothing it does is taken for lasting.
func (p *pid1) data() {
	node, err := p.mountData()
	if err == nil {
		p.mu.Lock()
		p.info.Data = node
		p.mu.Unlock()
	} else {
		p.warn("no data partition: %v; this node's state is in memory and gone after the next boot", err)
		if err := unix.Mount("tmpfs", mesh.PathData, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755,size=50%"); err != nil {
			p.warn("mount a memory file system on %s: %v", mesh.PathData, err)
		}
	}
	p.finishReset()
	for _, d := range []struct {
		path string
		mode os.FileMode
	}{{mesh.PathState, 0o755}, {stateDir, 0o700}} {
		if err := os.MkdirAll(d.path, d.mode); err != nil {
			p.warn("make %s: %v", d.path, err)
		}
	}
}

func (p *pid1) mountData() (node string, err error) {
	disk, err := p.dataDisk()
	if err != nil {
		return "", err
	}
	part, node, err := p.growPartition(disk)
	if err != nil {
		return "", err
	}
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOATIME
	// Mounting replays the journal: that is all that a power cut needs.
	if err := unix.Mount(node, mesh.PathData, "ext4", flags, "errors=remount-ro"); err != nil {
		return "", fmt.Errorf("mount %s as ext4: %w", node, err)
	}
	if err := growExt4(node, mesh.PathData, part); err != nil {
		p.warn("the data partition keeps its size: %v", err)
	}
	return node, nil
}

// dataDisk is the disk with the node's data partition: the booted one, or a data disk where that cannot be written to.
func (p *pid1) dataDisk() (*bootdisk.Disk, error) {
	f := bootdisk.Finder{Sys: os.DirFS("/sys"), Dev: "/dev", Open: func(path string) (bootdisk.Device, error) { return os.Open(path) }}
	var why string
	if p.info.Disk == "" {
		why = "the root is in memory"
	} else {
		disk, err := f.Read(strings.TrimPrefix(p.info.Disk, "/dev/"))
		if err != nil {
			return nil, err
		}
		if !disk.Optical() {
			return disk, nil
		}
		why = disk.Path + " is an optical medium"
	}
	disk, err := f.DataDisk()
	if err != nil {
		return nil, fmt.Errorf("%s, and %w", why, err)
	}
	return disk, nil
}

// growPartition gives the data partition the rest of its disk, on the disk and in the kernel, and returns its size in
// bytes. What goes wrong with growing is a warning; a partition that is not there is an error.
func (p *pid1) growPartition(disk *bootdisk.Disk) (size int64, node string, err error) {
	part, ok := disk.Partition(release.PartData)
	if !ok {
		return 0, "", fmt.Errorf("%s has no partition %s", disk.Path, release.PartData)
	}
	node = disk.Node(part.Number)
	if node == "" {
		return 0, "", fmt.Errorf("the kernel shows no device for partition %d of %s", part.Number, disk.Path)
	}
	w, err := os.OpenFile(disk.Path, os.O_RDWR, 0)
	if err != nil {
		p.warn("grow the data partition: %v", err)
		return part.Size, node, nil
	}
	defer w.Close()
	if err := p.renewGUIDs(w, disk.Table); err != nil {
		p.warn("give the disk GUIDs of its own: %v; two disks of this image cannot be told apart", err)
	}
	t, err := release.GrowLast(w, disk.Size, disk.Table.SectorSize, w.Sync)
	if err != nil {
		p.warn("grow the data partition: %v", err)
		return part.Size, node, nil
	}
	for _, q := range t.Partitions {
		if q.Number == part.Number {
			part = q
		}
	}
	if seen, err := kernelSize(node); err == nil && seen != part.Size {
		if err := resizePartition(int(w.Fd()), part.Number, part.Start, part.Size); err != nil {
			p.warn("tell the kernel that %s has grown: %v", node, err)
			return seen, node, nil
		}
	}
	return part.Size, node, nil
}

// renewGUIDs gives a disk that still has the image's GUIDs its own: at its first boot, and again after a power cut in the
// middle of that. Nothing of this boot needs the old ones: the booted disk was found by then. What the firmware boots by
// is kept: a machine that boots is worth more than a disk that can be told from its twin.
func (p *pid1) renewGUIDs(w *os.File, t *gpt.Table) error {
	entries := sync.OnceValue(func() map[gpt.GUID]string {
		return bootdisk.FirmwareEntries(os.DirFS("/sys/firmware/efi/efivars"))
	})
	changed, err := release.RenewGUIDs(t, rand.Reader, func(q gpt.Partition) bool {
		entry := entries()[q.GUID]
		if entry != "" {
			p.log.WithFields(logrus.Fields{"partition": q.Name, "entry": entry}).Info("the firmware boots by this GUID, so it is kept")
		}
		return entry != ""
	})
	if err != nil || !changed {
		return err
	}
	if err := gpt.Rewrite(w, t, w.Sync); err != nil {
		return err
	}
	p.log.WithField("disk", t.DiskGUID.String()).Info("the disk has GUIDs of its own now")
	return nil
}

// kernelSize is how large the kernel thinks a partition is, in bytes.
func kernelSize(node string) (int64, error) {
	b, err := os.ReadFile("/sys/class/block/" + strings.TrimPrefix(node, "/dev/") + "/size")
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	return n * 512, err
}

// resizePartition changes one partition in the kernel's table. Unlike reading the whole table anew it works while others
// of the disk are in use.
func resizePartition(fd, number int, start, size int64) error {
	part := unix.BlkpgPartition{Start: start, Length: size, Pno: int32(number)}
	arg := unix.BlkpgIoctlArg{Op: unix.BLKPG_RESIZE_PARTITION, Datalen: int32(unsafe.Sizeof(part)), Data: (*byte)(unsafe.Pointer(&part))}
	_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.BLKPG, uintptr(unsafe.Pointer(&arg)))
	runtime.KeepAlive(&part)
	if e != 0 {
		return e
	}
	return nil
}

// ext4ResizeFS is EXT4_IOC_RESIZE_FS, _IOW('f', 16, __u64); its argument is the new size in blocks.
const ext4ResizeFS = 0x40086610

// growExt4 grows the mounted file system on node to size bytes.
func growExt4(node, dir string, size int64) error {
	f, err := os.Open(node)
	if err != nil {
		return err
	}
	blocks, blockSize, err := ext4Size(f)
	f.Close()
	if err != nil {
		return fmt.Errorf("%s: %w", node, err)
	}
	want := uint64(size) / uint64(blockSize)
	if want <= blocks {
		return nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	_, _, e := unix.Syscall(unix.SYS_IOCTL, d.Fd(), ext4ResizeFS, uintptr(unsafe.Pointer(&want)))
	if e != 0 {
		return fmt.Errorf("grow the file system on %s from %d to %d blocks: %w", node, blocks, want, e)
	}
	return nil
}

// ext4Size reads number and size of blocks from an ext4 superblock (Linux, Documentation/filesystems/ext4/super.rst).
func ext4Size(r io.ReaderAt) (blocks uint64, blockSize int64, err error) {
	sb := make([]byte, 1024)
	if _, err := r.ReadAt(sb, 1024); err != nil {
		return 0, 0, fmt.Errorf("read the ext4 superblock: %w", err)
	}
	if binary.LittleEndian.Uint16(sb[0x38:]) != 0xef53 {
		return 0, 0, errors.New("no ext4 superblock")
	}
	shift := binary.LittleEndian.Uint32(sb[0x18:])
	if shift > 6 { // 64 KiB is the largest block
		return 0, 0, fmt.Errorf("an ext4 block size of 2^(10+%d) bytes", shift)
	}
	blocks = uint64(binary.LittleEndian.Uint32(sb[0x04:]))
	const incompat64bit = 0x80
	if binary.LittleEndian.Uint32(sb[0x60:])&incompat64bit != 0 {
		blocks |= uint64(binary.LittleEndian.Uint32(sb[0x150:])) << 32
	}
	return blocks, 1024 << shift, nil
}

// esp mounts the booted disk's ESP read-only, for node.yaml.
func (p *pid1) esp() {
	p.mu.Lock()
	node := p.info.ESP
	p.mu.Unlock()
	if node == "" {
		if err := memoryConfig(); err != nil {
			p.warn("there is no ESP, and so no node.yaml: %v", err)
		}
		return
	}
	// node.yaml can hold a token: it is root's alone.
	if err := unix.Mount(node, mesh.PathESP, "vfat", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "umask=0077,codepage=437,iocharset=ascii"); err != nil {
		p.mu.Lock()
		p.info.ESP = ""
		p.mu.Unlock()
		p.warn("mount the ESP %s: %v; node.yaml is not read", node, err)
	}
}

// memoryConfig puts the node.yaml that came with a root image in memory where the ESP's would be.
func memoryConfig() error {
	b, err := os.ReadFile(mesh.PathMemoryConfig)
	if errors.Is(err, fs.ErrNotExist) {
		return errors.New("neither has the booted medium one, nor came a node.yaml with the initrd")
	}
	if err != nil {
		return err
	}
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("tmpfs", mesh.PathESP, "tmpfs", flags, "mode=0700,size=1m"); err != nil {
		return fmt.Errorf("mount a memory file system on %s: %w", mesh.PathESP, err)
	}
	if err := os.WriteFile(mesh.PathConfig, b, 0o600); err != nil {
		return err
	}
	if err := os.Remove(mesh.PathMemoryConfig); err != nil {
		return err
	}
	return unix.Mount("", mesh.PathESP, "", flags|unix.MS_REMOUNT|unix.MS_RDONLY, "")
}
