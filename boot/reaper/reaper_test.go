package reaper

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"kingpost/internal/mesh"
)

// TestMain runs the test program as PID 1 of a namespace, or as one of its children, where it is asked to.
func TestMain(m *testing.M) {
	switch os.Getenv("REAPER_ROLE") {
	case "init":
		if err := asInit(os.Getenv("REAPER_DIR")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	case "mother":
		// Leaves children that outlive it: one that exits 7, one that is killed.
		for _, script := range []string{"sleep 0.3; exit 7", "sleep 0.3; kill -9 $$"} {
			c := exec.Command("/bin/sh", "-c", script)
			if err := c.Start(); err != nil {
				os.Exit(99)
			}
		}
		os.Exit(5)
	}
	os.Exit(m.Run())
}

func asInit(dir string) error {
	if os.Getpid() != 1 {
		return fmt.Errorf("pid is %d", os.Getpid())
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return err
	}
	log := logrus.New()
	r, err := New(dir, 100, log)
	if err != nil {
		return err
	}
	sig := make(chan os.Signal, 1)
	signal.Notify(sig, unix.SIGCHLD)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	go r.Run(ctx, sig)

	env := []string{"REAPER_ROLE=mother"}
	attr := &syscall.ProcAttr{Env: env, Files: []uintptr{0, 1, 2}}
	// Many at once, which all end while others are being started: no status may get lost or mixed up.
	var children []*Child
	for i := range 30 {
		c, err := r.Start("/bin/sh", []string{"sh", "-c", fmt.Sprintf("exit %d", i)}, attr)
		if err != nil {
			return err
		}
		children = append(children, c)
	}
	mother, err := r.Start("/proc/self/exe", []string{"mother"}, attr)
	if err != nil {
		return err
	}
	ws, err := mother.Wait(ctx)
	if err != nil || ws.ExitStatus() != 5 {
		return fmt.Errorf("the mother ended with %v %v", ws, err)
	}
	for i, c := range children {
		if ws, err := c.Wait(ctx); err != nil || ws.ExitStatus() != i {
			return fmt.Errorf("child %d ended with %v %v", i, ws, err)
		}
	}
	var got map[string]mesh.ExitRecord
	for ctx.Err() == nil {
		if got = read(dir); len(got) >= 2 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	codes := map[int]int{}
	for name, rec := range got {
		if want := fmt.Sprintf("%d-%d.json", rec.PID, rec.Start); name != want || rec.Start == 0 {
			return fmt.Errorf("record %s is of %+v", name, rec)
		}
		if !strings.HasPrefix(rec.Cgroup, "/") {
			return fmt.Errorf("no cgroup in %+v", rec)
		}
		codes[rec.Code]++
		if rec.Code == -1 && rec.Signal != 9 {
			return fmt.Errorf("signal in %+v", rec)
		}
	}
	if codes[7] != 1 || codes[-1] != 1 {
		return fmt.Errorf("records are %+v", got)
	}
	return nil
}

func read(dir string) map[string]mesh.ExitRecord {
	out := map[string]mesh.ExitRecord{}
	names, _ := filepath.Glob(filepath.Join(dir, "*.json"))
	for _, n := range names {
		var rec mesh.ExitRecord
		b, err := os.ReadFile(n)
		if err == nil && json.Unmarshal(b, &rec) == nil {
			out[filepath.Base(n)] = rec
		}
	}
	return out
}

func TestOrphansLeaveRecordsAndChildrenTheirStatus(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("a PID namespace needs root")
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "REAPER_ROLE=init", "REAPER_DIR="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

func TestRecordsAreBounded(t *testing.T) {
	dir := t.TempDir()
	r := &records{dir: dir, max: 20}
	if err := r.prepare(); err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		if err := r.write(record{PID: i, Start: 1}); err != nil {
			t.Fatal(err)
		}
	}
	got := read(dir)
	if len(got) > 20 || len(got) < 15 {
		t.Errorf("%d records are kept", len(got))
	}
	if _, ok := got["99-1.json"]; !ok {
		t.Error("the newest record is gone")
	}
}

func TestStartTime(t *testing.T) {
	tests := map[string]struct {
		stat string
		want uint64
		err  bool
	}{
		"plain":             {"12 (sh) Z 1 12 12 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 4711 0 0", 4711, false},
		"name with a space": {"12 (a ) (b) Z 1 12 12 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 4711 0 0", 4711, false},
		"cut":               {"12 (sh) Z 1 12", 0, true},
		"empty":             {"", 0, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := startTime(tt.stat)
			if got != tt.want || (err != nil) != tt.err {
				t.Errorf("got %d, %v", got, err)
			}
		})
	}
}

func TestCgroup(t *testing.T) {
	for text, want := range map[string]string{
		"0::/kingpost/controller.server\n":                     "/kingpost/controller.server",
		"1:cpu:/x\n0::/kingpost/controller.server (deleted)\n": "/kingpost/controller.server",
		"": "",
	} {
		if got := cgroup(text); got != want {
			t.Errorf("cgroup(%q) = %q, want %q", text, got, want)
		}
	}
}

func FuzzStartTime(f *testing.F) {
	f.Add("12 (a ) (b) Z 1 12 12 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 4711 0 0")
	f.Fuzz(func(t *testing.T, s string) { _, _ = startTime(s) })
}
