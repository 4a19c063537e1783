// Package ports tells who listens on a TCP port, from /proc alone.
//
// It never opens or closes a port. Start with Listeners.
package ports

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Listener is a process that listens on a port.
type Listener struct {
	PID int // 0 when no process could be found for it
	// Name is the process's name, Cgroup its path in the cgroup v2 hierarchy ("/kingpost/registry.server").
	Name   string
	Cgroup string
}

// stateListen is TCP_LISTEN in /proc/net/tcp (include/net/tcp_states.h).
const stateListen = "0A"

// Listeners lists who listens on a port, on any address; proc is "/proc". It sees the caller's network
// namespace, which is the node's.
func Listeners(proc string, port int) ([]Listener, error) {
	var inodes []string
	for _, name := range []string{"net/tcp", "net/tcp6"} {
		f, err := os.Open(filepath.Join(proc, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // a kernel without IPv6
		}
		if err != nil {
			return nil, fmt.Errorf("who listens on port %d: %w", port, err)
		}
		found, err := listening(f, port)
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("who listens on port %d: %s: %w", port, name, err)
		}
		inodes = append(inodes, found...)
	}
	if len(inodes) == 0 {
		return nil, nil
	}
	out := owners(proc, inodes)
	if len(out) == 0 {
		out = []Listener{{Name: "an unknown process"}}
	}
	return out, nil
}

// listening reads the socket inodes that listen on port from /proc/net/tcp or tcp6.
func listening(r io.Reader, port int) ([]string, error) {
	var out []string
	sc := bufio.NewScanner(r)
	for sc.Scan() {
		f := strings.Fields(sc.Text())
		if len(f) < 10 || f[3] != stateListen {
			continue
		}
		_, hex, ok := strings.Cut(f[1], ":")
		if !ok {
			continue
		}
		if n, err := strconv.ParseUint(hex, 16, 16); err == nil && int(n) == port {
			out = append(out, f[9])
		}
	}
	return out, sc.Err()
}

// owners finds the processes that hold the sockets. Processes come and go meanwhile; those are skipped.
func owners(proc string, inodes []string) []Listener {
	var out []Listener
	dirs, _ := filepath.Glob(filepath.Join(proc, "[0-9]*"))
	for _, d := range dirs {
		fds, err := os.ReadDir(filepath.Join(d, "fd"))
		if err != nil {
			continue
		}
		for _, fd := range fds {
			to, err := os.Readlink(filepath.Join(d, "fd", fd.Name()))
			if err != nil {
				continue
			}
			inode, ok := strings.CutPrefix(to, "socket:[")
			if !ok || !slices.Contains(inodes, strings.TrimSuffix(inode, "]")) {
				continue
			}
			pid, _ := strconv.Atoi(filepath.Base(d))
			out = append(out, Listener{PID: pid, Name: first(d, "comm"), Cgroup: strings.TrimPrefix(first(d, "cgroup"), "0::")})
			break
		}
	}
	return out
}

// first is the first line of a process's file, or "".
func first(dir, name string) string {
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(b), "\n")
	return line
}
