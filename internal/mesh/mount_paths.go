package mesh

import (
	"fmt"
	"path"
	"strings"
)

// hostPaths are the places that belong to the host in every view of the file system: the kernel's, the host's own, and the
// files by which a program knows who it is and where. With another passwd a program would run as one account and believe
// in another; the host writes or brings in the rest itself.
func hostPaths() []string {
	return []string{
		PathRun, PathState, PathESP, "/proc", "/sys", "/dev",
		"/etc/passwd", "/etc/group", "/etc/shadow", "/etc/gshadow", "/etc/subuid", "/etc/subgid",
		"/etc/hosts", "/etc/hostname", "/etc/resolv.conf",
	}
}

// rootPaths are those that a process's root brings along beside them: the node's programs and settings, and the bundle. An
// image of a container has its own, and may be given others.
func rootPaths() []string {
	return []string{
		"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/app", "/etc/ssl",
		"/etc/os-release", "/etc/nsswitch.conf", "/etc/localtime", "/etc/protocols", "/etc/services", "/etc/ld.so.cache", "/etc/ld.so.conf",
	}
}

// checkMountPath accepts a place at which r may see a volume, a file or a secret.
func (r *Resource) checkMountPath(s string) error {
	switch {
	case s == "":
		return fmt.Errorf("the path is missing")
	case len(s) > 1024 || strings.ContainsRune(s, 0):
		return fmt.Errorf("%.60q... is no path", s)
	case hasDotDot(s):
		return fmt.Errorf("%.200q has a \"..\"", s)
	case !strings.HasPrefix(s, "/") || path.Clean(s) != s || s == "/":
		return fmt.Errorf("%.200q is no clean absolute path below /", s)
	}
	taken := hostPaths()
	if r.Type == KindProcess {
		taken = append(taken, rootPaths()...)
	}
	for _, t := range taken {
		if within(s, t) || within(t, s) {
			return fmt.Errorf("%q would cover %s, which belongs to the host", s, t)
		}
	}
	return nil
}
