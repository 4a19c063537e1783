package supervise

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"kingpost/internal/host/stub"
	"kingpost/internal/mesh"
)

// stubLimit bounds the time between the start of a stub and the run record that it writes.
const stubLimit = 30 * time.Second

// startProcess starts a bundle's program. The stub is cloned as a child of our parent, PID 1 (CLONE_PARENT,
// clone(2)), so that it is nobody's orphan but PID 1's from its first moment, with one program start
// instead of the three that a double fork through a helper takes.
func (s *Supervisor) startProcess(ctx context.Context, l *launch) (p *proc, err error) {
	sp := l.sp
	program := "bin/" + sp.Bundle
	if sp.Command != "" {
		program = sp.Command
	}
	program = "/app/" + program
	es := stub.Spec{
		Name:   sp.name(),
		Cgroup: s.cgroups.path(sp.name()),
		Lock:   s.lockPath(sp.name()),
		Record: l.dir.record(),
		Failed: l.dir.failed(),
		Log:    s.fifoPath(sp.name()),
		Path:   program,
		Args:   append([]string{path.Base(program)}, sp.Args...),
		Env: environment([]string{
			"PATH=/app/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME=/tmp", "TMPDIR=/tmp", "USER=" + accountName(sp.account()),
		}, l.env...),
		Dir:          "/",
		UID:          l.uid,
		Capabilities: l.capabilities(),
		OOMScore:     oomScore(sp.Critical),
		View:         stub.View{Root: l.dir.root(), App: l.st.Files, Account: accountName(sp.account()), Binds: l.binds},
	}
	if es.Run, err = json.Marshal(l.record()); err != nil {
		return nil, fmt.Errorf("make the run record: %w", err)
	}
	if err := writeJSON(l.dir.execSpec(), &es); err != nil {
		return nil, err
	}
	defer os.Remove(l.dir.execSpec()) // it holds the environment
	if err := s.spawn(l.dir.execSpec()); err != nil {
		return nil, err
	}
	return s.awaitStub(ctx, l)
}

// stubCommand is the small stub that a release has beside its host. A host that came as a bundle is alone and is its own:
// the two speak no language that would outlive a build.
func stubCommand() []string {
	if self, err := os.Executable(); err == nil {
		if p := filepath.Join(filepath.Dir(self), filepath.Base(mesh.PathStub)); exists(p) {
			return []string{p}
		}
	}
	return []string{"/proc/self/exe", "exec"}
}

// stubEnv is the stub's own environment: one thread is enough, and a collection of its few kilobytes never worth it.
func stubEnv() []string { return []string{"GOMAXPROCS=1", "GOGC=off"} }

func writeJSON(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// spawn starts the stub beside us.
func (s *Supervisor) spawn(specPath string) error {
	argv := append(slices.Clone(s.cfg.Stub), specPath)
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	p, err := os.StartProcess(argv[0], argv, &os.ProcAttr{
		Dir: "/", Env: stubEnv(), Files: []*os.File{null, null, null},
		Sys: &unix.SysProcAttr{Cloneflags: unix.CLONE_PARENT},
	})
	if err != nil {
		return fmt.Errorf("start %s: %w", strings.Join(argv, " "), err)
	}
	return p.Release()
}

// awaitStub waits until the stub has become the program, or has failed.
func (s *Supervisor) awaitStub(ctx context.Context, l *launch) (*proc, error) {
	deadline := time.Now().Add(stubLimit)
	var p *proc
	for wait := 500 * time.Microsecond; ; wait = min(2*wait, 20*time.Millisecond) {
		if b, err := os.ReadFile(l.dir.failed()); err == nil && len(b) > 0 {
			if p != nil {
				p.close()
			}
			return nil, errors.New(string(b))
		}
		if p == nil {
			r, err := l.dir.readRecord()
			if err == nil && r != nil {
				s.exits.watch(procID{r.PID, r.Start})
				p, err = openProc(r.PID, r.Start)
				if errors.Is(err, unix.ESRCH) {
					// It ran and ended before we looked: an exit like any other.
					return &proc{pid: r.PID, start: r.Start}, nil
				}
				if err != nil {
					return nil, fmt.Errorf("take hold of process %d: %w", r.PID, err)
				}
			} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
		}
		if p != nil {
			// The kernel lets go of the lock when the stub is replaced by the program, or ends.
			if s.lockFree(l.sp.name()) {
				if b, err := os.ReadFile(l.dir.failed()); err == nil && len(b) > 0 {
					p.close()
					return nil, errors.New(string(b))
				}
				return p, nil
			}
		}
		if time.Now().After(deadline) {
			if p != nil {
				p.close()
			}
			return nil, fmt.Errorf("the start of %s did not get past its preparation in %s", l.sp.Key(), stubLimit)
		}
		select {
		case <-ctx.Done():
			if p != nil {
				return p, nil // the next host adopts it
			}
			return nil, ctx.Err()
		case <-time.After(wait):
		}
	}
}

func (s *Supervisor) lockFree(name string) bool {
	f, err := os.OpenFile(s.lockPath(name), os.O_RDWR, 0)
	if err != nil {
		return true
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
}
