package supervise

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"kingpost/internal/mesh"
)

// cgroups is the folder below which each resource has its own cgroup (cgroup v2, https://docs.kernel.org/admin-guide/cgroup-v2.html).
type cgroups struct {
	dir      string
	mount    string // the cgroup2 mount that dir is in
	optional bool
}

// controllers that limits need.
var controllers = []string{"memory", "cpu", "pids"}

func openCgroups(dir string, optional bool) (*cgroups, []string, error) {
	mount, err := cgroupMount(filepath.Dir(dir))
	if err != nil {
		return nil, nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, nil, fmt.Errorf("make the cgroup %s: %w", dir, err)
	}
	var warnings []string
	// Controllers are handed down one level at a time.
	for d := mount; ; {
		for _, c := range controllers {
			if err := os.WriteFile(filepath.Join(d, "cgroup.subtree_control"), []byte("+"+c), 0); err != nil {
				warnings = append(warnings, fmt.Sprintf("the cgroup controller %s is not available below %s: %v", c, d, err))
			}
		}
		if d == dir {
			break
		}
		rel, err := filepath.Rel(d, dir)
		if err != nil {
			return nil, nil, err
		}
		first, _, _ := strings.Cut(rel, "/")
		d = filepath.Join(d, first)
	}
	return &cgroups{dir, mount, optional}, warnings, nil
}

// cgroupMount is the topmost folder above dir that is still in a cgroup2 file system.
func cgroupMount(dir string) (string, error) {
	top := ""
	for d := filepath.Clean(dir); ; d = filepath.Dir(d) {
		var st unix.Statfs_t
		if err := unix.Statfs(d, &st); err == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
			top = d
		} else if top != "" {
			return top, nil
		}
		if d == "/" {
			if top == "" {
				return "", fmt.Errorf("%s is in no cgroup v2 mount; mount one at /sys/fs/cgroup", dir)
			}
			return top, nil
		}
	}
}

func (c *cgroups) path(name string) string { return filepath.Join(c.dir, name) }

// relative is a cgroup's path below the mount, "/kingpost/NAME", as exit records and the OCI runtime have it.
func (c *cgroups) relative(name string) string {
	rel, err := filepath.Rel(c.mount, c.path(name))
	if err != nil {
		return "/" + name
	}
	return "/" + rel
}

// create makes a cgroup with its limits.
func (c *cgroups) create(name string, l mesh.Limits, critical bool) error {
	if err := os.Mkdir(c.path(name), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make the cgroup of %s: %w", name, err)
	}
	// A workload that ran out of memory dies whole, not by a random one of its processes.
	_ = os.WriteFile(filepath.Join(c.path(name), "memory.oom.group"), []byte("1"), 0)
	return c.limit(name, l)
}

// limit sets limits, at any time.
func (c *cgroups) limit(name string, l mesh.Limits) error {
	num := func(n int64) string {
		if n == 0 {
			return "max"
		}
		return strconv.FormatInt(n, 10)
	}
	const period = 100_000 // microseconds
	cpu := "max " + strconv.Itoa(period)
	if l.CPU > 0 {
		cpu = fmt.Sprintf("%d %d", max(1000, int64(l.CPU*period)), period)
	}
	for _, f := range []struct {
		file, value string
		wanted      bool
	}{
		{"memory.max", num(l.Memory), l.Memory != 0},
		{"cpu.max", cpu, l.CPU != 0},
		{"pids.max", num(l.Pids), l.Pids != 0},
	} {
		err := os.WriteFile(filepath.Join(c.path(name), f.file), []byte(f.value), 0)
		if err != nil && f.wanted && !c.optional {
			return fmt.Errorf("limit %s: write %s to %s: %w", name, f.value, f.file, err)
		}
	}
	return nil
}

// names lists the cgroups that there are.
func (c *cgroups) names() ([]string, error) {
	es, err := os.ReadDir(c.dir)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range es {
		if e.IsDir() {
			out = append(out, e.Name())
		}
	}
	return out, nil
}

// populated reports whether any process lives in the cgroup or below.
func (c *cgroups) populated(name string) bool {
	b, err := os.ReadFile(filepath.Join(c.path(name), "cgroup.events"))
	return err == nil && strings.Contains(string(b), "populated 1")
}

// kill ends every process of a cgroup and waits until it is empty, at most limit.
func (c *cgroups) kill(name string, limit time.Duration) error {
	dir := c.path(name)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0); err != nil {
			c.killEach(name)
		}
		if !c.populated(name) {
			return nil
		}
		select {
		case <-deadline.C:
			return fmt.Errorf("cgroup %s still has processes %s after it was killed; they hang in the kernel", name, limit)
		case <-time.After(wait):
		}
	}
}

// killEach is for kernels without cgroup.kill (before 5.14).
func (c *cgroups) killEach(name string) {
	for _, pid := range c.pids(name) {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

// remove removes an empty cgroup with what workloads have made below it.
func (c *cgroups) remove(name string) error {
	var dirs []string
	err := filepath.WalkDir(c.path(name), func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, p)
		}
		return nil
	})
	for i := len(dirs) - 1; i >= 0; i-- {
		// A cgroup can stay busy for a moment after its last process was reaped.
		for n := range 50 {
			if err = unix.Rmdir(dirs[i]); !errors.Is(err, unix.EBUSY) || n == 49 {
				break
			}
			time.Sleep(2 * time.Millisecond)
		}
		if errors.Is(err, unix.ENOENT) {
			err = nil
		}
	}
	if err != nil {
		return fmt.Errorf("remove the cgroup %s: %w", name, err)
	}
	return nil
}

// memory is what a cgroup uses, in bytes; 0 when that is not known.
func (c *cgroups) memory(name string) int64 {
	b, err := os.ReadFile(filepath.Join(c.path(name), "memory.current"))
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	return n
}

// outOfMemory says whether something of a cgroup was killed because memory ran out, and whose; "" when nothing was. The
// kernel counts that in memory.events (Linux, Documentation/admin-guide/cgroup-v2.rst) as long as the group is there.
func (c *cgroups) outOfMemory(name string) string {
	b, err := os.ReadFile(filepath.Join(c.path(name), "memory.events"))
	if err != nil {
		return ""
	}
	count := map[string]int64{}
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			count[k], _ = strconv.ParseInt(v, 10, 64)
		}
	}
	switch {
	case count["oom_kill"] == 0:
		return ""
	case count["oom"] > 0:
		return "it ran out of the memory that its limit allows"
	}
	return "the node ran out of memory"
}
