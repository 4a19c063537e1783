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
	case "storm":
		if err := asInitInStorm(os.Getenv("REAPER_DIR")); err != nil {
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

// orphans is how many children of others end in the storm, and own how many of the reaper's own end among them.
const (
	orphans = 2000
	own     = 100
)

// asInitInStorm reaps thousands of orphans while it starts children of its own: not one zombie stays, not one status of
// a child is lost or another's, and the records are no more than allowed.
func asInitInStorm(dir string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return err
	}
	const most = 500
	r, err := New(dir, most, logrus.New())
	if err != nil {
		return err
	}
	sig := make(chan os.Signal, 1)
	signal.Notify(sig, unix.SIGCHLD)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	reaped := make(chan int, 1)
	reaping, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		n := 0
		for reaping.Err() == nil {
			n += r.ReapAll()
			select {
			case <-sig:
			case <-time.After(10 * time.Millisecond):
			case <-reaping.Done():
			}
		}
		reaped <- n + r.ReapAll()
	}()
	attr := &syscall.ProcAttr{Files: []uintptr{0, 1, 2}}
	storm, err := r.Start("/bin/sh", []string{"sh", "-c", fmt.Sprintf("i=0; while [ $i -lt %d ]; do ( (exit $((i %% 100))) & ); i=$((i+1)); done", orphans)}, attr)
	if err != nil {
		return err
	}
	var children []*Child
	for i := range own {
		c, err := r.Start("/bin/sh", []string{"sh", "-c", fmt.Sprintf("exit %d", i)}, attr)
		if err != nil {
			return err
		}
		children = append(children, c)
	}
	for i, c := range children {
		if ws, err := c.Wait(ctx); err != nil || ws.ExitStatus() != i {
			return fmt.Errorf("child %d ended with %v %v", i, ws, err)
		}
	}
	if ws, err := storm.Wait(ctx); err != nil || ws != 0 {
		return fmt.Errorf("the storm ended with %v %v", ws, err)
	}
	for ctx.Err() == nil && others() > 0 {
		time.Sleep(10 * time.Millisecond)
	}
	if left := others(); left > 0 {
		return fmt.Errorf("%d processes are left", left)
	}
	stop()
	if n := <-reaped; n != orphans+own+1 {
		return fmt.Errorf("%d were reaped, want %d", n, orphans+own+1)
	}
	if n := len(read(dir)); n > most || n < most/2 {
		return fmt.Errorf("%d records, at most %d are allowed", n, most)
	}
	return nil
}

// others counts all processes of the name space but the first, zombies too.
func others() int {
	pids, _ := filepath.Glob("/proc/[0-9]*")
	return len(pids) - 1
}

// Case 2 of the issue: a first process that waits for any child steals statuses, and one that does not reap collects zombies.
func TestThousandsOfOrphans(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("a PID namespace needs root")
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "REAPER_ROLE=storm", "REAPER_DIR="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
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
