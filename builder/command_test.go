package builder

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestCommandEndsWhole has a program that starts another, as go does with its linkers.
func TestCommandEndsWhole(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := command(ctx, syscall.SIGKILL, "sh", "-c", "sleep 600 & echo $! > "+file+"; wait")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := 0
	for range 1000 {
		raw, _ := os.ReadFile(file)
		if pid, _ = strconv.Atoi(strings.TrimSpace(string(raw))); pid > 0 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if pid == 0 {
		t.Fatal("it did not start")
	}
	cancel()
	cmd.Wait()
	for range 1000 {
		// An orphan stays a zombie for as long as the machine's init lets it.
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	syscall.Kill(pid, syscall.SIGKILL)
	t.Error("what it started is still there")
}
