package initrd

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// switchRoot makes newRoot the root and gives the initrd's memory back. The program stays the one that runs: it is the
// same in the initrd and in the root, both of one release, and starting it again would cost a third of a second in an
// emulated machine.
func (s *stage) switchRoot() error {
	for _, dir := range []string{"/dev", "/proc", "/sys", "/run"} {
		if err := unix.Mount(dir, newRoot+dir, "", unix.MS_MOVE, ""); err != nil {
			return fmt.Errorf("move %s into the root: %w", dir, err)
		}
	}
	if err := os.Chdir(newRoot); err != nil {
		return err
	}
	// The initrd is memory: what stays of it is lost to the node until it reboots.
	remove("/", "sysroot")
	// pivot_root does not work from an initramfs; moving the mount over it does.
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move the root into place: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("change the root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	s.times.Mark("switch")
	return nil
}

// remove empties dir but for except, and stays on its file system. What cannot be removed stays.
func remove(dir, except string) {
	var st unix.Stat_t
	if unix.Lstat(dir, &st) != nil {
		return
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		if e.Name() == except {
			continue
		}
		p := filepath.Join(dir, e.Name())
		var in unix.Stat_t
		if unix.Lstat(p, &in) != nil || in.Dev != st.Dev {
			continue
		}
		if e.IsDir() {
			remove(p, "")
			_ = unix.Rmdir(p)
			continue
		}
		_ = unix.Unlink(p)
	}
}
