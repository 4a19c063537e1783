// Package ports tells who listens on a TCP port or receives at a UDP port, from /proc alone.
//
// It never opens or closes a port. Start with Listeners.
package ports

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Listener is a process that listens on a port.
type Listener struct {
	Port int
	PID  int // 0 when no process could be found for it
	// Name is the process's name, Cgroup its path in the cgroup v2 hierarchy ("/kingpost/registry.server").
	Name   string
	Cgroup string
}

// String names it for a message.
func (l Listener) String() string {
	if l.PID == 0 {
		return l.Name
	}
	return fmt.Sprintf("%s (process %d)", l.Name, l.PID)
}

// The states of sockets in /proc/net/tcp and udp (include/net/tcp_states.h): TCP_LISTEN, and TCP_CLOSE for a UDP socket
// that takes datagrams from everybody.
const (
	stateListen = "0A"
	stateClose  = "07"
)

// Listeners lists who listens on any of some ports, on any address; proc is "/proc". It sees the calling thread's
// network namespace, which is the node's.
func Listeners(proc string, ports ...int) ([]Listener, error) {
	return find(proc, ports, stateListen, "tcp", "tcp6")
}

// Receivers lists who takes datagrams at a UDP port, as Listeners does for TCP.
func Receivers(proc string, ports ...int) ([]Listener, error) {
	return find(proc, ports, stateClose, "udp", "udp6")
}

func find(proc string, ports []int, state string, tables ...string) ([]Listener, error) {
	if len(ports) == 0 {
		return nil, nil
	}
	inodes := map[string]int{}
	for _, name := range tables {
		f, err := os.Open(filepath.Join(proc, "thread-self/net", name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // a kernel without IPv6
		}
		if err != nil {
			return nil, fmt.Errorf("who listens on ports %v: %w", ports, err)
		}
		found, err := listening(f, ports, state)
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("who listens on ports %v: %s: %w", ports, name, err)
		}
		maps.Copy(inodes, found)
	}
	if len(inodes) == 0 {
		return nil, nil
	}
	out := owners(proc, inodes)
	for _, l := range out {
		maps.DeleteFunc(inodes, func(_ string, port int) bool { return port == l.Port })
	}
	for _, port := range inodes {
		out = append(out, Listener{Port: port, Name: "an unknown process"})
	}
	return out, nil
}

// listening reads the inodes and ports of the sockets that are in state on any of some ports from /proc/net/tcp or one like it.
func listening(r io.Reader, ports []int, state string) (map[string]int, error) {
	out := map[string]int{}
	sc := bufio.NewScanner(r)
	for sc.Scan() {
		f := strings.Fields(sc.Text())
		if len(f) < 10 || f[3] != state {
			continue
		}
		_, hex, ok := strings.Cut(f[1], ":")
		if !ok {
			continue
		}
		if n, err := strconv.ParseUint(hex, 16, 16); err == nil && slices.Contains(ports, int(n)) {
			out[f[9]] = int(n)
		}
	}
	return out, sc.Err()
}

// owners finds the processes that hold the sockets. Processes come and go meanwhile; those are skipped.
func owners(proc string, inodes map[string]int) []Listener {
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
			port, found := inodes[strings.TrimSuffix(inode, "]")]
			if !ok || !found {
				continue
			}
			pid, _ := strconv.Atoi(filepath.Base(d))
			out = append(out, Listener{Port: port, PID: pid, Name: first(d, "comm"), Cgroup: strings.TrimPrefix(first(d, "cgroup"), "0::")})
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
