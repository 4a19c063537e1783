package supervise

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"kingpost/internal/host/stub"
	"kingpost/internal/mesh"
)

// The tests that run workloads need root and a stand-in for PID 1. So the test program starts itself
// twice: first as that stand-in, a subreaper in a mount namespace of its own whose /sys/fs/cgroup is cgroup
// v2, which then starts the tests, in a network of their own.
const (
	envRole  = "KINGPOST_TEST_ROLE"
	envExits = "KINGPOST_TEST_EXITS"
)

func TestMain(m *testing.M) {
	if os.Getenv(envRole) == "tests" {
		// The first thread keeps to the tests' own network: one that ends in another takes the process's view along.
		runtime.LockOSThread()
		if err := loopbackUp(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	if os.Getenv(envRole) == "tests" || os.Geteuid() != 0 {
		os.Exit(m.Run())
	}
	os.Exit(standIn())
}

// loopbackUp sets up the loopback of a new network.
func loopbackUp() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}

// standIn is PID 1 as far as the host can tell.
func standIn() int {
	dir, err := os.MkdirTemp("", "kingpost-supervise-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), envRole+"=tests", envExits+"="+dir)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &unix.SysProcAttr{Unshareflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET}
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for {
		// Look before reaping: after it /proc has nothing to tell.
		var info [128]byte
		_, _, e := unix.Syscall6(unix.SYS_WAITID, unix.P_ALL, 0, uintptr(unsafe.Pointer(&info)), unix.WEXITED|unix.WNOWAIT, 0, 0)
		if errors.Is(e, unix.EINTR) {
			continue
		}
		if e != 0 {
			return 1
		}
		pid := int(*(*int32)(unsafe.Pointer(&info[16])))
		start, _ := stub.StartTime(pid)
		cg, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		var ws unix.WaitStatus
		if _, err := unix.Wait4(pid, &ws, 0, nil); err != nil {
			continue
		}
		if pid == cmd.Process.Pid {
			return ws.ExitStatus()
		}
		r := mesh.ExitRecord{PID: pid, Start: start, Code: ws.ExitStatus()}
		if ws.Signaled() {
			r.Code, r.Signal = -1, int(ws.Signal())
		}
		for _, l := range strings.Split(string(cg), "\n") {
			if c, ok := strings.CutPrefix(l, "0::"); ok {
				r.Cgroup = c
			}
		}
		b, _ := json.Marshal(r)
		name := fmt.Sprintf("%d-%d.json", pid, start)
		_ = os.WriteFile(filepath.Join(dir, "."+name), b, 0o600)
		_ = os.Rename(filepath.Join(dir, "."+name), filepath.Join(dir, name))
	}
}

// cgroupRoot makes /sys/fs/cgroup cgroup v2 in the tests' own mount namespace.
func cgroupRoot(t *testing.T) string {
	t.Helper()
	if os.Getenv(envRole) != "tests" {
		t.Skip("needs root")
	}
	const root = "/sys/fs/cgroup"
	var st unix.Statfs_t
	if err := unix.Statfs(root, &st); err != nil {
		t.Skip(err)
	}
	if st.Type != unix.CGROUP2_SUPER_MAGIC {
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			t.Skipf("make mounts private: %v", err)
		}
		if err := unix.Mount("none", root, "cgroup2", 0, ""); err != nil {
			t.Skipf("mount cgroup v2: %v", err)
		}
	}
	return root
}

func demoProgram(t *testing.T) string { return program(t, "./testdata/demo") }

func stubProgram(t *testing.T) string { return program(t, "kingpost/cmd/mesh-stub") }

// program builds a package once per test run.
func program(t *testing.T, pkg string) string {
	t.Helper()
	out := filepath.Join(os.Getenv(envExits), path.Base(pkg))
	if _, err := os.Stat(out); err == nil {
		return out
	}
	cmd := exec.Command("go", "build", "-o", out, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", pkg, err, bytes.TrimSpace(b))
	}
	return out
}
