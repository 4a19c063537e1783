// Package stub is what stands between the host and a declared process: it joins the cgroup, builds the process's view of
// the file system, gives every privilege up and becomes the program.
//
// It is a program of its own, cmd/mesh-stub, since it runs at each start and each health command: it imports little, so
// that it is there in a millisecond or two. It never returns to the host otherwise than by the files that Spec names.
// Start with Spec.
package stub

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"kingpost/internal/atomicfile"
)

// Spec tells the stub what to become. The host writes it; it is root's alone, since it may hold secrets.
type Spec struct {
	Name   string `json:"name"`   // "MODULE.ID"
	Cgroup string `json:"cgroup"` // the folder to join
	Lock   string `json:"lock"`   // held while it joins, so that two starts never overlap
	Record string `json:"record"` // where the run record is written
	Failed string `json:"failed"` // where the reason is written when it cannot start
	Log    string `json:"log"`    // the FIFO for stdout and stderr; empty: those of the caller

	Run json.RawMessage `json:"run,omitempty"` // the record, an object that gets the members "pid" and "start"

	Path string   `json:"path"` // in the view
	Args []string `json:"args"` // with the name the program is called by
	Env  []string `json:"env"`
	Dir  string   `json:"dir"`

	UID          int    `json:"uid"`
	Capabilities []int  `json:"capabilities,omitempty"`
	OOMScore     int    `json:"oomScore"`
	View         View   `json:"view"`
	Enter        *Enter `json:"enter,omitempty"`
}

// Enter runs a program beside a running workload, in its namespaces, as a child of the caller: a health command.
type Enter struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"`
	// Net: the workload has a network of its own.
	Net bool `json:"net,omitempty"`
}

// Exit codes of a stub that could not become its program, as shells have them.
const (
	exitCannotExec = 126
	exitNotFound   = 127
)

// Main is the entry of `mesh-stub SPEC` and of `mesh-host exec SPEC`: it becomes the program that the file SPEC describes,
// in its own view of the file system, cgroup and account. It returns only on failure, with the exit code.
func Main(args []string) int {
	if len(args) != 1 {
		fmt.Fprintln(os.Stderr, "usage: mesh-stub SPEC (for the host itself)")
		return 2
	}
	b, err := os.ReadFile(args[0])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return exitCannotExec
	}
	var sp Spec
	if err := json.Unmarshal(b, &sp); err != nil {
		fmt.Fprintf(os.Stderr, "read %s: %v\n", args[0], err)
		return exitCannotExec
	}
	// Namespaces, credentials and capabilities belong to a thread; execve makes this one the process.
	runtime.LockOSThread()
	// Held open: later the path is out of sight and the account may not write there.
	var failed *os.File
	if sp.Failed != "" {
		if failed, err = os.OpenFile(sp.Failed, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return exitCannotExec
		}
	}
	err = sp.become()
	if failed != nil {
		_, _ = failed.WriteString(err.Error())
	}
	fmt.Fprintf(os.Stderr, "start %s: %v\n", sp.Name, err)
	if errors.Is(err, unix.ENOENT) {
		return exitNotFound
	}
	return exitCannotExec
}

// become does not return when it succeeds.
func (sp *Spec) become() error {
	unix.Umask(0o022)
	if err := sp.join(); err != nil {
		return err
	}
	if sp.Enter == nil {
		if _, err := unix.Setsid(); err != nil && !errors.Is(err, unix.EPERM) {
			return fmt.Errorf("make a session: %w", err)
		}
	}
	if err := sp.stdio(); err != nil {
		return err
	}
	// Below zero needs CAP_SYS_RESOURCE, which a host has and a sandbox may not.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(sp.OOMScore)), 0)
	enter := func() error { return sp.View.enter(sp.UID) }
	if sp.Enter != nil {
		enter = sp.Enter.join
	}
	if err := enter(); err != nil {
		return err
	}
	if err := limitResources(); err != nil {
		return err
	}
	if err := dropPrivileges(sp.UID, sp.Capabilities); err != nil {
		return err
	}
	if err := unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("close inherited files: %w", err)
	}
	if err := unix.Chdir(sp.Dir); err != nil {
		return fmt.Errorf("change to %s: %w", sp.Dir, err)
	}
	path, err := lookPath(sp.Path, sp.Env)
	if err != nil {
		return err
	}
	if err := syscall.Exec(path, sp.Args, sp.Env); err != nil {
		return fmt.Errorf("execute %s: %w", path, err)
	}
	return nil
}

// join puts the stub into its cgroup, alone, and writes the run record: from then on the next host finds
// it, whatever becomes of this one. The lock is held until the program is executed, or the stub ends.
func (sp *Spec) join() error {
	if sp.Lock != "" {
		fd, err := unix.Open(sp.Lock, unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return fmt.Errorf("open %s: %w", sp.Lock, err)
		}
		if err := unix.Flock(fd, unix.LOCK_EX); err != nil {
			return fmt.Errorf("lock %s: %w", sp.Lock, err)
		}
	}
	if sp.Cgroup != "" {
		procs := filepath.Join(sp.Cgroup, "cgroup.procs")
		if sp.Enter == nil {
			b, err := os.ReadFile(procs)
			if err != nil {
				return fmt.Errorf("join the cgroup: %w", err)
			}
			if others := strings.Fields(string(b)); len(others) > 0 {
				return fmt.Errorf("another start of it runs already as process %s", others[0])
			}
		}
		if err := os.WriteFile(procs, []byte("0"), 0); err != nil {
			return fmt.Errorf("join the cgroup: %w", err)
		}
	}
	if sp.Record == "" {
		return nil
	}
	return sp.record()
}

// record writes the run record with our own PID, which is the program's, and our start time.
func (sp *Spec) record() error {
	start, err := StartTime(os.Getpid())
	if err != nil {
		return err
	}
	r := map[string]json.RawMessage{}
	if err := json.Unmarshal(sp.Run, &r); err != nil {
		return fmt.Errorf("read the run record: %w", err)
	}
	r["pid"] = strconv.AppendInt(nil, int64(os.Getpid()), 10)
	r["start"] = strconv.AppendUint(nil, start, 10)
	b, err := json.Marshal(r)
	if err == nil {
		err = atomicfile.Write(sp.Record, b, 0o600)
	}
	if err != nil {
		return fmt.Errorf("keep the run record: %w", err)
	}
	return nil
}

func (sp *Spec) stdio() error {
	if sp.Log == "" {
		return nil
	}
	null, err := unix.Open("/dev/null", unix.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("open /dev/null: %w", err)
	}
	// Open for reading too: a writer whose reader is gone waits for the next one instead of being killed by SIGPIPE.
	log, err := unix.Open(sp.Log, unix.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("open the log pipe: %w", err)
	}
	if err := unix.Fchown(log, sp.UID, sp.UID); err != nil {
		return fmt.Errorf("give the log pipe to its account: %w", err)
	}
	for fd, from := range []int{null, log, log} {
		if err := unix.Dup3(from, fd, 0); err != nil {
			return fmt.Errorf("redirect file %d: %w", fd, err)
		}
	}
	return nil
}

// limitResources sets what does not depend on the resource: files enough for a server, no core dumps
// (they would hold secrets and fill the disk).
func limitResources() error {
	var now syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &now); err != nil {
		return err
	}
	files := uint64(1 << 16)
	lim := syscall.Rlimit{Cur: files, Max: files}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &lim); err != nil {
		lim = syscall.Rlimit{Cur: min(files, now.Max), Max: min(files, now.Max)}
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &lim); err != nil {
			return fmt.Errorf("limit open files: %w", err)
		}
	}
	if err := syscall.Setrlimit(unix.RLIMIT_CORE, &syscall.Rlimit{}); err != nil {
		return fmt.Errorf("limit core dumps: %w", err)
	}
	return nil
}

// dropPrivileges makes this thread the account uid with exactly the capabilities caps, ambient, so that they
// outlive execve, and nothing that could ever give it more (capabilities(7), "Ambient").
func dropPrivileges(uid int, caps []int) error {
	if uid <= 0 {
		return errors.New("refused: nothing that is declared runs as root")
	}
	var want uint64
	for _, c := range caps {
		want |= 1 << uint(c)
	}
	last := lastCapability()
	for c := 0; c <= last; c++ {
		if want&(1<<uint(c)) == 0 {
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil {
				return fmt.Errorf("drop capability %d: %w", c, err)
			}
		}
	}
	if err := unix.Prctl(unix.PR_SET_KEEPCAPS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("keep capabilities: %w", err)
	}
	// The raw calls change this thread only, which is the one that goes on.
	if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); e != 0 {
		return fmt.Errorf("drop groups: %w", e)
	}
	id := uintptr(uid)
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESGID, id, id, id); e != 0 {
		return fmt.Errorf("become group %d: %w", uid, e)
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, id, id, id); e != 0 {
		return fmt.Errorf("become account %d: %w", uid, e)
	}
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	data := [2]unix.CapUserData{}
	for i := range data {
		w := uint32(want >> (32 * i))
		data[i] = unix.CapUserData{Effective: w, Permitted: w, Inheritable: w}
	}
	if err := unix.Capset(&hdr, &data[0]); err != nil {
		return fmt.Errorf("set capabilities: %w", err)
	}
	for _, c := range caps {
		if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, uintptr(c), 0, 0); err != nil {
			return fmt.Errorf("raise capability %d: %w", c, err)
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("forbid new privileges: %w", err)
	}
	return nil
}

// lastCapability is the highest one that the running kernel knows.
func lastCapability() int {
	for c := unix.CAP_LAST_CAP + 1; c < 64; c++ {
		if r, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(c), 0, 0, 0); err != nil || r < 0 {
			return c - 1
		}
	}
	return 63
}

// lookPath finds a program given by name in the PATH of env.
func lookPath(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	list := "/app/bin:/usr/local/bin:/usr/bin:/bin"
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, "PATH="); ok {
			list = v
		}
	}
	for _, dir := range filepath.SplitList(list) {
		p := filepath.Join(dir, name)
		if st, err := os.Stat(p); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return p, nil
		}
	}
	return "", fmt.Errorf("find the program %s in %s: %w", name, list, unix.ENOENT)
}

// join enters the namespaces of a running workload.
func (e *Enter) join() error {
	fd, err := unix.PidfdOpen(e.PID, 0)
	if err != nil {
		return fmt.Errorf("open process %d: %w", e.PID, err)
	}
	defer unix.Close(fd)
	if got, err := StartTime(e.PID); err != nil || got != e.Start {
		return fmt.Errorf("process %d has ended", e.PID)
	}
	// A mount namespace cannot be joined while the working folder is shared with other threads.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("leave the other threads: %w", err)
	}
	kinds := unix.CLONE_NEWNS | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS
	if e.Net {
		kinds |= unix.CLONE_NEWNET
	}
	if err := unix.Setns(fd, kinds); err != nil {
		return fmt.Errorf("enter the view of process %d: %w", e.PID, err)
	}
	return nil
}
