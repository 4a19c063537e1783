package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
)

// TestMain runs the test program as a host where it is asked to.
func TestMain(m *testing.M) {
	if os.Getenv("MESH_HOST_TEST") != "" {
		os.Exit(serve(os.Args[1:]))
	}
	os.Exit(m.Run())
}

// tried is a real host below a folder whose data partition is a file system of its own.
type tried struct {
	root, data string
	cgroups    string
	cmd        *exec.Cmd
	ended      <-chan struct{}
	client     *hostapi.Client
}

func newTried(t *testing.T) *tried {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("mounts a file system, which root alone may")
	}
	root, err := os.MkdirTemp("", "kph") // its sockets need a short path
	if err != nil {
		t.Fatal(err)
	}
	h := &tried{root: root, data: root + mesh.PathData}
	t.Cleanup(func() { os.RemoveAll(root) })
	if err := os.MkdirAll(h.data, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", h.data, "tmpfs", 0, "size=8m,mode=0755"); err != nil {
		t.Skipf("cannot mount here: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(h.data, unix.MNT_DETACH) })
	mount := filepath.Join(root, "cgroup")
	if err := os.Mkdir(mount, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", mount, "cgroup2", 0, ""); err != nil {
		t.Skipf("cannot mount cgroup v2 here: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(mount, unix.MNT_DETACH) })
	h.cgroups = filepath.Join(mount, filepath.Base(root))
	t.Cleanup(func() { os.Remove(h.cgroups) })
	return h
}

// start starts the host and waits until it answers.
func (h *tried) start(t *testing.T) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "--root-dir", h.root, "--listen-api", "127.0.0.1:0", "--listen-store", "127.0.0.1:0", "--cgroups", h.cgroups)
	cmd.Env = append(os.Environ(), "MESH_HOST_TEST=1")
	out := &strings.Builder{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	h.cmd, h.ended = cmd, ended
	client, err := hostapi.Dial(h.root+mesh.PathHostSocket, hostapi.Options{})
	if err != nil {
		t.Fatal(err)
	}
	h.client = client
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
		client.Close()
		if t.Failed() {
			t.Logf("the host printed:\n%s", out)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for client.Ping(ctx) != nil {
		select {
		case <-ended:
			t.Fatalf("the host has ended:\n%s", out)
		case <-ctx.Done():
			t.Fatalf("the host does not answer:\n%s", out)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (h *tried) stop(t *testing.T) {
	t.Helper()
	_ = h.cmd.Process.Signal(unix.SIGTERM)
	select {
	case <-h.ended:
	case <-time.After(30 * time.Second):
		t.Error("the host does not end")
	}
}

func (h *tried) warns(t *testing.T, what string, want bool) {
	t.Helper()
	n, err := h.client.Node(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if slices.ContainsFunc(n.Warnings, func(w string) bool { return strings.Contains(w, what) }) != want {
		t.Errorf("the warnings are %q, wanted %q among them: %v", n.Warnings, what, want)
	}
}

func (h *tried) declare(t *testing.T, revision uint64) error {
	return h.client.Declare(t.Context(), &mesh.Declaration{
		Mesh: "home", Node: "alpha", Version: mesh.Version{Epoch: 1, Revision: revision}, Writer: "operator",
		Resources: []mesh.Declared{{Module: "m", Resource: mesh.Resource{ID: "f", Type: mesh.KindFile, Content: "x"}}},
	})
}

// revision is what the host has on its disk and in its hands.
func (h *tried) revision(t *testing.T) uint64 {
	t.Helper()
	d, err := h.client.Declaration(t.Context())
	if err != nil || d == nil {
		t.Fatalf("the declaration is gone: %v, %v", d, err)
	}
	return d.Revision
}

// A host comes up on a data partition that is full, or takes no writes, says so, has what it had, refuses what it cannot
// keep, and goes on when it can again; nothing is lost.
func TestDataPartition(t *testing.T) {
	for name, tt := range map[string]struct {
		what       string
		break_, up func(h *tried) error
	}{
		"full": {"is full", func(h *tried) error {
			f, err := os.Create(filepath.Join(h.data, "fill"))
			if err != nil {
				return err
			}
			b := make([]byte, 64<<10)
			for len(b) > 0 {
				if _, err := f.Write(b); errors.Is(err, unix.ENOSPC) {
					b = b[:len(b)/2]
				} else if err != nil {
					return err
				}
			}
			return f.Close()
		}, func(h *tried) error { return os.Remove(filepath.Join(h.data, "fill")) }},
		"read-only": {"takes no writes",
			func(h *tried) error { return unix.Mount("", h.data, "", unix.MS_REMOUNT|unix.MS_RDONLY, "") },
			func(h *tried) error { return unix.Mount("", h.data, "", unix.MS_REMOUNT, "") }},
	} {
		t.Run(name, func(t *testing.T) {
			h := newTried(t)
			h.start(t)
			h.warns(t, tt.what, false)
			if err := h.declare(t, 1); err != nil {
				t.Fatal(err)
			}
			n, err := h.client.Node(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			h.stop(t)
			if err := tt.break_(h); err != nil {
				t.Fatal(err)
			}

			h.start(t)
			h.warns(t, tt.what, true)
			if now, err := h.client.Node(t.Context()); err != nil || now.Key != n.Key || now.ID != n.ID {
				t.Errorf("it is somebody else now: %+v, %v", now, err)
			}
			if err := h.declare(t, 2); err == nil {
				t.Error("a declaration that cannot be kept is taken")
			}
			if got := h.revision(t); got != 1 {
				t.Errorf("revision %d counts", got)
			}
			if err := tt.up(h); err != nil {
				t.Fatal(err)
			}
			h.warns(t, tt.what, false)
			if err := h.declare(t, 3); err != nil {
				t.Errorf("when it can be kept again: %v", err)
			}
			h.stop(t)
			h.start(t)
			if got := h.revision(t); got != 3 {
				t.Errorf("revision %d was kept", got)
			}
		})
	}
}
