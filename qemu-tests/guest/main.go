// Command guest is the program that end-to-end tests run on a node as a process of a module of their own, where they need
// somebody inside. It is built into no image.
//
//	guest kill PID        sends SIGKILL; needs CAP_KILL
//	guest kill-host       sends SIGKILL to the host; needs CAP_KILL and the host's socket
//	guest stay            prints what it was given (environment, files of the folders named), then runs until it is stopped
//	guest write FILE TEXT appends a line and is done
//	guest memory PID ...  prints what processes hold in memory, "PID BYTES" a line
//	guest eat BYTES       holds so much memory and says so, then stays
//	guest spin            computes, and prints every second how many CPUs it had, "cpus 0.25"
//	guest fork N          starts up to N children and prints how many it could, "forked 12", then stays
//	guest self            prints its oom_score_adj and the fs-verity digest of its own program, then stays
package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "guest:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("a command is missing")
	}
	switch {
	case args[0] == "kill" && len(args) == 2:
		pid, err := strconv.Atoi(args[1])
		if err != nil || pid < 2 {
			return fmt.Errorf("%q is no process", args[1])
		}
		return syscall.Kill(pid, syscall.SIGKILL)
	case args[0] == "kill-host":
		return killHost()
	case args[0] == "stay":
		return stay(args[1:])
	case args[0] == "write" && len(args) == 3:
		f, err := os.OpenFile(args[1], os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintln(f, args[2]); err != nil {
			return err
		}
		return f.Close()
	}
	switch {
	case args[0] == "memory":
		return memory(args[1:])
	case args[0] == "eat" && len(args) == 2:
		return eat(args[1])
	case args[0] == "spin" && len(args) == 1:
		return spin()
	case args[0] == "fork" && len(args) == 2:
		return fork(args[1])
	case args[0] == "self" && len(args) == 1:
		return self()
	}
	return fmt.Errorf("unknown command %q", args)
}

// killHost asks the kernel who serves the host's socket (unix(7), SO_PEERCRED).
func killHost() error {
	c, err := net.Dial("unix", os.Getenv("KINGPOST_HOST_SOCKET"))
	if err != nil {
		return err
	}
	defer c.Close()
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return err
	}
	var peer *unix.Ucred
	cerr := raw.Control(func(fd uintptr) { peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err := errors.Join(cerr, err); err != nil {
		return err
	}
	fmt.Println("kills the host, process", peer.Pid)
	return unix.Kill(int(peer.Pid), unix.SIGKILL)
}

// memory reads VmRSS (proc(5), /proc/PID/status), which everybody may.
func memory(pids []string) error {
	for _, pid := range pids {
		b, err := os.ReadFile("/proc/" + pid + "/status")
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(b)) {
			var kib int64
			if n, _ := fmt.Sscanf(line, "VmRSS: %d kB", &kib); n == 1 {
				fmt.Println(pid, kib<<10)
			}
		}
	}
	return nil
}

func stay(folders []string) error {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, os.Interrupt)
	env := os.Environ()
	sort.Strings(env)
	for _, e := range env {
		fmt.Println("env", e)
	}
	for _, d := range folders {
		files, err := filepath.Glob(filepath.Join(d, "*"))
		if err != nil {
			return err
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			fmt.Printf("file %s %q %v\n", f, b, err)
		}
	}
	fmt.Println("staying")
	<-stop
	return nil
}
