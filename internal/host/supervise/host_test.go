package supervise

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
)

var (
	soak    = flag.Duration("soak", 0, "how long TestSoak kills at random; 0 leaves it out")
	figures = flag.Bool("figures", false, "measure the host's figures, which make bench collects")
)

// realHost is the host's own program, as a child of the stand-in for PID 1, so that it can be killed as a host is.
type realHost struct {
	n      *node // for its folders and seed; its supervisor does not run
	bin    string
	dir    string
	pid    int
	client *hostapi.Client
	said   string // the file of its stderr
	decl   mesh.Declaration
}

func newRealHost(t *testing.T, before ...func(root string)) *realHost {
	t.Helper()
	n := newNode(t)
	n.stop()
	root := filepath.Dir(n.cfg.State)
	h := &realHost{n: n, dir: root, bin: filepath.Join(root, "mesh-host"), said: filepath.Join(root, "stderr")}
	cmd := exec.Command("go", "build", "-o", root+"/", "kingpost/cmd/mesh-host", "kingpost/cmd/mesh-stub")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the host: %v\n%s", err, b)
	}
	run := filepath.Join(root, mesh.PathRun)
	if err := os.MkdirAll(run, 0o755); err != nil {
		t.Fatal(err)
	}
	// On a node it is memory, too.
	if err := unix.Mount("tmpfs", run, "tmpfs", 0, "mode=0755"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unmount(run) })
	if err := os.Symlink(os.Getenv(envExits), filepath.Join(run, "exits")); err != nil {
		t.Fatal(err)
	}
	var err error
	if h.client, err = hostapi.Dial(filepath.Join(root, mesh.PathHostSocket), hostapi.Options{}); err != nil {
		t.Fatal(err)
	}
	h.decl = mesh.Declaration{Mesh: "home", Node: "alpha"}
	for _, do := range before {
		do(root)
	}
	h.start()
	t.Cleanup(func() {
		h.kill(unix.SIGKILL)
		h.client.Close()
		// What the host has left running ends with the test; newNode's cleanup looks for what is left then.
		c, _, err := openCgroups(n.cfg.Cgroups, true)
		if err != nil {
			t.Error(err)
			return
		}
		names, _ := c.names()
		for _, name := range names {
			if err := errors.Join(c.kill(name, 10*time.Second), c.remove(name)); err != nil {
				t.Error(err)
			}
		}
		ms, _ := filepath.Glob(filepath.Join(run, "instances", "*", "oci", "rootfs"))
		for _, m := range ms {
			unmount(m)
		}
	})
	return h
}

func (h *realHost) start() {
	h.n.t.Helper()
	out, err := os.OpenFile(h.said, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		h.n.t.Fatal(err)
	}
	defer out.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		h.n.t.Fatal(err)
	}
	defer null.Close()
	p, err := os.StartProcess(h.bin, []string{h.bin, "--root-dir", h.dir, "--listen-api", "127.0.0.1:0", "--listen-store", "127.0.0.1:0",
		"--cgroups", h.n.cfg.Cgroups, "--runc", h.n.cfg.Runc, "--seed", h.n.cfg.Seed}, &os.ProcAttr{
		Files: []*os.File{null, out, out}, Env: append(os.Environ(), "GOTRACEBACK=all"), Sys: &unix.SysProcAttr{Cloneflags: unix.CLONE_PARENT},
	})
	if err != nil {
		h.n.t.Fatal(err)
	}
	h.pid = p.Pid
	_ = p.Release()
	for i := 0; ; i++ {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		err := h.client.Ping(ctx)
		cancel()
		if err == nil {
			return
		}
		if i == 3000 || !exists(fmt.Sprintf("/proc/%d", h.pid)) {
			b, _ := os.ReadFile(h.said)
			h.n.t.Fatalf("the host does not answer: %v\n%s", err, b[max(0, len(b)-2000):])
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// kill ends the host and waits until it is gone.
func (h *realHost) kill(sig unix.Signal) {
	if h.pid == 0 {
		return
	}
	_ = unix.Kill(h.pid, sig)
	for exists(fmt.Sprintf("/proc/%d", h.pid)) {
		time.Sleep(time.Millisecond)
	}
	h.pid = 0
	h.client.Close()
}

func (h *realHost) declare(rs []mesh.Declared) {
	h.n.t.Helper()
	h.decl.Revision++
	h.decl.Resources = rs
	if err := h.client.Declare(context.Background(), &h.decl); err != nil {
		h.n.t.Fatal(err)
	}
}

// settled waits until everything is as declared.
func (h *realHost) settled(limit time.Duration) *hostapi.Status {
	h.n.t.Helper()
	deadline := time.Now().Add(limit)
	for {
		st, err := h.client.Status(context.Background())
		if err == nil && st.Settled && st.Applied == h.decl.Version {
			return st
		}
		if time.Now().After(deadline) {
			if err != nil {
				h.n.t.Fatal(err)
			}
			for _, r := range st.Resources {
				if !r.Ready {
					h.n.t.Errorf("%s is %s: %s", r.Key, r.State, r.Reason)
				}
			}
			h.n.t.Fatalf("not settled in %s: declared %v, applied %v", limit, st.Declared, st.Applied)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func (h *realHost) log(key string, bytes int64) string {
	r, err := h.client.Logs(context.Background(), key, hostapi.LogQuery{Bytes: bytes})
	if err != nil {
		return ""
	}
	defer r.Close()
	b, _ := io.ReadAll(r)
	return string(b)
}

// said waits for what a log says after prefix.
func (h *realHost) wait(key, prefix string, limit time.Duration) string {
	h.n.t.Helper()
	for deadline := time.Now().Add(limit); ; time.Sleep(5 * time.Millisecond) {
		text := h.log(key, 4096)
		if _, after, ok := strings.Cut(text, prefix); ok && strings.Contains(after, "\n") {
			return strings.Fields(after)[0]
		}
		if time.Now().After(deadline) {
			h.n.t.Fatalf("%s does not say %q: %s", key, prefix, text)
		}
	}
}

// procNumber is a number after a name in a file of /proc.
func procNumber(pid int, file, name string) int64 {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			n, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return n
		}
	}
	return -1
}

func (h *realHost) files() int {
	es, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", h.pid))
	return len(es)
}

// goroutines ends the host by SIGQUIT, with which Go's runtime says what every goroutine does.
func (h *realHost) goroutines() (n int, dump string) {
	before, _ := os.Stat(h.said)
	h.kill(unix.SIGQUIT)
	b, _ := os.ReadFile(h.said)
	dump = string(b[before.Size():])
	return strings.Count(dump, "\ngoroutine "), dump
}
