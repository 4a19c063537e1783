// Command badhost is a host for end-to-end tests that goes wrong in one way and is the release's own host otherwise. It is
// built into no image. The way is set when it is built: -ldflags "-X main.fault=FAULT".
//
//	""            nothing is wrong
//	crash         ends with a panic before it has done anything
//	hang          never becomes ready
//	hang-ready    becomes ready and then stands still
//	quit          says that it stops, and exits with 0
//	corrupt       overwrites the host's state with garbage, and crashes
//	newer         overwrites it with that of a version from the future, and crashes
package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

var fault string

const (
	host  = "/usr/bin/mesh-host"
	state = "/var/lib/kingpost/host"
)

func main() {
	if len(os.Args) == 3 && os.Args[1] == "stop" {
		stop(os.Args[2])
		return
	}
	switch fault {
	case "crash":
		panic("badhost: crash")
	case "hang":
		time.Sleep(24 * time.Hour)
	case "hang-ready":
		// Somebody else stops the real host some time after it has become ready.
		cmd := exec.Command("/proc/self/exe", "stop", strconv.Itoa(os.Getpid()))
		if err := cmd.Start(); err != nil {
			panic(err)
		}
	case "quit":
		c, err := net.Dial("unixgram", os.Getenv("NOTIFY_SOCKET"))
		if err == nil {
			_, err = c.Write([]byte("STOPPING=1"))
		}
		if err != nil {
			panic(err)
		}
		return
	case "corrupt":
		overwrite("\x00\x00{half", "\x00\x00{half")
		panic("badhost: corrupted the state")
	case "newer":
		overwrite(`{"format":99,"epoch":"not a number any more","units":[1,2,3]}`, `{"format":99,"what":"is this"}`)
		panic("badhost: wrote a newer state")
	}
	err := syscall.Exec(host, os.Args, os.Environ())
	fmt.Fprintln(os.Stderr, "badhost:", err)
	os.Exit(1)
}

func overwrite(st, declaration string) {
	for name, text := range map[string]string{"state.json": st, "declaration.json": declaration} {
		if err := os.WriteFile(filepath.Join(state, name), []byte(text), 0o600); err != nil {
			panic(err)
		}
	}
}

// stop stops a process five seconds after its socket answers.
func stop(pid string) {
	n, err := strconv.Atoi(pid)
	if err != nil {
		panic(err)
	}
	for {
		if c, err := net.Dial("unix", "/run/kingpost/host.sock"); err == nil {
			c.Close()
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	time.Sleep(5 * time.Second)
	_ = syscall.Kill(n, syscall.SIGSTOP)
}
