// Package projquota limits what a folder may hold, by project quota: every file in it carries the folder's project number,
// and the file system counts by that (Linux, Documentation/filesystems/quota.rst, ext4 feature "project").
//
// It keeps no list of its own: the number stands on the folder. A file system without it is ErrNone, which is no failure.
// Start with Limit.
package projquota

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrNone says that the file system keeps no project quota.
var ErrNone = errors.New("the file system keeps no project quotas")

// Project is the number of a folder or file; 0 is none.
func Project(path string) (uint32, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	x, err := getAttr(f)
	if err != nil {
		return 0, err
	}
	return x.ProjectID, nil
}

// Assign gives a folder and everything in it the number project, and has the kernel give it to whatever is made there. The
// folder itself comes last: one that has its number is done. Symbolic links are not followed, nor is anything that is
// mounted in it entered.
func Assign(dir string, project uint32) error {
	root, err := os.Stat(dir)
	if err != nil {
		return err
	}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if device(info) != device(root) {
			return fs.SkipDir
		}
		if !d.IsDir() && !d.Type().IsRegular() {
			return nil // it holds nothing, and cannot be opened without doing something to somebody
		}
		return assign(path, project, d.IsDir())
	})
	if err == nil {
		err = assign(dir, project, true)
	}
	if err != nil {
		return fmt.Errorf("give %s the project %d: %w", dir, project, err)
	}
	return nil
}

func assign(path string, project uint32, inherit bool) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	x, err := getAttr(f)
	if err != nil {
		return err
	}
	x.ProjectID = project
	if inherit {
		x.XFlags |= flagInherit
	}
	return ioctl(f, ioctlSetAttr, unsafe.Pointer(x))
}

// Limit bounds what the project of a folder may hold, in bytes; 0 is no limit. It turns the keeping of limits on where
// the file system counts only.
func Limit(dir string, project uint32, bytes int64) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	enforce := uint32(enforceProjects)
	if err := quotactl(f, cmdTurnOn, 0, unsafe.Pointer(&enforce)); err != nil && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("turn the limits of projects on: %w", none(err))
	}
	// In units of 1 KiB, rounded up.
	q := dqblk{BlockHardLimit: uint64(bytes+1023) / 1024, Valid: validBlockLimits}
	if err := quotactl(f, cmdSetQuota, project, unsafe.Pointer(&q)); err != nil {
		return fmt.Errorf("limit project %d to %d bytes: %w", project, bytes, none(err))
	}
	return nil
}

func device(info fs.FileInfo) uint64 {
	if st, ok := info.Sys().(*unixStat); ok {
		return st.Dev
	}
	return 0
}
