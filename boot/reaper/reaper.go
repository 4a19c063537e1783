// Package reaper reaps every child of PID 1: its own ones for whoever started them, and orphans, of which it first
// writes down how they ended.
//
// It never takes the status of a child that somebody waits for: children are looked at with WNOWAIT (waitid(2)) and
// taken by pid. Whoever starts a process in PID 1 does so through Reaper.Start and never waits by other means.
// Start with New, then Reaper.Run.
package reaper

import (
	"context"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

// Reaper is the one who waits in this process.
type Reaper struct {
	// Beat is called at least every sweep as long as children are reaped; set before Run. May be nil.
	Beat func()

	records *records
	log     logrus.FieldLogger

	// mu is held from before a child is made until it is known, so that one that ends at once is not taken for an orphan.
	mu  sync.Mutex
	own map[int]*Child
}

// Child is a process that was started with Start.
type Child struct {
	PID int

	done   chan struct{}
	status unix.WaitStatus
}

// New returns a Reaper that keeps at most max exit records in the folder dir, which it makes. When the folder cannot be
// made it returns an error and a Reaper all the same: PID 1 has to reap in any case.
func New(dir string, max int, log logrus.FieldLogger) (*Reaper, error) {
	r := &records{dir: dir, max: max}
	return &Reaper{records: r, log: log, own: map[int]*Child{}}, r.prepare()
}

// Start starts a program. Its status is Child.Wait's and nobody else's.
func (r *Reaper) Start(path string, argv []string, attr *syscall.ProcAttr) (*Child, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err := syscall.ForkExec(path, argv, attr)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	c := &Child{PID: pid, done: make(chan struct{})}
	r.own[pid] = c
	return c, nil
}

// Signal sends a signal to c unless it has ended already; its pid cannot be another's, since it is not reaped meanwhile.
func (r *Reaper) Signal(c *Child, sig syscall.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.own[c.PID] == c {
		_ = unix.Kill(c.PID, sig)
	}
}

// Done is closed when c has ended.
func (c *Child) Done() <-chan struct{} { return c.done }

// Wait returns how c ended, or ctx's error.
func (c *Child) Wait(ctx context.Context) (unix.WaitStatus, error) {
	select {
	case <-c.done:
		return c.status, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// Status is how c ended; only after Done is closed.
func (c *Child) Status() unix.WaitStatus { return c.status }

// sweep is how often is looked for children without being told: signals of one kind are merged, and a lost one must
// not leave a zombie for good.
const sweep = 10 * time.Second

// Run reaps until ctx ends; sigchld delivers SIGCHLD.
func (r *Reaper) Run(ctx context.Context, sigchld <-chan os.Signal) {
	t := time.NewTicker(sweep)
	defer t.Stop()
	for {
		r.ReapAll()
		if r.Beat != nil {
			r.Beat()
		}
		select {
		case <-ctx.Done():
			return
		case <-sigchld:
		case <-t.C:
		}
	}
}

// ReapAll reaps every child that has ended by now, and returns how many.
func (r *Reaper) ReapAll() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for {
		pid, err := peek()
		if err != nil || pid == 0 {
			if err != nil && err != unix.ECHILD {
				r.log.WithError(err).Error("look for ended children")
			}
			return n
		}
		c := r.own[pid]
		var rec record
		if c == nil {
			// What /proc knows of a zombie goes with it, so it is read and on the disk before.
			rec = describe(pid)
		}
		var ws unix.WaitStatus
		if c == nil {
			if ws, err = r.status(pid); err != nil {
				r.log.WithError(err).WithField("pid", pid).Error("look at an orphan's status")
			} else if err := r.records.write(rec.with(ws)); err != nil {
				r.log.WithError(err).WithField("pid", pid).Error("write an exit record")
			}
		}
		if err := take(pid, &ws); err != nil {
			r.log.WithError(err).WithField("pid", pid).Error("reap a child")
			return n
		}
		n++
		if c != nil {
			delete(r.own, pid)
			c.status = ws
			close(c.done)
		}
	}
}

// siginfo is the head of siginfo_t as waitid(2) fills it; the union is aligned to 8 bytes on 64-bit machines.
type siginfo struct {
	signo, errno, code int32
	_                  int32
	pid                int32
	uid                uint32
	status             int32
}

// peek returns the pid of a child that has ended and leaves it as it is; 0 where there is none.
func peek() (int, error) {
	si, err := waitid(unix.P_ALL, 0)
	return int(si.pid), err
}

func waitid(kind, id int) (siginfo, error) {
	var raw unix.Siginfo
	for {
		err := unix.Waitid(kind, id, &raw, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT|unix.WALL, nil)
		if err == unix.EINTR {
			continue
		}
		return *(*siginfo)(unsafe.Pointer(&raw)), err
	}
}

// Codes of a siginfo of SIGCHLD (siginfo.h).
const (
	cldExited = 1
	cldKilled = 2
	cldDumped = 3
)

// status peeks at how pid ended.
func (r *Reaper) status(pid int) (unix.WaitStatus, error) {
	si, err := waitid(unix.P_PID, pid)
	if err != nil {
		return 0, err
	}
	switch {
	case int(si.pid) != pid:
		return 0, fmt.Errorf("it has not ended")
	case si.code == cldExited:
		return unix.WaitStatus(si.status << 8), nil
	case si.code == cldDumped:
		return unix.WaitStatus(si.status | 0x80), nil
	default:
		return unix.WaitStatus(si.status), nil
	}
}

func take(pid int, ws *unix.WaitStatus) error {
	for {
		_, err := unix.Wait4(pid, ws, unix.WNOHANG|unix.WALL, nil)
		if err != unix.EINTR {
			return err
		}
	}
}
