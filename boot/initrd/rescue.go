package initrd

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"kingpost/boot/bootdisk"
	"kingpost/boot/console"
	"kingpost/internal/release"
)

// trialPause is how long a failed first try of a release stays readable before it reboots into the last good one.
const trialPause = 15 * time.Second

// rescue says what failed, on every console, and stays. why is nil where the rescue entry itself was booted.
func (s *stage) rescue(why error) {
	if s.console == nil {
		s.console = console.Open("", "/dev")
	}
	block := []string{fmt.Sprintf("rescue %s %s", s.info.Release.Name, s.info.Release.Version)}
	var re *rootError
	switch {
	case errors.As(why, &re):
		for _, r := range re.reasons {
			block = append(block, "error "+r)
		}
		block = append(block, "error no root that can be trusted, so none is mounted; write the release to the disk again, or boot another entry")
	case why != nil:
		block = append(block, "error "+why.Error())
	}
	if s.finder != nil {
		block = append(block, inventory(s.finder)...)
	}
	next := "Ctrl-Alt-Del or a power cycle tries again"
	if s.trial && why != nil {
		next = fmt.Sprintf("this was a first try of this release: the last good one is started in %s", trialPause)
	}
	s.console.Show(append(block, "state rescue", next))

	// With Ctrl-Alt-Del off it is delivered to us instead of resetting the machine in the middle of something.
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_CAD_OFF)
	sig := make(chan os.Signal, 1)
	signal.Notify(sig, unix.SIGINT, unix.SIGTERM, unix.SIGUSR2)
	var over <-chan time.Time
	if s.trial && why != nil {
		over = time.After(trialPause)
	}
	how := unix.LINUX_REBOOT_CMD_RESTART
	for waiting := true; waiting; {
		select {
		case <-over:
			waiting = false
		case sg := <-sig:
			if sg == unix.SIGUSR2 {
				how = unix.LINUX_REBOOT_CMD_POWER_OFF
			}
			waiting = false
		case <-time.After(3 * time.Second):
			// A keyboard that is plugged in now is what Ctrl-Alt-Del needs.
			if s.more != nil {
				s.more()
			}
		}
	}
	unix.Sync()
	if err := unix.Reboot(how); err != nil {
		s.console.Line("error reboot: %v; cut the power", err)
	}
	for { // PID 1 must not end
		time.Sleep(time.Hour)
	}
}

// inventory lists the disks as this machine shows them, a line each.
func inventory(f *bootdisk.Finder) []string {
	disks, seen := f.List()
	if len(seen) == 0 {
		return []string{"this machine shows no disk"}
	}
	out := make([]string, 0, len(seen))
	known := map[string]bool{}
	for _, d := range disks {
		known[d.Path] = true
		var parts []string
		for _, p := range d.Table.Partitions {
			parts = append(parts, fmt.Sprintf("%s %d MiB", p.Name, p.Size>>20))
		}
		what := "not one of ours"
		switch {
		case release.IsKingpost(d.Table):
			what = "a node's disk"
		case release.IsMedium(d.Table):
			what = "a release's medium"
		case release.IsDataDisk(d.Table):
			what = "a data disk"
		}
		out = append(out, fmt.Sprintf("disk %s %d MiB, %s: %s", d.Path, d.Size>>20, what, strings.Join(parts, ", ")))
	}
	for _, p := range seen {
		if !known[p] {
			out = append(out, fmt.Sprintf("disk %s has no partition table that can be read", p))
		}
	}
	return out
}
