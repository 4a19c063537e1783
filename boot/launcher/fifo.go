package launcher

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// maxHeld bounds how many FIFOs are held.
const maxHeld = 4096

// HoldFIFOs opens every FIFO in dir for reading and writing and returns how many, and what lets them go. While no host
// reads the logs of workloads, one that ends would otherwise take with it what its pipe still holds. It reads nothing.
func HoldFIFOs(dir string) (n int, release func()) {
	var fds []int
	entries, err := os.ReadDir(dir)
	if err != nil {
		entries = nil // no workload has run yet
	}
	for _, e := range entries {
		if e.Type()&os.ModeNamedPipe == 0 || len(fds) >= maxHeld {
			continue
		}
		fd, err := unix.Open(filepath.Join(dir, e.Name()), unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
		if err == nil {
			fds = append(fds, fd)
		}
	}
	return len(fds), func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
		fds = nil
	}
}
