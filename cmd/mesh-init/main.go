// Command mesh-init is /init twice: in the initrd it finds, verifies and mounts the release's root; in that root it is
// PID 1. It takes no arguments and is of no use outside a node.
package main

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"kingpost/boot/initrd"
	"kingpost/boot/pid1"
)

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "mesh-init is the first program of a node and runs as PID 1 only")
		os.Exit(2)
	}
	// The initrd is memory; a root never is.
	var st unix.Statfs_t
	if err := unix.Statfs("/", &st); err == nil && (st.Type == unix.TMPFS_MAGIC || st.Type == unix.RAMFS_MAGIC) {
		initrd.Main()
	}
	pid1.Main()
}
