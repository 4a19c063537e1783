package supervise

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
)

// TestConfined: what a container may not ask of the kernel.
func TestConfined(t *testing.T) {
	n := newNode(t)
	open, closed := n.container("open", "try"), n.container("closed", "try")
	closed.ReadOnlyRoot = true
	n.declare(open, closed)
	n.settled()
	for key, root := range map[string]string{"m/open": "permission denied", "m/closed": "read-only file system"} {
		line := n.said(key, `"Seccomp"`)
		var got map[string]string
		if err := json.Unmarshal([]byte(line[strings.IndexByte(line, '{'):]), &got); err != nil {
			t.Fatal(err)
		}
		for what, want := range map[string]string{
			"keyctl": "operation not permitted", "mount": "operation not permitted", "unshare": "operation not permitted",
			"bpf": "operation not permitted", "io_uring": "operation not permitted", "stat": "allowed", "Seccomp": "2", "NoNewPrivs": "1",
			"write to the root": root,
		} {
			if !strings.Contains(got[what], want) {
				t.Errorf("%s: %s: %q, wanted %q", key, what, got[what], want)
			}
		}
	}
}

// TestForeignSystemCalls: the system calls of another architecture than the image's are none.
func TestForeignSystemCalls(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("only amd64 has a second kind of system calls that needs no other program")
	}
	n := newNode(t)
	c := n.container("x32", "x32")
	c.Policy = mesh.PolicyNever
	n.declare(c)
	if line := n.said("m/x32", "x32:"); !strings.Contains(line, unix.SIGSYS.String()) {
		t.Errorf("who makes one: %q, wanted %v", line, unix.SIGSYS)
	}
}

// TestUnruly: containers that do not end as they are asked to.
func TestUnruly(t *testing.T) {
	n := newNode(t)
	stubborn, daemons, leaver := n.container("stubborn", "stubborn"), n.container("daemons", "daemons"), n.container("leaver", "leave", "3")
	stubborn.Stop.Grace = mesh.Duration(300 * time.Millisecond)
	leaver.Policy = mesh.PolicyNever
	n.declare(stubborn, daemons, leaver)
	n.said("m/stubborn", "stubborn")
	n.said("m/daemons", "daemon 2 of")
	r := n.until("m/leaver", "over", func(r hostapi.ResourceStatus) bool { return r.Exit != nil })
	if *r.Exit != 3 {
		t.Errorf("the exit of one whose child holds its log: %d", *r.Exit)
	}
	n.said("m/leaver", "leaves")
	for _, name := range []string{"m.leaver"} {
		if exists(n.s.cgroups.path(name)) {
			t.Errorf("the cgroup %s is left", name)
		}
	}
	n.declare()
	for range 500 {
		if len(n.s.Status().Resources) == 0 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if rs := n.s.Status().Resources; len(rs) != 0 {
		t.Errorf("not ended: %+v", rs)
	}
	if names, err := n.s.cgroups.names(); err != nil || len(names) != 0 {
		t.Errorf("cgroups left: %v, %v", names, err)
	}
}

// TestSecrets: a secret is a file that its account alone reads, in both forms; without the vault it waits and says for what,
// and what runs goes on.
func TestSecrets(t *testing.T) {
	for _, form := range []mesh.Kind{mesh.KindProcess, mesh.KindContainer} {
		t.Run(string(form), func(t *testing.T) {
			n := newNode(t)
			n.stop()
			var away atomic.Bool
			away.Store(true)
			n.cfg.Secrets = func(_ context.Context, module, name string, version uint64) ([]byte, error) {
				if away.Load() {
					return nil, errors.New("nobody holds the seat vault")
				}
				return fmt.Appendf(nil, "%s of %s, version %d", name, module, version), nil
			}
			n.start()
			d := n.process("a", "look", "/secret/key", "/etc/pass")
			if form == mesh.KindContainer {
				d = n.container("a", d.Args...)
			}
			d.Secrets = []mesh.Secret{{Secret: "key", Path: "/secret/key"}, {Secret: "pass", Path: "/etc/pass", Version: 3}}
			n.declare(d)
			r := n.state("m/a", "fetching")
			if !strings.Contains(r.Reason, "the secret m/key: nobody holds the seat vault") {
				t.Errorf("the reason is %q", r.Reason)
			}
			away.Store(false)
			n.settled()
			line := n.said("m/a", `"read /secret/key"`)
			if !strings.Contains(line, "key of m, version 0") || !strings.Contains(line, "pass of m, version 3") {
				t.Errorf("secrets are missing: %s", line)
			}
			before := n.state("m/a", "running")
			dir := n.s.rundir("m.a").secrets()
			st, err := os.Stat(filepath.Join(dir, "0"))
			if err != nil {
				t.Fatal(err)
			}
			if uid, _ := ownerOf(st); uid != firstUID || st.Mode().Perm() != 0o400 {
				t.Errorf("its file is %v of %d", st.Mode(), uid)
			}
			// Another version is another start, before which nothing is stopped.
			away.Store(true)
			d.Secrets = []mesh.Secret{d.Secrets[0], {Secret: "pass", Path: "/etc/pass", Version: 4}}
			d.Handover = mesh.HandoverStopStart
			n.declare(d)
			n.until("m/a", "waiting", func(r hostapi.ResourceStatus) bool {
				return strings.Contains(r.Reason, "nobody holds") && r.PID == before.PID
			})
			away.Store(false)
			n.settled()
			n.said("m/a", "pass of m, version 4")
			if b, err := os.ReadFile(n.s.declarationPath()); err != nil || strings.Contains(string(b), " of m") {
				t.Errorf("a secret is on disk, or %v", err)
			}
			n.declare()
			for range 500 {
				if !exists(dir) {
					return
				}
				time.Sleep(20 * time.Millisecond)
			}
			t.Error("the secrets of what is gone are left")
		})
	}
}

// TestHostSocketAcrossHosts: what outlives a host reaches the next one by the same path.
func TestHostSocketAcrossHosts(t *testing.T) {
	newOutside(t)
	n := newNode(t)
	listen := func(words string) net.Listener {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: n.cfg.HostSocket + ".new", Net: "unix"})
		must(t, err)
		l.SetUnlinkOnClose(false)
		must(t, os.Chmod(n.cfg.HostSocket+".new", 0o666))
		must(t, os.Rename(n.cfg.HostSocket+".new", n.cfg.HostSocket))
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				fmt.Fprintln(c, words)
				c.Close()
			}
		}()
		return l
	}
	l := listen("the first host")
	n.stop()
	n.start()
	c, p := n.private("m", "c", 28081), n.process("p", "net")
	c.HostAPI, p.HostAPI = true, true
	n.declare(c, p)
	n.settled()
	const ask = "dial unix /run/kingpost/host/host.sock"
	n.said("m/p", "listening")
	for _, port := range []int{28081, 8081} {
		if got := order(t, port, ask); got != "the first host" {
			t.Errorf("port %d: %q", port, got)
		}
	}
	n.stop()
	l.Close()
	l = listen("the next host")
	defer l.Close()
	n.start()
	n.state("m/c", "healthy")
	for _, port := range []int{28081, 8081} {
		if got := order(t, port, ask); got != "the next host" {
			t.Errorf("port %d: %q", port, got)
		}
	}
}
