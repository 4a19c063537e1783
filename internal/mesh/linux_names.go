package mesh

// Names of Linux capabilities in the order of their numbers (capabilities(7), <linux/capability.h>).
var capabilityNames = [...]string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID",
	"CAP_SETUID", "CAP_SETPCAP", "CAP_LINUX_IMMUTABLE", "CAP_NET_BIND_SERVICE", "CAP_NET_BROADCAST", "CAP_NET_ADMIN",
	"CAP_NET_RAW", "CAP_IPC_LOCK", "CAP_IPC_OWNER", "CAP_SYS_MODULE", "CAP_SYS_RAWIO", "CAP_SYS_CHROOT",
	"CAP_SYS_PTRACE", "CAP_SYS_PACCT", "CAP_SYS_ADMIN", "CAP_SYS_BOOT", "CAP_SYS_NICE", "CAP_SYS_RESOURCE",
	"CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG", "CAP_MKNOD", "CAP_LEASE", "CAP_AUDIT_WRITE", "CAP_AUDIT_CONTROL",
	"CAP_SETFCAP", "CAP_MAC_OVERRIDE", "CAP_MAC_ADMIN", "CAP_SYSLOG", "CAP_WAKE_ALARM", "CAP_BLOCK_SUSPEND",
	"CAP_AUDIT_READ", "CAP_PERFMON", "CAP_BPF", "CAP_CHECKPOINT_RESTORE",
}

// CapabilityNumber is the number of a capability by its name, "CAP_NET_ADMIN".
func CapabilityNumber(name string) (int, bool) {
	for i, n := range capabilityNames {
		if n == name {
			return i, true
		}
	}
	return 0, false
}

// CapabilityCount is one more than the highest capability that is known here.
const CapabilityCount = len(capabilityNames)

// SignalNumber is the number of a signal that may be declared to stop a resource. The numbers are those
// of Linux on every architecture that it runs on today but alpha, mips, parisc and sparc.
func SignalNumber(name string) (int, bool) {
	n, ok := map[string]int{
		"SIGHUP": 1, "SIGINT": 2, "SIGQUIT": 3, "SIGABRT": 6, "SIGKILL": 9, "SIGUSR1": 10, "SIGUSR2": 12,
		"SIGALRM": 14, "SIGTERM": 15, "SIGWINCH": 28, "SIGPWR": 30,
	}[name]
	return n, ok
}
