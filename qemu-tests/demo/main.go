// Command demo is what `make raise` runs: it boots an image in a virtual machine, raises a mesh in it and looks at the
// result, all by the operator's program, as a person would. On a terminal the mesh then stays up until Ctrl-C; without
// one the node is powered off. Every command is printed before it is run.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/term"
)

func main() {
	var d demo
	flag.StringVar(&d.kingpost, "kingpost", "bin/kingpost", "the operator's program")
	flag.StringVar(&d.image, "image", "out/vm", "the image to boot")
	flag.StringVar(&d.mesh, "mesh", "home", "the name of the mesh")
	flag.Parse()
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // under nohup the terminal may go
		signals = append(signals, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	err := d.run(ctx)
	stop()
	switch {
	case errors.Is(err, errInterrupted):
		fmt.Fprintln(os.Stderr, "make raise:", err)
		os.Exit(130)
	case err != nil:
		fmt.Fprintln(os.Stderr, "make raise:", err)
		os.Exit(1)
	}
}

// errInterrupted is what Ctrl-C makes of a run before the mesh is up. The node's disk is a copy that goes with it.
var errInterrupted = errors.New("interrupted; the node is gone")

type demo struct {
	kingpost, image, mesh string
}

func (d *demo) run(ctx context.Context) (err error) {
	claim, err := d.claim(ctx)
	if err != nil {
		return err
	}
	console, err := filepath.Abs(filepath.Join(d.image, "..", "console.log"))
	if err != nil {
		return err
	}
	vm, err := d.startVM(ctx, claim, console)
	if err != nil {
		return err
	}
	defer func() {
		if e := vm.stop(); err == nil {
			err = e
		}
	}()
	fmt.Printf("the node's console is in %s\n", console)
	if err := d.raise(ctx, vm); err != nil {
		if ctx.Err() != nil {
			return errInterrupted
		}
		return err
	}
	if !term.IsTerminal(int(os.Stdin.Fd())) || !term.IsTerminal(int(os.Stdout.Fd())) {
		fmt.Println("\nThe mesh is raised and answers. There is no terminal, so the node is powered off.")
		return nil
	}
	fmt.Printf("\nThe mesh %s is up. Talk to it from another terminal, for example:\n\n  %s status\n  %s call controller describe\n  %s logs controller/server\n\nCtrl-C powers the node off.\n",
		d.mesh, d.kingpost, d.kingpost, d.kingpost)
	select {
	case <-ctx.Done():
	case <-vm.ended:
	}
	return nil
}

// raise raises the mesh in a machine that was started, and looks at it.
func (d *demo) raise(ctx context.Context, vm *machine) error {
	addr, err := vm.wait(ctx, regexp.MustCompile(`API at (\S+)`))
	if err != nil {
		return err
	}
	key, err := vm.wait(ctx, regexp.MustCompile(`node \S+ key (SHA256:\S+)`))
	if err != nil {
		return err
	}
	for _, args := range [][]string{
		// The machine of an earlier run has gone with its disk; its context may be replaced.
		{"raise", addr, "--mesh", d.mesh, "--key", key, "--replace"},
		{"status"},
		{"call", "controller", "status"},
	} {
		if err := d.step(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

// claim is the operator's claim key, made where there is none yet.
func (d *demo) claim(ctx context.Context) (string, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "kingpost", "claim.key")
	if _, err := os.Stat(file); err == nil {
		return file, nil
	}
	return file, d.step(ctx, "claim", "new")
}

// step runs one command of the operator's program.
func (d *demo) step(ctx context.Context, args ...string) error {
	fmt.Printf("\n$ %s %s\n", d.kingpost, strings.Join(args, " "))
	cmd := exec.CommandContext(ctx, d.kingpost, args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	// A session of its own: Ctrl-C is for us. What the program would say of it (the raise goes on, and can be followed
	// again) is not so here, where the node goes too; so it is killed. And it goes where we are killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // see machine.run
	defer runtime.UnlockOSThread()
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s: %w", d.kingpost, args[0], err)
	}
	return nil
}

// machine is `kingpost vm` at work.
type machine struct {
	cmd   *exec.Cmd
	said  chan string   // lines of its standard error
	ended chan struct{} // closed when it has ended
	err   error
}

func (d *demo) startVM(ctx context.Context, claim, console string) (*machine, error) {
	args := []string{"vm", d.image, "--claim", claim, "--serial", console}
	fmt.Printf("$ %s %s\n", d.kingpost, strings.Join(args, " "))
	m := &machine{cmd: exec.Command(d.kingpost, args...), said: make(chan string, 100), ended: make(chan struct{})}
	// Its own group: Ctrl-C is for us, who then end it. Where we are killed, it ends the machine in order by itself.
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	stderr, err := m.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	started := make(chan error)
	go m.run(stderr, started)
	return m, <-started
}

// run starts the program and waits for it, on one thread: the kernel sends Pdeathsig when the thread that started a
// process ends, so that thread must not end before the process does.
func (m *machine) run(stderr io.Reader, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := m.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	defer close(m.ended)
	m.listen(stderr)
	m.err = m.cmd.Wait()
}

func (m *machine) listen(r io.Reader) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		fmt.Println(lines.Text())
		select {
		case m.said <- lines.Text():
		default:
		}
	}
}

// wait waits until the machine has said something that matches, and returns the first group.
func (m *machine) wait(ctx context.Context, re *regexp.Regexp) (string, error) {
	for {
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-m.ended:
			return "", fmt.Errorf("the machine ended before it said %q: %v", re, m.err)
		case line := <-m.said:
			if match := re.FindStringSubmatch(line); match != nil {
				return match[1], nil
			}
		}
	}
}

// stop powers the machine off, or cuts it where it does not or where Ctrl-C asks for that.
func (m *machine) stop() error {
	select {
	case <-m.ended:
		return m.err
	default:
	}
	again := make(chan os.Signal, 1)
	signal.Notify(again, os.Interrupt)
	defer signal.Stop(again)
	m.cmd.Process.Signal(os.Interrupt)
	late := time.After(90 * time.Second)
	for {
		select {
		case <-m.ended:
			return m.err
		case <-again: // cuts its power
			m.cmd.Process.Signal(os.Interrupt)
		case <-late:
			m.cmd.Process.Kill()
			<-m.ended
			return fmt.Errorf("the machine did not end within 90 seconds and was killed")
		}
	}
}
