package supervise

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"kingpost/internal/host/privnet"
	"kingpost/internal/host/stub"
)

// Containers are run by an OCI runtime, runc, in two steps: create, which makes everything and waits, and
// start. In between the run record is written and a private network is made, so that a host that dies at any
// moment leaves either a container that the next one adopts or one that has not begun.

// runtimeLimit bounds one call of the runtime.
const runtimeLimit = 60 * time.Second

func (s *Supervisor) runc(ctx context.Context, stdio *os.File, args ...string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), runtimeLimit)
	defer cancel()
	// Each container has its own: several start at once, and each is told its own reason.
	logFile := filepath.Join(s.cfg.Run, "runc."+args[len(args)-1]+".log")
	defer os.Remove(logFile)
	cmd := exec.CommandContext(ctx, s.cfg.Runc, append([]string{"--root", filepath.Join(s.cfg.Run, "runc"), "--log", logFile}, args...)...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Stdout, cmd.Stderr = stdio, stdio
	err := cmd.Run()
	if err == nil {
		return nil
	}
	if b, lerr := os.ReadFile(logFile); lerr == nil {
		if lines := strings.TrimSpace(string(b)); lines != "" {
			err = fmt.Errorf("%w: %s", err, lastMessage(lines))
		}
	}
	return fmt.Errorf("%s %s: %w", filepath.Base(s.cfg.Runc), args[0], err)
}

// lastMessage is the msg="..." of the last line of a runtime's log.
func lastMessage(lines string) string {
	line := lines[strings.LastIndexByte(lines, '\n')+1:]
	if _, m, ok := strings.Cut(line, "msg="); ok {
		if u, err := strconv.Unquote(m); err == nil {
			return u
		}
		line = m
	}
	if len(line) > 500 {
		line = line[:500] + "..."
	}
	return line
}

func (s *Supervisor) startContainer(ctx context.Context, l *launch) (p *proc, err error) {
	name := l.sp.name()
	_ = s.cleanContainer(ctx, name)
	defer func() {
		if err != nil {
			_ = s.cgroups.kill(name, 5*time.Second)
			s.disconnect(name)
			_ = s.cleanContainer(ctx, name)
		}
	}()
	rootfs := filepath.Join(l.dir.bundle(), "rootfs")
	if err := os.MkdirAll(rootfs, 0o755); err != nil {
		return nil, err
	}
	if err := s.mountImage(name, l.st.Layers, rootfs); err != nil {
		return nil, err
	}
	if err := l.containerEtc(); err != nil {
		return nil, err
	}
	oci, err := l.ociSpec(rootfs)
	if err != nil {
		return nil, err
	}
	config := filepath.Join(l.dir.bundle(), "config.json")
	if err := writeJSON(config, oci); err != nil {
		return nil, err
	}
	// It holds the environment, and the runtime has read it when it returns.
	defer os.Remove(config)
	// Read and write, as a process has it: as package stub makes it.
	log, err := os.OpenFile(s.fifoPath(name), os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open the log pipe: %w", err)
	}
	defer log.Close()
	if err := log.Chown(l.uid, l.uid); err != nil {
		return nil, err
	}
	// The workload must not inherit non-blocking output; Fd() makes it blocking.
	log.Fd()
	pidFile := filepath.Join(l.dir.bundle(), "pid")
	if err := s.runc(ctx, log, "create", "--bundle", l.dir.bundle(), "--pid-file", pidFile, name); err != nil {
		return nil, err
	}
	b, err := os.ReadFile(pidFile)
	if err != nil {
		return nil, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", pidFile, err)
	}
	r := l.record()
	r.PID = pid
	if r.Start, err = stub.StartTime(pid); err != nil {
		return nil, fmt.Errorf("the container ended before it began: %w", err)
	}
	s.exits.watch(procID{r.PID, r.Start})
	if p, err = openProc(r.PID, r.Start); err != nil {
		return nil, fmt.Errorf("take hold of process %d: %w", pid, err)
	}
	if l.sp.private() {
		s.modules(ctx, privnet.KernelModules...)
		if r.Address, err = s.network.Attach(endpoint(&r), pid); err != nil {
			p.close()
			return nil, err
		}
	}
	if err := r.write(l.dir.record()); err != nil {
		p.close()
		return nil, err
	}
	if err := s.release(ctx, log, name, p); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// release lets a created container begin. Its first process waits at a FIFO of the runtime's until somebody reads what it
// writes there, and begins then: that reading, and the removal of the FIFO by which the runtime tells a created container
// from a running one, is all that `runc start` does (runc 1.0 to 1.3, libcontainer's Container.Exec). To do it here saves
// one start of the runtime, a third of the time of the whole. Where there is no such FIFO the runtime is asked.
func (s *Supervisor) release(ctx context.Context, log *os.File, name string, p *proc) error {
	path := filepath.Join(s.cfg.Run, "runc", name, "exec.fifo")
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return s.runc(ctx, log, "start", name)
	}
	defer f.Close()
	b := make([]byte, 1)
	end := time.Now().Add(runtimeLimit)
	if err := f.SetReadDeadline(end); err != nil {
		return fmt.Errorf("let the container %s begin: %w", name, err)
	}
	for {
		// Without a writer the end of the file is read: it has not opened its side yet, or it has died.
		if n, err := f.Read(b); n == 1 {
			return os.Remove(path)
		} else if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("let the container %s begin: %w", name, err)
		}
		if !p.alive() {
			return fmt.Errorf("the container %s ended before it began", name)
		}
		if time.Now().After(end) {
			return fmt.Errorf("the container %s does not begin", name)
		}
		time.Sleep(time.Millisecond)
	}
}

// modules loads kernel modules. Without one the kernel says itself what it cannot do.
func (s *Supervisor) modules(ctx context.Context, names ...string) {
	if s.cfg.Modules == nil {
		return
	}
	if err := s.cfg.Modules(ctx, names...); err != nil {
		s.warn("%v", err)
	}
}

// disconnect takes a container's name, addresses and ports away.
func (s *Supervisor) disconnect(name string) {
	if err := s.network.Detach(name); err != nil {
		s.warn("%v", err)
	}
}

// cleanContainer removes what the runtime and the overlay have left of a container that has ended, or never began.
func (s *Supervisor) cleanContainer(ctx context.Context, name string) error {
	var errs []error
	if exists(filepath.Join(s.cfg.Run, "runc", name)) {
		if err := s.runc(ctx, nil, "delete", "--force", name); err != nil {
			errs = append(errs, err)
			// A state that the runtime cannot read would block every later start.
			errs = append(errs, os.RemoveAll(filepath.Join(s.cfg.Run, "runc", name)))
		}
	}
	rootfs := filepath.Join(s.rundir(name).bundle(), "rootfs")
	for exists(rootfs) {
		if err := unix.Unmount(rootfs, unix.MNT_DETACH); err != nil {
			break
		}
	}
	errs = append(errs, os.RemoveAll(s.upperDir(name)))
	return errors.Join(errs...)
}

func (s *Supervisor) upperDir(name string) string { return filepath.Join(s.cfg.State, "upper", name) }

// mountImage puts a writable layer over an image's files. It lies on the data partition, so that it costs
// no memory, and is new at each start: what is to be kept belongs into a volume.
func (s *Supervisor) mountImage(name string, layers []string, at string) error {
	dir := s.upperDir(name)
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("clear the writable layer: %w", err)
	}
	upper, work := filepath.Join(dir, "upper"), filepath.Join(dir, "work")
	for _, d := range []string{upper, work} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	return overlay(name, layers, upper, work, at)
}

// containerEtc writes the instance's hosts, hostname and resolver files.
func (l *launch) containerEtc() error {
	s := l.s
	host := l.sp.Node
	if l.sp.private() {
		host = l.sp.ID + "-" + l.sp.Module
	}
	if len(host) > 63 {
		host = strings.TrimRight(host[:63], "-")
	}
	texts := map[string]string{
		"hosts":    "127.0.0.1 localhost\n::1 localhost ip6-localhost\n127.0.1.1 " + host + "\n",
		"hostname": host + "\n",
	}
	if l.sp.private() {
		texts["hosts"] += privnet.Gateway().String() + " host." + privnet.Suffix + "\n" + privnet.Gateway6().String() + " host." + privnet.Suffix + "\n"
		texts["resolv.conf"] = s.network.ResolvConf()
	} else if b, err := os.ReadFile(s.cfg.ResolvConf); err == nil {
		texts["resolv.conf"] = string(b)
	} else {
		texts["resolv.conf"] = ""
	}
	for name, t := range texts {
		path := filepath.Join(l.dir.bundle(), name)
		if err := os.WriteFile(path, []byte(t), 0o644); err != nil {
			return err
		}
		if !l.covers("/etc/" + name) {
			l.binds = append(l.binds, stub.Bind{From: path, To: "/etc/" + name, ReadOnly: true})
		}
	}
	return nil
}

// covers reports whether the resource has something of its own at path.
func (l *launch) covers(path string) bool {
	for _, b := range l.binds {
		if b.To == path || strings.HasPrefix(path, b.To+"/") {
			return true
		}
	}
	return false
}
