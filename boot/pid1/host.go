package pid1

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"kingpost/boot/bootdisk"
	"kingpost/boot/console"
	"kingpost/boot/launcher"
	"kingpost/boot/reaper"
	"kingpost/internal/mesh"
)

// notifySocket is where the host reports to the launcher.
const notifySocket = mesh.PathRun + "/notify.sock"

// EnvHostDigest tells the host which one it is: "baked-in" or its bundle's digest.
const EnvHostDigest = "KINGPOST_HOST_DIGEST"

// EnvHostFailures tells the host how often in a row it has failed before.
const EnvHostFailures = "KINGPOST_HOST_FAILURES"

// hostScore keeps the kernel from killing the host when memory runs out, while there is anything else to kill. Who is
// started by it must set its own.
const hostScore = "-950"

// hostLogSize bounds the file of what the host prints, in bytes.
const hostLogSize = 1 << 20

// hostStop is how long a host may take to end when it is asked to.
const hostStop = 10 * time.Second

// hostRunner starts hosts and listens to them.
type hostRunner struct {
	p      *pid1
	out    *os.File // the hosts' standard output and error
	file   *boundedFile
	notify *launcher.Notify
	// firstReady is closed when a host is ready for the first time in this boot.
	firstReady chan struct{}
	once       sync.Once

	mu      sync.Mutex
	current *instance
	ready   bool
	words   lastWords
	letGo   func()
	asked   chan launcher.Message // what the host asks of the launcher
	limits  launcher.Limits
}

func newHostRunner(p *pid1) *hostRunner {
	h := &hostRunner{
		p: p, letGo: func() {}, firstReady: make(chan struct{}), asked: make(chan launcher.Message, maxAsked),
		file: &boundedFile{path: stateDir + "/host.log", max: hostLogSize},
	}
	r, w, err := os.Pipe()
	if err != nil {
		p.log.WithError(err).Error("make the host's log pipe")
	} else {
		h.out = w
		go h.pump(r)
	}
	if h.notify, err = launcher.ListenNotify(notifySocket); err != nil {
		p.log.WithError(err).Error("listen for the host")
	} else {
		go h.listen()
	}
	return h
}

// instance is a started host.
type instance struct {
	h        *hostRunner
	child    *reaper.Child
	ready    chan struct{}
	fed      chan struct{} // of size 1
	once     sync.Once
	stopping bool // it said so; under hostRunner.mu
}

func (in *instance) Ready() <-chan struct{} { return in.ready }
func (in *instance) Fed() <-chan struct{}   { return in.fed }
func (in *instance) Done() <-chan struct{}  { return in.child.Done() }

func (in *instance) Orderly() bool {
	in.h.mu.Lock()
	defer in.h.mu.Unlock()
	ws := in.child.Status()
	return in.stopping && ws.Exited() && ws.ExitStatus() == 0
}

func (in *instance) Kill() {
	in.h.p.reaper.Signal(in.child, unix.SIGTERM)
	go func() {
		select {
		case <-in.child.Done():
		case <-time.After(hostStop):
			in.h.p.reaper.Signal(in.child, unix.SIGKILL)
		}
	}()
}

func (in *instance) Reason() string {
	ws := in.child.Status()
	var s string
	if ws.Signaled() {
		s = "killed by " + unix.SignalName(ws.Signal())
	} else {
		s = "exit status " + strconv.Itoa(ws.ExitStatus())
	}
	// Its last words may still be in the pipe.
	time.Sleep(50 * time.Millisecond)
	in.h.mu.Lock()
	defer in.h.mu.Unlock()
	if w := in.h.words.String(); w != "" {
		s += ": " + w
	}
	return s
}

// start starts a host, which has failed so often in a row before; the launcher decides which.
func (h *hostRunner) start(host launcher.Host, failed int) (launcher.Instance, error) {
	null, err := os.OpenFile("/dev/null", os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	out := null.Fd()
	if h.out != nil {
		out = h.out.Fd()
	}
	attr := &syscall.ProcAttr{
		Dir: "/",
		Env: []string{
			"PATH=/usr/sbin:/usr/bin",
			"NOTIFY_SOCKET=" + notifySocket,
			EnvHostDigest + "=" + host.Digest,
			EnvHostFailures + "=" + strconv.Itoa(failed),
			// sd_watchdog_enabled(3): within so long it must say that it is alive.
			"WATCHDOG_USEC=" + strconv.FormatInt(h.limits.WatchdogWithin.Microseconds(), 10),
		},
		Files: []uintptr{null.Fd(), out, out},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	}
	if cg, err := os.Open(hostCgroup); err == nil {
		defer cg.Close()
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, int(cg.Fd())
	}
	h.mu.Lock()
	h.words = lastWords{}
	h.mu.Unlock()
	child, err := h.p.reaper.Start(host.Path, []string{host.Path}, attr)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", child.PID), []byte(hostScore), 0o644); err != nil {
		h.p.log.WithError(err).Warn("protect the host from running out of memory")
	}
	in := &instance{h: h, child: child, ready: make(chan struct{}), fed: make(chan struct{}, 1)}
	h.mu.Lock()
	h.current = in
	h.mu.Unlock()
	return in, nil
}

// verify checks a program on the data partition before it is started as root.
func verify(h launcher.Host) error {
	f, err := os.Open(h.Path)
	if err != nil {
		return fmt.Errorf("%w: %w", launcher.ErrDamaged, err)
	}
	defer f.Close()
	s := sha256.New()
	if _, err := io.Copy(s, f); err != nil {
		return fmt.Errorf("%w: read %s: %w", launcher.ErrDamaged, h.Path, err)
	}
	if got := hex.EncodeToString(s.Sum(nil)); got != h.SHA256 {
		return fmt.Errorf("%w: %s has SHA-256 %.16s..., not %.16s... as it was delivered", launcher.ErrDamaged, h.Path, got, h.SHA256)
	}
	return nil
}

// listen hears what the running host says. Whoever else has the socket is not heard.
func (h *hostRunner) listen() {
	for {
		m, pid, err := h.notify.Next()
		h.mu.Lock()
		in := h.current
		mine := in != nil && in.child.PID == pid
		h.mu.Unlock()
		if err != nil {
			h.p.log.WithError(err).Warn("a message of the host")
			if pid == 0 {
				time.Sleep(time.Second) // the socket itself is broken
			}
			continue
		}
		if !mine {
			continue
		}
		if m.Stopping {
			h.mu.Lock()
			in.stopping = true
			h.mu.Unlock()
		}
		if m.Ready {
			in.once.Do(func() { close(in.ready) })
		}
		if m.Watchdog {
			select {
			case in.fed <- struct{}{}:
			default: // the launcher has not taken the last one yet, which says the same
			}
		}
		if m.Successor != nil || m.Clear != "" {
			select {
			case h.asked <- m:
			default:
				h.p.log.Warn("the host asks for more than the launcher can take; it will ask again")
			}
		}
	}
}

// maxAsked bounds what the host has asked for and the launcher has not taken yet.
const maxAsked = 4

// pass brings what the host asks for to l, one after the other, until ctx ends.
func (h *hostRunner) pass(ctx context.Context, l *launcher.Launcher) {
	for {
		var m launcher.Message
		select {
		case <-ctx.Done():
			return
		case m = <-h.asked:
		}
		if m.Clear != "" {
			if err := l.Clear(ctx, m.Clear); err != nil && ctx.Err() == nil {
				h.p.log.WithError(err).Warn("a host is not cleared")
			}
		}
		if m.Successor != nil {
			if err := l.Offer(ctx, *m.Successor); err != nil && ctx.Err() == nil {
				h.p.log.WithError(err).Warn("a successor of the host is refused")
			}
		}
	}
}

func (h *hostRunner) isReady() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ready
}

func (h *hostRunner) onReady(launcher.Host) {
	h.mu.Lock()
	h.ready = true
	letGo := h.letGo
	h.letGo = func() {}
	h.mu.Unlock()
	letGo()
	h.once.Do(func() {
		close(h.firstReady)
		h.p.booted()
	})
	h.p.look()
}

func (h *hostRunner) onGone(launcher.Host) {
	n, letGo := launcher.HoldFIFOs(mesh.PathRun + "/log")
	h.mu.Lock()
	h.ready = false
	h.current = nil
	old := h.letGo
	h.letGo = letGo
	h.mu.Unlock()
	// The ones of the last time only now: what one of them alone still held open would be lost.
	old()
	h.p.log.WithField("held", n).Info("no host: log pipes are held open")
}

// end ends the host for good.
func (h *hostRunner) end() {
	h.mu.Lock()
	in := h.current
	h.mu.Unlock()
	if in == nil {
		return
	}
	h.p.reaper.Signal(in.child, unix.SIGTERM)
	select {
	case <-in.child.Done():
		return
	case <-time.After(hostStop):
	}
	h.p.console.Line("warning the host does not end; it is killed")
	h.p.reaper.Signal(in.child, unix.SIGKILL)
	select {
	case <-in.child.Done():
	case <-time.After(time.Second):
	}
}

// pump keeps what hosts print in a bounded file.
func (h *hostRunner) pump(r *os.File) {
	buf := make([]byte, 16<<10)
	var line []byte
	for {
		n, err := r.Read(buf)
		if err != nil {
			return
		}
		_, _ = h.file.Write(buf[:n])
		line = append(line, buf[:n]...)
		for {
			i := bytes.IndexByte(line, '\n')
			if i < 0 {
				break
			}
			text := string(line[:i])
			line = line[i+1:]
			h.mu.Lock()
			h.words.add(text)
			h.mu.Unlock()
			if h.p.debug {
				h.p.console.Line("host: %s", text)
			}
		}
		if len(line) > len(buf) {
			line = nil
		}
		if len(line) == 0 {
			line = nil
		}
	}
}

// lastWords is what a host printed that best says why it ended.
type lastWords struct{ crash, last string }

func (w *lastWords) add(line string) {
	line = strings.TrimSpace(line)
	if line == "" {
		return
	}
	if len(line) > 300 {
		line = line[:300]
	}
	// The first line of a Go crash says what it was; the traces that follow do not.
	if w.crash == "" && (strings.HasPrefix(line, "panic:") || strings.HasPrefix(line, "fatal error:") || strings.Contains(line, "level=fatal")) {
		w.crash = line
	}
	w.last = line
}

func (w lastWords) String() string {
	if w.crash != "" {
		return w.crash
	}
	return w.last
}

// onHalt is told when no host is left to start.
func (p *pid1) onHalt(reason string) {
	if !bootdisk.CountedTry(os.DirFS("/sys/firmware/efi/efivars")) {
		return
	}
	// This is a first try of a release: rebooting uses up a try, so that the loader falls back to the last good one.
	p.console.Line("error this release's host does not run: reboot, so that the last good release is started")
	go func() {
		time.Sleep(5 * time.Second)
		_ = unix.Kill(os.Getpid(), unix.SIGTERM)
	}()
}

// askHost asks the host to stop the node in order; it then tells PID 1 by signal.
func (p *pid1) askHost(action string) {
	if err := console.Post(mesh.PathHostSocket, "/v1/power", `{"action":"`+action+`"}`, askPatience); err != nil {
		p.log.WithError(err).Warn("ask the host to stop its workloads")
	}
}

func jitter() func() float64 { return rand.Float64 }
