package supervise

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"kingpost/internal/host/stub"
	"kingpost/internal/mesh"
)

// Health checks go to a running workload's own view: a socket is looked up in its root, a port in its network.

// checker makes one check, again and again.
type checker struct {
	s     *Supervisor
	sp    *spec
	name  string
	pid   int
	start uint64
	uid   int
}

// check makes the check once; nil is healthy.
func (c *checker) check(ctx context.Context, h *mesh.Health) error {
	ctx, cancel := context.WithTimeout(ctx, h.Timeout.Or(5*time.Second))
	defer cancel()
	switch {
	case h.Seat:
		return c.seat(ctx)
	case h.HTTP != "":
		return c.http(ctx, h.HTTP)
	case h.TCP != "":
		conn, err := c.dial(ctx, "tcp", h.TCP)
		if err != nil {
			return err
		}
		return conn.Close()
	default:
		return c.command(ctx, h.Command)
	}
}

func (c *checker) seat(ctx context.Context) error {
	seat := c.sp.Seats[0]
	if probe, ok := c.s.cfg.Probes[seat]; ok {
		return probe(ctx)
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return dialSocket(ctx, c.s.seatDir(c.name), seatSocket)
	}
	tr := &http.Transport{DialContext: dial, DisableKeepAlives: true}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://seat/verbs/"+mesh.VerbPing, strings.NewReader("{}"))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(mesh.HeaderCaller, mesh.Identity{Mesh: c.sp.Mesh, Role: mesh.RoleNode, Name: c.sp.Node}.String())
	return expect2xx(tr.RoundTrip(req))
}

func (c *checker) http(ctx context.Context, target string) error {
	tr := &http.Transport{DisableKeepAlives: true}
	defer tr.CloseIdleConnections()
	if rest, ok := strings.CutPrefix(target, "unix:"); ok {
		sock, path, _ := strings.Cut(rest, ":/")
		tr.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialSocket(ctx, fmt.Sprintf("/proc/%d/root", c.pid), sock)
		}
		target = "http://socket/" + path
	} else {
		tr.DialContext = c.dial
	}
	if _, err := url.Parse(target); err != nil {
		return err
	}
	return get(ctx, tr, target)
}

func get(ctx context.Context, tr http.RoundTripper, target string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return err
	}
	return expect2xx(tr.RoundTrip(req))
}

func expect2xx(resp *http.Response, err error) error {
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 256))
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("it answers %s: %s", resp.Status, bytes.TrimSpace(b))
	}
	return nil
}

// dial connects as from inside the workload's network.
func (c *checker) dial(ctx context.Context, network, addr string) (conn net.Conn, err error) {
	var d net.Dialer
	if !c.sp.private() {
		return d.DialContext(ctx, network, addr)
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	if host == "localhost" || host == "" {
		host = "127.0.0.1"
	}
	if _, err := netip.ParseAddr(host); err != nil {
		return nil, fmt.Errorf("%s: only an address or localhost can be checked in a private network", addr)
	}
	err = inNetwork(c.pid, func() error {
		var err error
		conn, err = d.DialContext(ctx, network, net.JoinHostPort(host, port))
		return err
	})
	return conn, err
}

func (c *checker) command(ctx context.Context, program []string) error {
	var caps []int
	es := stub.Spec{
		Name: c.name + ": health command", Cgroup: c.s.cgroups.path(c.name), Path: program[0], Args: program,
		Env:          environment([]string{"PATH=/app/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME=/tmp"}, envList(c.sp)...),
		Dir:          "/",
		UID:          c.uid,
		Capabilities: caps,
		OOMScore:     oomScore(false),
		Enter:        &stub.Enter{PID: c.pid, Start: c.start, Net: c.sp.private()},
	}
	path := c.s.rundir(c.name).healthSpec()
	if err := writeJSON(path, &es); err != nil {
		return err
	}
	defer os.Remove(path)
	var out tailBuffer
	argv := append(slices.Clone(c.s.cfg.Stub), path)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = stubEnv()
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second // a grandchild may hold the pipe
	err := cmd.Run()
	if ctx.Err() != nil {
		return errors.New("the command does not end in time")
	}
	if err != nil {
		return fmt.Errorf("%w: %s", err, out.String())
	}
	return nil
}

func envList(sp *spec) []string {
	var out []string
	for k, v := range sp.Env {
		out = append(out, k+"="+v)
	}
	return out
}

// tailBuffer keeps the start of what is written.
type tailBuffer struct {
	mu sync.Mutex
	b  []byte
}

func (t *tailBuffer) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if room := 256 - len(t.b); room > 0 {
		t.b = append(t.b, p[:min(room, len(p))]...)
	}
	return len(p), nil
}

func (t *tailBuffer) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.b))
}

// dialSocket connects to the unix socket path inside root, a folder that somebody else may write: links are
// followed inside root only (openat2(2), RESOLVE_IN_ROOT), and what is found is connected to by descriptor,
// so a link to one of the host's own sockets leads nowhere.
func dialSocket(ctx context.Context, root, path string) (net.Conn, error) {
	dir, err := os.Open(root)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	fd, err := unix.Openat2(int(dir.Fd()), path, &how)
	if err != nil {
		return nil, fmt.Errorf("open the socket %s: %w", filepath.Join("/", path), err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return nil, fmt.Errorf("%s is no socket", path)
	}
	var d net.Dialer
	return d.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d", fd))
}
