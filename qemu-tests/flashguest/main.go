// Command flashguest is the init of a machine that does nothing but run commands: it loads the modules of the initrd that it
// came with, runs each line of /commands, prints how it ended, and powers off. It lets the operator's program meet disks that
// a test makes up. A line "mount DEVICE" mounts an ext4 file system.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	if err := run(); err != nil {
		fmt.Println("flashguest:", err)
	}
	fmt.Println("flashguest: done")
	unix.Sync()
	unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

func run() error {
	for dir, kind := range map[string]string{"/proc": "proc", "/sys": "sysfs", "/dev": "devtmpfs", "/tmp": "tmpfs"} {
		os.MkdirAll(dir, 0o755)
		if err := unix.Mount(kind, dir, kind, 0, ""); err != nil && err != unix.EBUSY {
			return fmt.Errorf("mount %s: %w", dir, err)
		}
	}
	names, err := os.ReadFile("/modules/load")
	if err != nil {
		return err
	}
	for _, name := range strings.Fields(string(names)) {
		f, err := os.Open("/modules/" + name)
		if err != nil {
			return err
		}
		if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && err != unix.EEXIST {
			fmt.Printf("flashguest: %s: %v\n", name, err)
		}
		f.Close()
	}
	time.Sleep(2 * time.Second) // slow buses
	commands, err := os.ReadFile("/commands")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(commands)) {
		args := strings.Fields(line)
		var err error
		if args[0] == "mount" {
			if err = os.MkdirAll("/mnt", 0o755); err == nil {
				err = unix.Mount(args[1], "/mnt", "ext4", 0, "")
			}
		} else {
			c := exec.Command(args[0], args[1:]...)
			c.Env = []string{"HOME=/tmp", "PATH=/"}
			var out []byte
			out, err = c.CombinedOutput()
			fmt.Printf("%s\n", out)
		}
		fmt.Printf("flashguest: %s: %v\n", strings.TrimSpace(line), err)
	}
	return nil
}
