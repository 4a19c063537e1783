package builder

import (
	"context"
	"os/exec"
	"syscall"
)

// command is a program that ends with ctx, and with it all that it has started: go leaves its linkers running when it is
// interrupted, and apt-get what fetches for it.
func command(ctx context.Context, end syscall.Signal, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, end) }
	return cmd
}
