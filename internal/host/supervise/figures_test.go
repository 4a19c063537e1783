package supervise

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kingpost/internal/mesh"
)

// TestFigures measures a real host on this machine, in a cgroup, each figure beside the same without a host. A line is
// "measured NAME VALUE NOTE".
func TestFigures(t *testing.T) {
	if !*figures {
		t.Skip("-figures runs it")
	}
	h := newRealHost(t, func(root string) { verityDisk(t, filepath.Join(root, mesh.PathState, "bundles")) })
	demo := demoProgram(t)
	say := func(name string, value float64, note string, args ...any) {
		fmt.Printf("measured %s %.3f %s\n", name, value, fmt.Sprintf(note, args...))
	}
	median := func(ds []time.Duration) time.Duration {
		slices.Sort(ds)
		return ds[len(ds)/2]
	}

	// From the request to the program's own first line, beside fork and exec of the same program.
	const starts = 15
	var bare, declared []time.Duration
	var rs []mesh.Declared
	rs = append(rs, h.n.process("first", "idle"))
	h.declare(rs) // its bundle is local from here on
	h.settled(time.Minute)
	for i := range starts {
		cmd := exec.Command(demo, "now")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		at := time.Now()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(out).ReadString('\n')
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if err != nil {
			t.Fatal(err)
		}
		bare = append(bare, since(t, at, strings.Fields(line)[1]))

		id := fmt.Sprintf("now%d", i)
		rs = append(rs, h.n.process(id, "now"))
		at = time.Now()
		h.declare(rs)
		declared = append(declared, since(t, at, h.wait("m/"+id, "now ", 20*time.Second)))
	}
	b, d := median(bare), median(declared)
	say("host.process-start", float64((d-b).Microseconds())/1000, "median of %d: %s from the declaration's request to the program's first line, %s by fork and exec alone", starts, d, b)

	// 500 resources, 200 of them processes that run.
	rs = nil
	for i := range 200 {
		rs = append(rs, h.n.process(fmt.Sprintf("p%d", i), "idle"))
	}
	for i := range 300 {
		rs = append(rs, mesh.Declared{Module: "m", Resource: mesh.Resource{ID: fmt.Sprintf("f%d", i), Type: mesh.KindFile, Content: "text"}})
	}
	h.declare(rs)
	h.settled(5 * time.Minute)
	time.Sleep(7 * time.Second) // what runs well is written down as good
	say("host.memory-200", float64(procNumber(h.pid, "status", "VmRSS"))/1000, "VmRSS of the host in MB with 200 processes and 300 files declared")
	var same, next []time.Duration
	state := filepath.Join(h.dir, mesh.PathState, "host")
	disk, changed := procNumber(h.pid, "io", "write_bytes"), folderTimes(t, state)
	for range 11 {
		at := time.Now()
		if err := h.client.Declare(context.Background(), &h.decl); err != nil {
			t.Fatal(err)
		}
		same = append(same, time.Since(at))
	}
	time.Sleep(time.Second)
	writes := 0.0
	if folderTimes(t, state) != changed {
		writes++
	}
	wrote := procNumber(h.pid, "io", "write_bytes") - disk
	for range 5 {
		at := time.Now()
		h.declare(rs)
		next = append(next, time.Since(at))
		h.settled(time.Minute)
	}
	say("host.apply-500", float64(median(same).Microseconds())/1000, "the same declaration of 500 resources again; the same resources in a new revision, whose version must be on disk, %s", median(next))
	say("host.apply-500-writes", writes, "state files changed by 11 of these, and %d bytes written to disks by the host", wrote)

	// A new host, 50 processes running.
	rs = rs[:50]
	h.declare(rs)
	st := h.settled(2 * time.Minute)
	pids := map[string]int{}
	for _, r := range st.Resources {
		pids[r.Key] = r.PID
	}
	var taken []time.Duration
	for range 3 {
		h.kill(unix.SIGKILL)
		at := time.Now()
		h.start()
		st := h.settled(time.Minute)
		taken = append(taken, time.Since(at))
		for _, r := range st.Resources {
			if r.PID != pids[r.Key] {
				t.Errorf("%s was process %d and is process %d", r.Key, pids[r.Key], r.PID)
			}
		}
	}
	say("host.takeover-50", median(taken).Seconds(), "s from the start of a new host to everything as declared, none of 50 processes started again")

	// The log, beside cat into a file.
	const flood = "1073741824"
	var cats, logs []float64
	for i := range 3 {
		out := filepath.Join(h.dir, "cat")
		if b, err := exec.Command("sh", "-c", fmt.Sprintf("%s write-bytes %s | cat > %s", demo, flood, out)).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, b)
		}
		cats = append(cats, took(t, out))
		os.Remove(out)
		id := fmt.Sprintf("flood%d", i)
		r := h.n.process(id, "write-bytes", flood)
		r.Policy = mesh.PolicyNever
		h.declare(append(rs, r))
		v, err := strconv.ParseFloat(h.wait("m/"+id, "took ", 3*time.Minute), 64)
		if err != nil {
			t.Fatal(err)
		}
		logs = append(logs, v)
	}
	slices.Sort(cats)
	slices.Sort(logs)
	say("host.log-of-cat", logs[1]/cats[1], "times as long as into cat: 1 GiB in %.2f s into the log, %.2f s by cat into a file", logs[1], cats[1])
}

// since is the time from at to what a program said was its clock.
func since(t *testing.T, at time.Time, nano string) time.Duration {
	t.Helper()
	n, err := strconv.ParseInt(nano, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.Unix(0, n).Sub(at)
}

// took reads how long the writer of a file says that it took.
func took(t *testing.T, path string) float64 {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 200)
	n, _ := f.ReadAt(b, max(0, st.Size()-200))
	_, after, _ := strings.Cut(string(b[:n]), "took ")
	v, err := strconv.ParseFloat(strings.TrimSpace(after), 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// folderTimes tells two states of a folder and its files apart.
func folderTimes(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil {
			fmt.Fprintln(&b, p, info.ModTime().UnixNano(), info.Size())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// verityDisk mounts what a node has at dir, an ext4 with fs-verity: without it the host reads a program whole before each
// start, which is not what is to be measured.
func verityDisk(t *testing.T, dir string) {
	t.Helper()
	image := filepath.Join(t.TempDir(), "data.img")
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 512<<20), os.MkdirAll(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	for _, cmd := range [][]string{{"mkfs.ext4", "-q", "-F", "-O", "verity", image}, {"mount", "-o", "loop", image, dir}} {
		if b, err := exec.Command(cmd[0], cmd[1:]...).CombinedOutput(); err != nil {
			fmt.Printf("note: without fs-verity: %v: %s\n", err, b)
			return
		}
	}
	t.Cleanup(func() { unmount(dir) })
}
