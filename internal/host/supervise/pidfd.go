package supervise

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"kingpost/internal/host/stub"
)

// proc is a process that is not our child: pid, the time it started (which tells it from a later one
// with the same number), and a pidfd that becomes readable when it ends.
type proc struct {
	pid   int
	start uint64
	file  *os.File // of the pidfd, in the runtime's poller
}

// openProc takes hold of the process pid that started at start (0: whenever it did).
func openProc(pid int, start uint64) (*proc, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	// The pidfd holds the number, so what is read now is of the process that was opened.
	got, err := stub.StartTime(pid)
	if err != nil || start != 0 && got != start {
		unix.Close(fd)
		return nil, unix.ESRCH
	}
	return &proc{pid: pid, start: got, file: os.NewFile(uintptr(fd), "pidfd")}, nil
}

// wait returns when the process has ended, or with an error when p was closed.
func (p *proc) wait() error {
	if p.file == nil { // it had ended before it could be opened
		return nil
	}
	rc, err := p.file.SyscallConn()
	if err != nil {
		return err
	}
	return rc.Read(func(fd uintptr) bool {
		for {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			return err != nil || n > 0
		}
	})
}

// alive reports whether the process has not ended.
func (p *proc) alive() bool {
	if p.file == nil {
		return false
	}
	rc, err := p.file.SyscallConn()
	if err != nil {
		return false
	}
	ended := false
	err = rc.Control(func(fd uintptr) {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		ended = err == nil && n > 0
	})
	return err == nil && !ended
}

func (p *proc) signal(sig int) error {
	if p.file == nil {
		return nil
	}
	rc, err := p.file.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	if err := rc.Control(func(fd uintptr) { serr = unix.PidfdSendSignal(int(fd), unix.Signal(sig), nil, 0) }); err != nil {
		return err
	}
	if errors.Is(serr, unix.ESRCH) {
		return nil
	}
	return serr
}

func (p *proc) close() {
	if p.file != nil {
		p.file.Close()
	}
}
