package projquota

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

type unixStat = syscall.Stat_t

// From <linux/fs.h>: struct fsxattr, FS_IOC_FSGETXATTR and FS_IOC_FSSETXATTR. x/sys has none of them.
type fsxattr struct {
	XFlags     uint32
	ExtSize    uint32
	NExtents   uint32
	ProjectID  uint32
	CowExtSize uint32
	_          [8]byte
}

const (
	ioctlGetAttr = 0x801c581f // _IOR('X', 31, struct fsxattr)
	ioctlSetAttr = 0x401c5820 // _IOW('X', 32, struct fsxattr)
	flagInherit  = 0x200      // FS_XFLAG_PROJINHERIT
)

// From <linux/quota.h>: struct if_dqblk and the commands; from <linux/dqblk_xfs.h> what turns limits on.
type dqblk struct {
	BlockHardLimit, BlockSoftLimit uint64 // 1 KiB
	CurrentSpace                   uint64 // bytes
	InodeHardLimit, InodeSoftLimit uint64
	CurrentInodes                  uint64
	BlockTime, InodeTime           uint64
	Valid                          uint32
	_                              uint32
}

const (
	projects         = 2 // PRJQUOTA
	cmdSetQuota      = 0x800008<<8 | projects
	cmdTurnOn        = ('X'<<8|1)<<8 | projects // Q_XQUOTAON
	enforceProjects  = 1 << 5                   // FS_QUOTA_PDQ_ENFD
	validBlockLimits = 1                        // QIF_BLIMITS
)

func getAttr(f *os.File) (*fsxattr, error) {
	x := &fsxattr{}
	if err := ioctl(f, ioctlGetAttr, unsafe.Pointer(x)); err != nil {
		return nil, none(err)
	}
	return x, nil
}

func ioctl(f *os.File, request uintptr, arg unsafe.Pointer) error {
	_, _, e := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, uintptr(arg))
	runtime.KeepAlive(f)
	if e != 0 {
		return none(e)
	}
	return nil
}

// quotactl is quotactl_fd(2): no device has to be named.
func quotactl(f *os.File, cmd uintptr, id uint32, arg unsafe.Pointer) error {
	_, _, e := unix.Syscall6(unix.SYS_QUOTACTL_FD, f.Fd(), cmd, uintptr(id), uintptr(arg), 0, 0)
	runtime.KeepAlive(f)
	if e != 0 {
		return e
	}
	return nil
}

// none makes an ErrNone of what kernels say that have no such quota, or not on this file system.
func none(err error) error {
	for _, e := range []error{unix.ENOTTY, unix.EOPNOTSUPP, unix.ENOSYS, unix.ESRCH, unix.EINVAL} {
		if errors.Is(err, e) {
			return fmt.Errorf("%w (%w)", ErrNone, err)
		}
	}
	return err
}
