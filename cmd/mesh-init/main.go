// Command mesh-init is a node's first program, /init of the initrd: it finds, verifies and mounts the release's root and
// then is PID 1 in it. It takes no arguments and is of no use outside a node.
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
	// The initrd is memory. In anything else a root was mounted that nobody has verified, so it is left alone.
	var st unix.Statfs_t
	if err := unix.Statfs("/", &st); err != nil || st.Type != unix.TMPFS_MAGIC && st.Type != unix.RAMFS_MAGIC {
		fmt.Fprintln(os.Stderr, "mesh-init was not started from the release's initrd; boot the release's own entry")
		os.Exit(1)
	}
	pid1.Main(initrd.Run())
}
