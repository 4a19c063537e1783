package child

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const startsEnv = "CHILD_TEST_STARTS"

// starts starts another program, as go does with its linkers, and says which.
const starts = "sleep 600 & echo $!; wait"

// TestMain is also the program that starts others and is killed.
func TestMain(m *testing.M) {
	if os.Getenv(startsEnv) == "" {
		os.Exit(m.Run())
	}
	cmd := Command(context.Background(), syscall.SIGKILL, "sh", "-c", starts)
	cmd.Stdout = os.Stdout
	if err := cmd.Run(); err != nil {
		os.Stdout.WriteString(err.Error())
	}
}

// pid reads what starts has started.
func pid(t *testing.T, r io.Reader) int {
	t.Helper()
	line, err := bufio.NewReader(r).ReadString('\n')
	n, perr := strconv.Atoi(strings.TrimSpace(line))
	if err != nil || perr != nil {
		t.Fatalf("it said %q, %v", line, err)
	}
	return n
}

// gone waits until a process is gone. An orphan stays a zombie for as long as the machine's init lets it.
func gone(t *testing.T, pid int) {
	t.Helper()
	for range 1000 {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	syscall.Kill(pid, syscall.SIGKILL)
	t.Error("what it started is still there")
}

func TestEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := Command(ctx, syscall.SIGKILL, "sh", "-c", starts)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	n := pid(t, out)
	cancel()
	cmd.Wait()
	gone(t, n)
}

func TestEndsWithProgram(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	killed := exec.Command(exe)
	killed.Env = append(os.Environ(), startsEnv+"=1")
	out, err := killed.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := killed.Start(); err != nil {
		t.Fatal(err)
	}
	n := pid(t, out)
	killed.Process.Kill()
	killed.Wait()
	gone(t, n)
}

func TestEndsByItself(t *testing.T) {
	for _, c := range []struct {
		script string
		code   int
	}{{"exit 0", 0}, {"exit 7", 7}} {
		cmd := Command(t.Context(), syscall.SIGKILL, "sh", "-c", c.script)
		err := cmd.Run()
		var exit *exec.ExitError
		if c.code == 0 && err != nil || c.code != 0 && (!errors.As(err, &exit) || exit.ExitCode() != c.code) {
			t.Errorf("%s: %v", c.script, err)
		}
		if cmd.watcher.ProcessState == nil || !cmd.watcher.ProcessState.Success() {
			t.Errorf("%s: the watcher ended with %v", c.script, cmd.watcher.ProcessState)
		}
	}
	if err := Command(t.Context(), syscall.SIGKILL, "no-such-program").Run(); !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("what is not there: %v", err)
	}
	notProgram := t.TempDir() + "/text"
	if err := os.WriteFile(notProgram, []byte("\x00"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Command(t.Context(), syscall.SIGKILL, notProgram).Run(); err == nil {
		t.Error("what is no program was run")
	}
}
