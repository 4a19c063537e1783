package qemu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// VM is a machine that was started. It runs until its guest powers off or one of Quit and Kill ends it.
type VM struct {
	Config
	Serial *Serial
	QMP    *QMP
	// Started is when QEMU was started: power-on.
	Started time.Time

	cmd    *exec.Cmd
	stderr *bytes.Buffer
	done   chan struct{} // closed when QEMU has ended and err is set
	err    error
	once   sync.Once
}

// SerialFile is the file below Config.Dir that holds the console's text.
const SerialFile = "serial.log"

// Start starts a machine. console, where it is not nil, gets the console's bytes as they come. QEMU dies with this
// process, however that ends. When ctx ends while the machine starts, it is killed; afterwards ctx has no effect.
func Start(ctx context.Context, c Config, console io.Writer) (*VM, error) {
	var vars string
	if c.Firmware != nil {
		vars = filepath.Join(c.Dir, "vars.fd")
		if !exists(vars) { // kept from power-on to power-on, as a machine's are
			b, err := os.ReadFile(c.Firmware.Vars)
			if err != nil {
				return nil, fmt.Errorf("machine %s: read firmware variables: %w", c.Name, err)
			}
			if err := os.WriteFile(vars, b, 0o644); err != nil {
				return nil, fmt.Errorf("machine %s: copy firmware variables: %w", c.Name, err)
			}
		}
	}
	for _, d := range c.Disks {
		if d.Log == "" {
			continue
		}
		if err := os.WriteFile(d.Log, nil, 0o644); err != nil {
			return nil, fmt.Errorf("machine %s: make the write log: %w", c.Name, err)
		}
	}
	program, args, err := c.args(vars)
	if err != nil {
		return nil, err
	}
	if _, err := exec.LookPath(program); err != nil {
		return nil, fmt.Errorf("machine %s: %w; install the Debian package %s", c.Name, err, map[string]string{"amd64": "qemu-system-x86", "arm64": "qemu-system-arm"}[c.arch()])
	}
	serial, err := newSerial(filepath.Join(c.Dir, SerialFile), console)
	if err != nil {
		return nil, fmt.Errorf("machine %s: %w", c.Name, err)
	}
	vm := &VM{Config: c, Serial: serial, stderr: &bytes.Buffer{}, done: make(chan struct{})}
	vm.cmd = exec.Command(program, args...)
	vm.cmd.Stdout = serial
	vm.cmd.Stderr = &limitedWriter{w: vm.stderr, left: 64 << 10}
	// Its own process group: Ctrl-C on a terminal is for us, who end the guest in order.
	vm.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	os.Remove(c.qmpSocket())
	started := make(chan error)
	go vm.run(started)
	if err := <-started; err != nil {
		serial.end()
		return nil, fmt.Errorf("machine %s: start %s: %w", c.Name, program, err)
	}
	dial, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-vm.done:
			cancel(vm.failure())
		case <-dial.Done():
		}
	}()
	if vm.QMP, err = dialQMP(dial, c.qmpSocket()); err != nil {
		vm.Kill()
		if vm.stderr.Len() > 0 { // QEMU's own complaint says more
			err = vm.failure()
		}
		return nil, fmt.Errorf("machine %s: %w", c.Name, err)
	}
	return vm, nil
}

// run starts QEMU and waits for it, on one thread: the kernel sends Pdeathsig when the thread that started a process
// ends, so that thread must not end before QEMU does.
func (vm *VM) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	vm.Started = time.Now()
	err := vm.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	vm.err = vm.cmd.Wait()
	vm.Serial.end()
	close(vm.done)
}

// failure is why QEMU ended by itself.
func (vm *VM) failure() error {
	if err := portTaken(vm.stderr.String()); err != nil {
		return err
	}
	if vm.stderr.Len() > 0 {
		return fmt.Errorf("QEMU ended: %s", bytes.TrimSpace(vm.stderr.Bytes()))
	}
	if vm.err != nil {
		return fmt.Errorf("QEMU ended: %w", vm.err)
	}
	return errClosed
}

// PortTakenError says that a port of this machine cannot be forwarded: somebody listens on it, or this user may not.
type PortTakenError struct{ Forward }

func (e *PortTakenError) Error() string {
	return fmt.Sprintf("port %d of this machine, which is to lead to the guest's port %d, is in use, or this user may not listen on it", e.Host, e.Guest)
}

var forwardRefused = regexp.MustCompile(`Could not set up host forwarding rule 'tcp:127\.0\.0\.1:(\d+)-:(\d+)'`)

// portTaken finds in QEMU's complaint that it could not have a port.
func portTaken(complaint string) error {
	m := forwardRefused.FindStringSubmatch(complaint)
	if m == nil {
		return nil
	}
	w, err := ParseForward(m[1] + ":" + m[2])
	if err != nil {
		return nil
	}
	return &PortTakenError{w}
}

// PID is QEMU's process id.
func (vm *VM) PID() int { return vm.cmd.Process.Pid }

// Done is closed when the machine has ended.
func (vm *VM) Done() <-chan struct{} { return vm.done }

// Wait waits until the machine has ended. A guest's own power-off is no error.
func (vm *VM) Wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return fmt.Errorf("wait for machine %s to end: %w", vm.Name, context.Cause(ctx))
	case <-vm.done:
	}
	vm.close()
	if vm.err != nil {
		return fmt.Errorf("machine %s: %w", vm.Name, vm.failure())
	}
	return nil
}

// PowerButton presses the power button. Whether the guest minds is its own affair.
func (vm *VM) PowerButton(ctx context.Context) error {
	return vm.QMP.Run(ctx, "system_powerdown", nil, nil)
}

// Reset presses the reset button.
func (vm *VM) Reset(ctx context.Context) error { return vm.QMP.Run(ctx, "system_reset", nil, nil) }

// Quit ends QEMU, which writes out what it holds for its disks. The guest notices nothing: it is a power cut, but one
// that loses no write which the guest has made. After 10 seconds QEMU is killed.
func (vm *VM) Quit(ctx context.Context) error {
	if vm.QMP != nil {
		q, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		if err := vm.QMP.Run(q, "quit", nil, nil); err == nil || errors.Is(err, errClosed) {
			select {
			case <-vm.done:
			case <-q.Done():
			}
		}
	}
	vm.Kill()
	return nil
}

// Kill kills QEMU at once and returns when it is gone. It may be called often and at any time.
func (vm *VM) Kill() {
	vm.cmd.Process.Kill()
	<-vm.done
	vm.close()
}

func (vm *VM) close() {
	vm.once.Do(func() {
		if vm.QMP != nil {
			vm.QMP.Close()
		}
		os.Remove(vm.qmpSocket())
	})
}

// Port is the port of this machine's loopback address that leads to a TCP port of the guest, one of those that do.
func (vm *VM) Port(ctx context.Context, guest int) (int, error) {
	out, err := vm.QMP.Monitor(ctx, "info usernet")
	if err != nil {
		return 0, fmt.Errorf("machine %s: %w", vm.Name, err)
	}
	if p := usernetPort(out, guest); p != 0 {
		return p, nil
	}
	return 0, fmt.Errorf("machine %s forwards nothing to the guest's port %d", vm.Name, guest)
}

// A line is "  TCP[HOST_FORWARD]  12       127.0.0.1 40123       10.0.2.15  7443     0     0".
var usernetLine = regexp.MustCompile(`TCP\[HOST_FORWARD\]\s+\S+\s+\S+\s+(\d+)\s+\S+\s+(\d+)`)

func usernetPort(info string, guest int) int {
	for _, m := range usernetLine.FindAllStringSubmatch(info, -1) {
		if m[2] == strconv.Itoa(guest) {
			p, _ := strconv.Atoi(m[1])
			return p
		}
	}
	return 0
}

// Memory is what QEMU's process holds in memory, in bytes.
func (vm *VM) Memory() (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", vm.PID()))
	if err != nil {
		return 0, err
	}
	f := bytes.Fields(b)
	if len(f) < 2 {
		return 0, fmt.Errorf("unexpected /proc/%d/statm: %q", vm.PID(), b)
	}
	pages, err := strconv.ParseInt(string(f[1]), 10, 64)
	return pages * int64(os.Getpagesize()), err
}

// limitedWriter drops what is more than left bytes, silently: QEMU must never block on what it complains about.
type limitedWriter struct {
	w    io.Writer
	left int
}

func (l *limitedWriter) Write(p []byte) (int, error) {
	n := min(len(p), l.left)
	l.left -= n
	if _, err := l.w.Write(p[:n]); err != nil {
		return 0, err
	}
	return len(p), nil
}
