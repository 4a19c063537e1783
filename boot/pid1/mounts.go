package pid1

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"kingpost/internal/mesh"
)

// cgroupRoot is where cgroup v2 is mounted.
const cgroupRoot = "/sys/fs/cgroup"

// hostCgroup is the host's own group: what it uses can be told from what its workloads use.
const hostCgroup = cgroupRoot + "/mesh-host"

// hostMemory is what the host is left with before anything of it is reclaimed, in bytes.
const hostMemory = "67108864"

// mounts mounts what the initrd did not need. Nothing here is vital enough to stop for.
func (p *pid1) mounts() {
	const common = unix.MS_NOSUID | unix.MS_NOEXEC
	for _, m := range []struct {
		dir, kind string
		flags     uintptr
		data      string
	}{
		{cgroupRoot, "cgroup2", common | unix.MS_NODEV, "nsdelegate,memory_recursiveprot"},
		{"/dev/pts", "devpts", common, "mode=0620,gid=5,ptmxmode=0666"},
		{"/dev/shm", "tmpfs", common | unix.MS_NODEV, "mode=1777"},
		{"/dev/mqueue", "mqueue", common | unix.MS_NODEV, ""},
		{"/tmp", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
	} {
		if strings.HasPrefix(m.dir, "/dev/") {
			if err := os.MkdirAll(m.dir, 0o755); err != nil {
				p.warn("make %s: %v", m.dir, err)
				continue
			}
		}
		if err := unix.Mount(m.kind, m.dir, m.kind, m.flags, m.data); err != nil {
			p.warn("mount %s on %s: %v", m.kind, m.dir, err)
		}
	}
	for name, target := range map[string]string{"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"} {
		if err := os.Symlink(target, "/dev/"+name); err != nil && !os.IsExist(err) {
			p.warn("link /dev/%s: %v", name, err)
		}
	}
	p.cgroups()
}

// cgroups gives the groups of workloads the controllers that limits need.
func (p *pid1) cgroups() {
	if err := enable(cgroupRoot); err != nil {
		p.warn("cgroup controllers: %v; limits are not kept", err)
	}
	for _, dir := range []string{mesh.PathCgroups, hostCgroup} {
		if err := os.Mkdir(dir, 0o755); err != nil && !os.IsExist(err) {
			p.warn("make the cgroup %s: %v", dir, err)
		}
	}
	if err := enable(mesh.PathCgroups); err != nil {
		p.warn("cgroup controllers of workloads: %v; limits are not kept", err)
	}
	if err := os.WriteFile(hostCgroup+"/memory.low", []byte(hostMemory), 0o644); err != nil {
		p.warn("protect the host's memory: %v", err)
	}
	var info unix.Sysinfo_t
	err := unix.Sysinfo(&info)
	if err == nil {
		most := workloadMemory(uint64(info.Totalram) * uint64(info.Unit))
		err = os.WriteFile(mesh.PathCgroups+"/memory.max", strconv.AppendUint(nil, most, 10), 0o644)
	}
	if err != nil {
		p.warn("keep memory for the node itself: %v", err)
	}
}

// workloadMemory is how much of a node's memory, in bytes, all its workloads together may take. The rest is for the kernel
// and the host: what takes all it can get then meets its own end before the node stands still, since a kernel without memory
// throws away the pages of running programs and reads them again, for minutes, before it kills anybody.
func workloadMemory(total uint64) uint64 {
	return total - min(32<<20+total/8, 1<<30, total/2)
}

// enable enables in dir's children each controller that dir has, of those that limits are made of.
func enable(dir string) error {
	b, err := os.ReadFile(dir + "/cgroup.controllers")
	if err != nil {
		return err
	}
	var words, missing []string
	have := strings.Fields(string(b))
	for _, c := range []string{"cpu", "memory", "pids", "io"} {
		found := false
		for _, h := range have {
			found = found || h == c
		}
		if found {
			words = append(words, "+"+c)
		} else if c != "io" { // nothing limits I/O, it is there to be looked at
			missing = append(missing, c)
		}
	}
	if err := os.WriteFile(dir+"/cgroup.subtree_control", []byte(strings.Join(words, " ")), 0o644); err != nil {
		return err
	}
	if missing != nil {
		return fmt.Errorf("the kernel has no %s", strings.Join(missing, ", "))
	}
	return nil
}

// settings sets the kernel's own settings; a kernel that does not know one keeps its default.
func (p *pid1) settings() {
	for name, value := range map[string]string{
		"kernel/panic":                "10", // seconds, then reboot: nobody stands there
		"kernel/panic_on_oops":        "1",
		"kernel/pid_max":              "4194304",
		"kernel/kptr_restrict":        "1",
		"kernel/dmesg_restrict":       "1",
		"fs/protected_symlinks":       "1",
		"fs/protected_hardlinks":      "1",
		"fs/protected_fifos":          "1",
		"fs/protected_regular":        "2",
		"fs/inotify/max_user_watches": "65536",
		"vm/overcommit_memory":        "0",
	} {
		if err := os.WriteFile("/proc/sys/"+name, []byte(value), 0o644); err != nil && !os.IsNotExist(err) {
			p.log.WithError(err).WithField("setting", name).Warn("set a kernel setting")
		}
	}
	// Until the host has read node.yaml.
	if err := unix.Sethostname([]byte("kingpost")); err != nil {
		p.log.WithError(err).Warn("set the host name")
	}
}
