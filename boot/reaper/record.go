package reaper

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"kingpost/internal/mesh"
)

// record is what is known of a process before it is gone.
type record mesh.ExitRecord

func (r record) with(ws unix.WaitStatus) record {
	if ws.Signaled() {
		r.Code, r.Signal = -1, int(ws.Signal())
		return r
	}
	r.Code = ws.ExitStatus()
	return r
}

// describe reads start time and cgroup of a zombie from /proc.
func describe(pid int) record {
	r := record{PID: pid}
	if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil {
		r.Start, _ = startTime(string(b))
	}
	if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid)); err == nil {
		r.Cgroup = cgroup(string(b))
	}
	return r
}

// startTime is field 22 of /proc/PID/stat. The name in field 2 may hold spaces and parentheses, so fields are counted
// from its last one (proc_pid_stat(5)).
func startTime(stat string) (uint64, error) {
	i := strings.LastIndexByte(stat, ')')
	if i < 0 {
		return 0, fmt.Errorf("no name in %.40q", stat)
	}
	f := strings.Fields(stat[i+1:])
	const field = 22 - 3 // the first one behind the name is field 3
	if len(f) <= field {
		return 0, fmt.Errorf("%d fields in %.40q", len(f)+2, stat)
	}
	return strconv.ParseUint(f[field], 10, 64)
}

// cgroup is the path in the line of the v2 hierarchy of /proc/PID/cgroup. A removed group is marked by the kernel; who
// looks for its members wants its name.
func cgroup(text string) string {
	for _, l := range strings.Split(text, "\n") {
		if p, ok := strings.CutPrefix(l, "0::"); ok {
			return strings.TrimSuffix(p, " (deleted)")
		}
	}
	return ""
}

// records is the folder of exit records. The host deletes those it has read; when nobody reads, the oldest go.
type records struct {
	dir   string
	max   int
	count int // at least as many as there are
}

func (r *records) prepare() error {
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		return fmt.Errorf("make the folder of exit records: %w", err)
	}
	return r.trim()
}

// write writes a record aside and renames it, so that a reader sees it whole. The folder is in memory: nothing is synced.
func (r *records) write(rec record) error {
	b, err := json.Marshal(mesh.ExitRecord(rec))
	if err != nil {
		return err
	}
	name := filepath.Join(r.dir, fmt.Sprintf("%d-%d.json", rec.PID, rec.Start))
	tmp := filepath.Join(r.dir, ".new")
	if err := os.WriteFile(tmp, b, 0o644); err != nil {
		return err
	}
	if err := os.Rename(tmp, name); err != nil {
		return err
	}
	if r.count++; r.count > r.max {
		return r.trim()
	}
	return nil
}

// trim removes the oldest records until a tenth of the room is free, and counts anew what the host has left.
func (r *records) trim() error {
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		return err
	}
	type old struct {
		name string
		at   int64
	}
	var all []old
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".json") {
			continue
		}
		if st, err := e.Info(); err == nil {
			all = append(all, old{e.Name(), st.ModTime().UnixNano()})
		}
	}
	r.count = len(all)
	if r.count <= r.max {
		return nil
	}
	sort.Slice(all, func(i, j int) bool { return all[i].at < all[j].at })
	for _, o := range all[:len(all)-r.max*9/10] {
		if err := os.Remove(filepath.Join(r.dir, o.name)); err != nil && !os.IsNotExist(err) {
			return err
		}
		r.count--
	}
	return nil
}
