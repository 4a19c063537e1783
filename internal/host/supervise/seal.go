package supervise

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"

	"kingpost/internal/fsverity"
	"kingpost/internal/mesh"
)

// indexTree lists the files of an unpacked image. The image's layers were checked by digest while they
// were unpacked, so the list is what they held.
func indexTree(dir string) (*mesh.BundleConfig, error) {
	var out mesh.BundleConfig
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		bf := mesh.BundleFile{Path: rel, Mode: uint32(info.Mode().Perm()), Size: info.Size()}
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			if bf.Link, err = os.Readlink(p); err != nil {
				return err
			}
		case info.Mode().IsRegular():
			f, err := os.Open(p)
			if err != nil {
				return err
			}
			defer f.Close()
			sum, verity := sha256.New(), fsverity.New()
			if _, err := io.Copy(io.MultiWriter(sum, verity), f); err != nil {
				return err
			}
			bf.SHA256, bf.FSVerity = hex.EncodeToString(sum.Sum(nil)), hex.EncodeToString(verity.Sum(nil))
		default:
			return nil
		}
		out.Files = append(out.Files, bf)
		return nil
	})
	return &out, err
}

// sealTree turns fs-verity on for every file where the file system has it: from then on the kernel
// refuses to change it, checks what is read of it, and tells its digest without reading it. Where it is not
// there, every start reads the files whole instead.
func sealTree(dir string, index *mesh.BundleConfig) {
	for _, f := range index.Files {
		if f.Link != "" || f.FSVerity == "" {
			continue
		}
		if err := enableVerity(filepath.Join(dir, f.Path)); errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EOPNOTSUPP) {
			return
		}
	}
}

// From <linux/fsverity.h>; x/sys has the request numbers but not the structures.
type fsverityEnableArg struct {
	Version       uint32
	HashAlgorithm uint32
	BlockSize     uint32
	SaltSize      uint32
	SaltPtr       uint64
	SigSize       uint32
	_             uint32
	SigPtr        uint64
	_             [11]uint64
}

type fsverityDigest struct {
	Algorithm uint16
	Size      uint16
	Digest    [32]byte
}

const (
	fsIocEnableVerity  = 0x40806685 // _IOW('f', 133, struct fsverity_enable_arg)
	fsIocMeasureVerity = 0xc0046686 // _IOWR('f', 134, struct fsverity_digest)
	fsVerityHashSHA256 = 1
)

func enableVerity(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	arg := fsverityEnableArg{Version: 1, HashAlgorithm: fsVerityHashSHA256, BlockSize: fsverity.BlockSize}
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, f.Fd(), fsIocEnableVerity, uintptr(unsafe.Pointer(&arg))); e != 0 {
		return e
	}
	return nil
}

// measureVerity is the kernel's digest of a file with fs-verity on, in hex.
func measureVerity(f *os.File) (string, error) {
	d := fsverityDigest{Size: sha256.Size}
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, f.Fd(), fsIocMeasureVerity, uintptr(unsafe.Pointer(&d))); e != 0 {
		return "", e
	}
	if d.Algorithm != fsVerityHashSHA256 || d.Size != sha256.Size {
		return "", errors.New("fs-verity with another hash")
	}
	return hex.EncodeToString(d.Digest[:]), nil
}
