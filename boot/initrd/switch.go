package initrd

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"kingpost/internal/mesh"
)

// nextInit is the program that goes on, in the new root.
const nextInit = "/init"

// switchRoot makes newRoot the root, gives the initrd's memory back and starts PID 1 in it. It returns only on failure.
func (s *stage) switchRoot() error {
	b, err := json.Marshal(s.info)
	if err != nil {
		return err
	}
	// PID 1 completes this and puts it in place again before anybody else reads it.
	if err := os.WriteFile(mesh.PathBoot, b, 0o644); err != nil {
		return fmt.Errorf("tell PID 1 about the boot: %w", err)
	}
	if _, err := os.Stat(newRoot + nextInit); err != nil {
		return fmt.Errorf("the root has no %s: %w", nextInit, err)
	}
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
	if err := s.times.Save(PathTimeline); err != nil {
		s.console.Line("warning %v", err)
	}
	return fmt.Errorf("start %s: %w", nextInit, unix.Exec(nextInit, []string{nextInit}, []string{"PATH=/usr/sbin:/usr/bin"}))
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
