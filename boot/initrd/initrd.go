// Package initrd is the first stage of a boot: it finds the release's root on the booted disk by its hash, verifies all of
// it, mounts it and switches to it.
//
// A root that does not verify, to the last block, is never mounted; then, and for everything else that fails, the stage
// ends in the rescue mode, which says what failed and keeps the console. It writes to no disk.
// Start with Run; the phases are in the order of the files: initrd, root, switch, rescue.
package initrd

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"kingpost/boot/bootdisk"
	"kingpost/boot/console"
	"kingpost/boot/timeline"
	"kingpost/internal/mesh"
	"kingpost/internal/release"
)

// diskWait is how long disks may take to appear after their drivers were loaded; USB sticks take several seconds.
const diskWait = 30 * time.Second

// Booted is what the stage hands over.
type Booted struct {
	Info    mesh.BootInfo
	Console *console.Console
	Times   *timeline.Timeline
}

// Run runs the stage. It returns with the release's root as the root of the file system; when anything fails it does not
// return, but ends in rescue mode.
func Run() Booted {
	s := &stage{times: timeline.New(Uptime)}
	s.times.Mark("kernel")
	if err := s.run(context.Background()); err != nil || s.asked {
		s.rescue(err)
	}
	return Booted{s.info, s.console, s.times}
}

// Uptime is the time since the kernel started, sleep included (CLOCK_BOOTTIME).
func Uptime() time.Duration {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

type stage struct {
	times   *timeline.Timeline
	console *console.Console
	info    mesh.BootInfo
	finder  *bootdisk.Finder
	// trial is set when the boot loader counts tries of this release: then a failure reboots, so that it falls back.
	trial bool
	// more loads the drivers of devices that have appeared, and need one that nothing asks for by itself.
	more func()
	need func(name string) error
	// asked is set when this is the rescue entry: nothing has failed here.
	asked bool
}

func (s *stage) run(ctx context.Context) error {
	if err := mounts(); err != nil {
		return err
	}
	active, err := os.ReadFile("/sys/class/tty/console/active")
	if err != nil {
		active = nil // Open then takes /dev/console
	}
	s.console = console.Open(string(active), "/dev")
	if b, err := os.ReadFile("/release.json"); err == nil {
		if err := json.Unmarshal(b, &s.info.Release); err != nil {
			s.console.Line("warning the release's own description cannot be read: %v", err)
		}
	}
	line, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return fmt.Errorf("read the kernel command line: %w", err)
	}
	cmd, err := release.ParseCmdline(strings.TrimSpace(string(line)))
	if err != nil {
		return fmt.Errorf("kernel command line: %w; boot the release's own entry", err)
	}
	s.more = s.modules(ctx)
	s.times.Mark("modules")
	efivars := s.efi()
	s.trial = bootdisk.CountedTry(efivars)
	s.finder = &bootdisk.Finder{
		Sys: os.DirFS("/sys"), Dev: "/dev",
		Open: func(path string) (bootdisk.Device, error) { return bootdisk.OpenDirect(path) },
	}
	if cmd.Rescue {
		s.asked = true
		return nil
	}
	if cmd.RootHash == "" {
		return fmt.Errorf("the kernel command line has no kingpost.root=, so there is no root to look for; boot the release's own entry")
	}
	where, err := s.inMemory(ctx)
	if where == nil && err == nil {
		where, err = s.onDisk(ctx, efivars)
	}
	if err != nil {
		return err
	}
	s.times.Mark("disk")
	if err := s.root(ctx, where, cmd); err != nil {
		return err
	}
	return s.switchRoot()
}

// modules loads the drivers of what is there, and returns what looks for more.
func (s *stage) modules(ctx context.Context) (more func()) {
	d, err := newDrivers(os.DirFS("/modules"), "/sys/bus")
	if err != nil {
		s.console.Line("warning %v", err)
		s.need = func(string) error { return err }
		return func() {}
	}
	s.need = func(name string) error { return d.named(ctx, name) }
	cpuinfo, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		cpuinfo = nil
	}
	_, err = os.Stat("/sys/firmware/efi")
	// A driver that does not load is a warning: whether it was needed shows when the disk is looked for.
	report := func(err error) {
		if err != nil {
			s.console.Line("warning %v", err)
		}
	}
	report(d.present(ctx))
	report(d.always(ctx, skipHere(err == nil, string(cpuinfo))))
	return func() { report(d.present(ctx)) }
}

// efi returns the EFI variables; an empty file system where the firmware has none.
func (s *stage) efi() fs.FS {
	const dir = "/sys/firmware/efi/efivars"
	if _, err := os.Stat(dir); err == nil {
		// Read-only: nothing here writes variables, and a slip of the hand in them can brick a machine.
		if err := unix.Mount("efivarfs", dir, "efivarfs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
			s.console.Line("warning the EFI variables cannot be read (%v); the booted disk is found by its partitions", err)
		}
	}
	return os.DirFS(dir)
}

// mounts mounts what every program needs. PID 1 inherits it.
func mounts() error {
	const common = unix.MS_NOSUID | unix.MS_NOEXEC | unix.MS_NODEV
	for _, m := range []struct {
		dir, kind string
		flags     uintptr
		data      string
	}{
		{"/proc", "proc", common, ""},
		{"/sys", "sysfs", common, ""},
		{"/dev", "devtmpfs", unix.MS_NOSUID, "mode=0755"},
		{"/run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=0755"},
	} {
		if err := os.MkdirAll(m.dir, 0o755); err != nil {
			return fmt.Errorf("make %s: %w", m.dir, err)
		}
		if err := unix.Mount(m.kind, m.dir, m.kind, m.flags, m.data); err != nil {
			return fmt.Errorf("mount %s on %s: %w", m.kind, m.dir, err)
		}
	}
	return os.MkdirAll(mesh.PathRun, 0o755)
}
