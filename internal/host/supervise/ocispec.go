package supervise

import (
	"errors"
	"fmt"
	"path"
	"runtime"
	"sort"
	"strings"

	"github.com/moby/profiles/seccomp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"kingpost/internal/host/stub"
)

// ociSpec is the container for the runtime (OCI runtime specification, config.md and config-linux.md).
func (l *launch) ociSpec(rootfs string) (*specs.Spec, error) {
	sp, img := l.sp, l.st.Image
	args, err := l.containerArgs()
	if err != nil {
		return nil, err
	}
	cwd := "/"
	if img != nil && path.IsAbs(img.Config.WorkingDir) {
		cwd = img.Config.WorkingDir
	}
	var imageEnv []string
	if img != nil {
		imageEnv = img.Config.Env
	}
	caps := sp.Capabilities
	oom := oomScore(sp.Critical)
	files := uint64(1 << 16)
	var lim unix.Rlimit
	// Where the host may not raise limits, in a sandbox, neither may the runtime.
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err == nil {
		files = min(files, lim.Max)
	}
	namespaces := []specs.LinuxNamespace{
		{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}, {Type: specs.IPCNamespace}, {Type: specs.CgroupNamespace},
	}
	if sp.private() {
		namespaces = append(namespaces, specs.LinuxNamespace{Type: specs.NetworkNamespace}, specs.LinuxNamespace{Type: specs.UTSNamespace})
	}
	var sysctl map[string]string
	if sp.private() {
		sysctl = map[string]string{
			// Nothing that is declared runs as root, and the ports are the container's own.
			"net.ipv4.ip_unprivileged_port_start": "0",
			// It has its way out; who sends router advertisements there would be another container.
			"net.ipv6.conf.default.accept_ra": "0",
		}
		if !exists("/proc/sys/net/ipv6") {
			delete(sysctl, "net.ipv6.conf.default.accept_ra")
		}
	}
	spec := &specs.Spec{
		Version: "1.0.2",
		Root:    &specs.Root{Path: rootfs, Readonly: sp.ReadOnlyRoot},
		Process: &specs.Process{
			User: specs.User{UID: uint32(l.uid), GID: uint32(l.uid)},
			Args: args,
			Env:  environment(append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/tmp"}, imageEnv...), l.env...),
			Cwd:  cwd,
			Capabilities: &specs.LinuxCapabilities{
				Bounding: caps, Effective: caps, Permitted: caps, Inheritable: caps, Ambient: caps,
			},
			Rlimits:         []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Hard: files, Soft: files}, {Type: "RLIMIT_CORE"}},
			NoNewPrivileges: true,
			OOMScoreAdj:     &oom,
		},
		Hostname: l.hostname(),
		Mounts:   l.containerMounts(),
		Linux: &specs.Linux{
			CgroupsPath: l.s.cgroups.relative(sp.name()),
			Namespaces:  namespaces,
			Sysctl:      sysctl,
			Resources:   &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}},
			MaskedPaths: []string{
				"/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
				"/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware",
			},
			ReadonlyPaths: []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
		},
	}
	// The field's own list of system calls. It is made for the capabilities in the spec, so it comes last.
	if spec.Linux.Seccomp, err = seccomp.GetDefaultProfile(spec); err != nil {
		return nil, fmt.Errorf("make the list of system calls: %w", err)
	}
	// The machine's own architecture comes first. The others, for 32-bit programs, are a second way into the kernel that next
	// to nobody needs, and a fifth of the time that a container takes to be made.
	if all := spec.Linux.Seccomp.Architectures; len(all) > 1 && (img == nil || img.Architecture == runtime.GOARCH) {
		spec.Linux.Seccomp.Architectures = all[:1]
	}
	return spec, nil
}

// hostname is the container's own on a private network; on the node's it has the node's name.
func (l *launch) hostname() string {
	if !l.sp.private() {
		return ""
	}
	h := l.sp.ID + "-" + l.sp.Module
	if len(h) > 63 {
		h = strings.TrimRight(h[:63], "-")
	}
	return h
}

// containerArgs are the image's entrypoint and command (OCI image specification, config.md) with what is
// declared in their places.
func (l *launch) containerArgs() ([]string, error) {
	var args []string
	switch {
	case l.sp.Command != "":
		args = []string{l.sp.Command}
	case l.st.Image != nil:
		args = append(args, l.st.Image.Config.Entrypoint...)
	}
	switch {
	case len(l.sp.Args) > 0:
		args = append(args, l.sp.Args...)
	case l.sp.Command == "" && l.st.Image != nil:
		args = append(args, l.st.Image.Config.Cmd...)
	}
	if len(args) == 0 {
		return nil, errors.New("the image names no program; declare a command")
	}
	return args, nil
}

func (l *launch) containerMounts() []specs.Mount {
	safe := []string{"nosuid", "noexec", "nodev"}
	mounts := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: safe},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"}},
		{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: append([]string{"mode=1777", "size=65536k"}, safe...)},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: safe},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: append([]string{"ro"}, safe...)},
		{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: append([]string{"ro", "relatime"}, safe...)},
	}
	if !l.covers("/tmp") {
		mounts = append(mounts, specs.Mount{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", "mode=1777"}})
	}
	binds := append([]stub.Bind(nil), l.binds...)
	sort.SliceStable(binds, func(i, j int) bool { return binds[i].To < binds[j].To })
	for _, b := range binds {
		o := []string{"rbind", "rprivate", "nosuid", "nodev"}
		if b.ReadOnly {
			o = append(o, "ro")
		}
		mounts = append(mounts, specs.Mount{Destination: b.To, Type: "bind", Source: b.From, Options: o})
	}
	return mounts
}
