// Command guest is the program that end-to-end tests run on a node as a process of a module of their own, where they need
// somebody inside. It is built into no image.
//
//	guest kill PID        sends SIGKILL; needs CAP_KILL
//	guest kill-host       sends SIGKILL to the host; needs CAP_KILL and the host's socket
//	guest stop PID        sends SIGSTOP; needs CAP_KILL
//	guest freeze PID      holds every thread of a process still, PID 1's too, for as long as it runs; needs CAP_SYS_PTRACE
//	guest devour          takes all memory that there is
//	guest fill FOLDER     writes until nothing more fits, and keeps it
//	guest stay            prints what it was given (environment, files of the folders named), then runs until it is stopped
//	guest write FILE TEXT appends a line and is done
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
	"runtime"
	"sort"
	"strconv"
	"syscall"
	"time"

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
	case len(args) == 2 && (args[0] == "kill" || args[0] == "stop" || args[0] == "freeze"):
		pid, err := strconv.Atoi(args[1])
		if err != nil || pid < 1 {
			return fmt.Errorf("%q is no process", args[1])
		}
		switch args[0] {
		case "kill":
			return syscall.Kill(pid, syscall.SIGKILL)
		case "stop":
			return syscall.Kill(pid, syscall.SIGSTOP)
		}
		return freeze(pid)
	case args[0] == "kill-host":
		return killHost()
	case args[0] == "devour" && len(args) == 1:
		return devour()
	case args[0] == "fill" && len(args) == 2:
		return fill(args[1])
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

// freeze stops every thread of a process by ptrace(2), which the kernel allows for PID 1 where a signal would do nothing.
func freeze(pid int) error {
	runtime.LockOSThread() // a tracer is a thread
	for again := true; again; {
		again = false
		tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if err != nil {
			return err
		}
		for _, t := range tasks {
			tid, err := strconv.Atoi(t.Name())
			if err != nil {
				continue
			}
			switch err := unix.PtraceSeize(tid); err {
			case nil:
				again = true // it may have started another one meanwhile
				if err := unix.PtraceInterrupt(tid); err != nil {
					return fmt.Errorf("stop thread %d: %w", tid, err)
				}
			case unix.EPERM: // is held already
			case unix.ESRCH:
			default:
				return fmt.Errorf("hold thread %d: %w", tid, err)
			}
		}
	}
	fmt.Println("frozen")
	for {
		time.Sleep(time.Hour)
	}
}

// devour takes memory and touches it, so that it is really there.
func devour() error {
	const piece = 4 << 20
	var kept [][]byte
	for {
		b := make([]byte, piece)
		for i := 0; i < len(b); i += 4096 {
			b[i] = byte(i)
		}
		kept = append(kept, b)
		fmt.Println("eaten", len(kept)*piece)
	}
}

// fill writes files until the disk is full.
func fill(folder string) error {
	f, err := os.Create(filepath.Join(folder, "full"))
	if err != nil {
		return err
	}
	b := make([]byte, 1<<20)
	for len(b) > 0 {
		if _, err := f.Write(b); errors.Is(err, syscall.ENOSPC) {
			b = b[:len(b)/2]
		} else if err != nil {
			return err
		}
	}
	fmt.Println("full")
	return f.Close()
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
