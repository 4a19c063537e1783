// Package child starts other programs so that none outlives this one, however it ends: neither they nor what they
// start themselves.
//
// The kernel's own way (PR_SET_PDEATHSIG) reaches only the program that was started, not the compilers that go started
// in turn; so a shell of a few lines waits beside it, and sees by the end of a pipe that this program is gone. It
// waits for nothing else, and touches no process outside the group that it leads.
//
// Start with Command.
package child

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"syscall"
)

// Cmd is a program that ends with its context and with this program.
type Cmd struct {
	*exec.Cmd
	watcher *exec.Cmd
	line    io.WriteCloser // its end tells the watcher that this program is gone
}

// watch waits for a word that all is well. Without one it kills the group that it leads, itself included, so that the
// group's number cannot have become another's.
const watch = `trap "" HUP INT TERM; read -r _ || kill -KILL 0`

// Command is a program with arguments. When ctx ends, it and all that it has started are sent the signal end.
func Command(ctx context.Context, end syscall.Signal, name string, args ...string) *Cmd {
	c := &Cmd{Cmd: exec.CommandContext(ctx, name, args...)}
	c.Cancel = func() error { return syscall.Kill(-c.watcher.Process.Pid, end) }
	return c
}

// Start starts the program in a process group of its own; Wait must follow.
func (c *Cmd) Start() error {
	if c.Err != nil {
		return c.Err // it is not there
	}
	c.watcher = exec.Command("/bin/sh", "-c", watch)
	c.watcher.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var err error
	if c.line, err = c.watcher.StdinPipe(); err != nil {
		return err
	}
	if err := c.watcher.Start(); err != nil {
		return fmt.Errorf("start what watches over %s: %w", c.Path, err)
	}
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pgid: c.watcher.Process.Pid}
	if err := c.Cmd.Start(); err != nil {
		c.dismiss()
		return err
	}
	return nil
}

// Wait waits for the program's end.
func (c *Cmd) Wait() error {
	defer c.dismiss()
	return c.Cmd.Wait()
}

// dismiss ends the watcher, where it has not been killed with the group.
func (c *Cmd) dismiss() {
	io.WriteString(c.line, "done\n")
	c.line.Close()
	c.watcher.Wait()
}

// Run starts the program and waits for its end.
func (c *Cmd) Run() error {
	if err := c.Start(); err != nil {
		return err
	}
	return c.Wait()
}
