package pid1

import (
	"os"
	"sort"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"kingpost/internal/mesh"
)

// How the machine is stopped; the words of the host's API.
const (
	actionReboot   = "reboot"
	actionPowerOff = "poweroff"
)

// askPatience is how long the host may take to stop all workloads when a button asks for it. Their own graces can be
// longer, but somebody stands at the machine.
const askPatience = 2 * time.Minute

// Times that what is left of the processes has to end.
const (
	termGrace = 5 * time.Second
	killGrace = 2 * time.Second
)

// shutdown stops the machine. The host has ended by now, and usually has stopped everything in order before.
func (p *pid1) shutdown(action string) {
	word := map[string]string{actionReboot: "rebooting", actionPowerOff: "powering off"}[action]
	p.console.Line("%s", word)
	p.dog.feed(p.log)
	p.endProcesses()
	saveClock(time.Now(), p.log)
	p.host.file.Close()
	unix.Sync()
	p.unmount()
	unix.Sync()
	flushed := make(chan struct{})
	time.AfterFunc(time.Second, func() { close(flushed) })
	p.console.Flush(flushed)
	how := unix.LINUX_REBOOT_CMD_RESTART
	if action == actionPowerOff {
		how = unix.LINUX_REBOOT_CMD_POWER_OFF
	}
	_ = unix.Reboot(how)
	// The watchdog, which is not fed any more, is what is left.
	select {}
}

// endProcesses ends every process but this one.
func (p *pid1) endProcesses() {
	for _, step := range []struct {
		sig   unix.Signal
		grace time.Duration
	}{{unix.SIGTERM, termGrace}, {unix.SIGKILL, killGrace}} {
		if len(processes()) == 0 {
			return
		}
		_ = unix.Kill(-1, step.sig)
		for end := time.Now().Add(step.grace); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			if len(processes()) == 0 {
				return
			}
		}
	}
	if left := processes(); len(left) > 0 {
		p.console.Line("warning %d processes do not end", len(left))
	}
}

// processes lists the pids of all processes but PID 1, the kernel's own threads and zombies.
func processes() []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var out []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid <= 2 {
			continue
		}
		b, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue
		}
		_, rest, ok := strings.Cut(string(b), ") ")
		f := strings.Fields(rest)
		if !ok || len(f) < 2 || f[0] == "Z" || f[1] == "2" || f[1] == "0" {
			continue
		}
		out = append(out, pid)
	}
	return out
}

// unmount unmounts what is written to, innermost first. What stays busy is made read-only, which is as good for its journal.
func (p *pid1) unmount() {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		p.console.Line("warning %v", err)
		return
	}
	for _, dir := range mountsBelow(string(b), mesh.PathData, mesh.PathESP) {
		if unix.Unmount(dir, 0) == nil {
			continue
		}
		if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			p.console.Line("warning %s cannot be unmounted: %v", dir, err)
		}
	}
}

// mountsBelow lists the mount points in mountinfo (proc_pid_mountinfo(5)) that are one of dirs or below, last mounted first.
func mountsBelow(mountinfo string, dirs ...string) []string {
	var out []string
	for _, l := range strings.Split(mountinfo, "\n") {
		f := strings.Fields(l)
		if len(f) < 5 {
			continue
		}
		at := unescape(f[4])
		for _, d := range dirs {
			if at == d || strings.HasPrefix(at, d+"/") {
				out = append(out, at)
			}
		}
	}
	for i, j := 0, len(out)-1; i < j; i, j = i+1, j-1 {
		out[i], out[j] = out[j], out[i]
	}
	sort.SliceStable(out, func(i, j int) bool { return strings.Count(out[i], "/") > strings.Count(out[j], "/") })
	return out
}

// unescape undoes the octal escapes of mountinfo.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
