package supervise

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"

	"kingpost/internal/fsverity"
	"kingpost/internal/mesh"
)

// indexTree seals the files of an unpacked image and lists them: with the digest that the kernel measures, or, where the
// file system has no fs-verity, with their SHA-256. The image's layers were checked by digest while they were unpacked,
// so the list is what they held.
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
			if err := seal(p); err != nil {
				return err
			}
			f, err := os.Open(p)
			if err != nil {
				return err
			}
			defer f.Close()
			if bf.FSVerity, err = measureVerity(f); err == nil {
				break
			}
			sum := sha256.New()
			if _, err := io.Copy(sum, f); err != nil {
				return err
			}
			bf.SHA256 = hex.EncodeToString(sum.Sum(nil))
		default:
			return nil
		}
		out.Files = append(out.Files, bf)
		return nil
	})
	return &out, err
}

// seal turns fs-verity on for a file where the file system has it: from then on the kernel refuses to change it, checks
// what is read of it, and tells its digest without reading it. Where it is not there, every start reads the file whole
// instead.
func seal(path string) error {
	err := enableVerity(path)
	if errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EEXIST) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("seal %s with fs-verity: %w", path, err)
	}
	return nil
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
