package supervise

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Which ports a workload listens on is not declared where it has the node's own network, so it is observed: the sockets
// that its processes hold, looked up in the tables of their network (proc_pid_net(5)).

// tables of listening sockets: of TCP those in state LISTEN, of UDP those that are connected to nobody (net/tcp_states.h).
var tables = []struct{ file, protocol, state string }{
	{"tcp", "tcp", "0A"}, {"tcp6", "tcp", "0A"}, {"udp", "udp", "07"}, {"udp6", "udp", "07"},
}

func (t *task) listens() []string {
	if t.run.Spec.private() {
		return nil
	}
	held := map[string]bool{}
	for _, pid := range t.s.cgroups.pids(t.run.Spec.name()) {
		dir := fmt.Sprintf("/proc/%d/fd", pid)
		fds, _ := os.ReadDir(dir)
		for _, fd := range fds {
			to, err := os.Readlink(filepath.Join(dir, fd.Name()))
			if inode, ok := strings.CutPrefix(to, "socket:["); err == nil && ok {
				held[strings.TrimSuffix(inode, "]")] = true
			}
		}
	}
	var out []string
	for _, table := range tables {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", t.run.PID, table.file))
		if err != nil {
			continue
		}
		for _, port := range listening(b, table.state, held) {
			out = append(out, fmt.Sprintf("%s port %d", table.protocol, port))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// listening finds the ports of the sockets in a table that have the state and one of the inodes.
func listening(table []byte, state string, inodes map[string]bool) []int {
	var out []int
	for line := range bytes.Lines(table) {
		f := strings.Fields(string(line))
		if len(f) < 10 || f[3] != state || !inodes[f[9]] {
			continue
		}
		_, port, ok := strings.Cut(f[1], ":")
		if b, err := hex.DecodeString(port); ok && err == nil && len(b) == 2 {
			out = append(out, int(b[0])<<8|int(b[1]))
		}
	}
	return out
}

// pids are the processes of a cgroup and of those below it.
func (c *cgroups) pids(name string) []int {
	var out []int
	_ = filepath.WalkDir(c.path(name), func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil
		}
		b, _ := os.ReadFile(filepath.Join(p, "cgroup.procs"))
		for _, f := range strings.Fields(string(b)) {
			if pid, err := strconv.Atoi(f); err == nil && pid > 1 {
				out = append(out, pid)
			}
		}
		return nil
	})
	return out
}
