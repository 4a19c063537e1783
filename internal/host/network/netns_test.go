package network

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"

	"kingpost/internal/mesh"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// envInside is set in the test's second process, which has a network name space of its own. It must be a process: the
// threads of one have all the same name space only from its start.
const envInside = "KINGPOST_TEST_NETNS"

// inside runs the rest of a test in a network name space that ends with it. In the first process it returns false.
func inside(t *testing.T) bool {
	t.Helper()
	if os.Getenv(envInside) != "" {
		return true
	}
	if os.Geteuid() != 0 {
		t.Fatal("this test makes network name spaces: run it as root, as make test does in CI")
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v", "-test.timeout", "5m")
	cmd.Env = append(os.Environ(), envInside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Errorf("in its name space: %v", err)
	}
	return false
}

// lan is a network at the other end of a node's link: a name space with the server's end of a veth pair.
type lan struct {
	t      *testing.T
	holder *exec.Cmd
	ours   string // the node's link
	theirs string
	server *exec.Cmd
	dir    string
	log    *bytes.Buffer
}

// newLAN makes a link of the node and what it is plugged into.
func newLAN(t *testing.T, sys, ours, address string) *lan {
	t.Helper()
	l := &lan{t: t, ours: ours, theirs: "s" + ours, dir: t.TempDir()}
	l.holder = exec.Command("sleep", "600")
	l.holder.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	must(t, l.holder.Start())
	t.Cleanup(func() { l.holder.Process.Kill(); l.holder.Wait() })
	// What makes it a device of the machine; a real one is in /sys before anybody hears of it.
	dir := filepath.Join(sys, "class/net", ours)
	must(t, os.MkdirAll(filepath.Join(dir, "device"), 0o755))
	must(t, os.Symlink("../../../drivers/veth", filepath.Join(dir, "device/driver")))
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: ours}, PeerName: l.theirs}))
	peer, err := netlink.LinkByName(l.theirs)
	must(t, err)
	must(t, netlink.LinkSetNsPid(peer, l.holder.Process.Pid))
	l.run("ip", "addr", "add", address, "dev", l.theirs)
	l.run("ip", "link", "set", l.theirs, "up")
	l.run("ip", "link", "set", "lo", "up")
	return l
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// command is a program in the LAN's name space.
func (l *lan) command(name string, args ...string) *exec.Cmd {
	if _, err := exec.LookPath(name); err != nil {
		l.t.Fatalf("%v; make test installs it (packages iproute2, dnsmasq-base, udhcpd)", err)
	}
	cmd := exec.Command("nsenter", append([]string{"-t", fmt.Sprint(l.holder.Process.Pid), "-n", name}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

func (l *lan) run(name string, args ...string) {
	l.t.Helper()
	if out, err := l.command(name, args...).CombinedOutput(); err != nil {
		l.t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
}

// carrier plugs the cable in or out at the far end.
func (l *lan) carrier(on bool) {
	l.t.Helper()
	l.run("ip", "link", "set", l.theirs, map[bool]string{true: "up", false: "down"}[on])
}

// udhcpd starts busybox's DHCP server, which gives leases as short as a test needs. first and last are the pool.
func (l *lan) udhcpd(first, last string, seconds int, more ...string) {
	l.t.Helper()
	conf := filepath.Join(l.dir, "udhcpd.conf")
	leases := filepath.Join(l.dir, "leases")
	text := fmt.Sprintf("start %s\nend %s\ninterface %s\nlease_file %s\npidfile %s\nmin_lease 1\nmax_leases 20\noption lease %d\noption subnet 255.255.255.0\n%s\n",
		first, last, l.theirs, leases, filepath.Join(l.dir, "pid"), seconds, strings.Join(more, "\n"))
	must(l.t, os.WriteFile(conf, []byte(text), 0o600))
	must(l.t, os.WriteFile(leases, nil, 0o600))
	l.serve("udhcpd", "-f", conf)
}

// dnsmasq starts dnsmasq's DHCP server, which speaks for the whole network: it takes over leases that it does not know and
// refuses those that cannot be.
func (l *lan) dnsmasq(first, last string) {
	l.t.Helper()
	l.serve("dnsmasq", "-k", "-p", "0", "-C", "/dev/null", "--interface="+l.theirs, fmt.Sprintf("--dhcp-range=%s,%s,2m", first, last), "--dhcp-authoritative",
		"--dhcp-leasefile="+filepath.Join(l.dir, "dnsmasq.leases"), "--log-dhcp", "--log-facility=-", "--user=root", "--pid-file="+filepath.Join(l.dir, "dnsmasq.pid"))
}

func (l *lan) serve(name string, args ...string) {
	l.t.Helper()
	l.log = &bytes.Buffer{}
	l.server = l.command(name, args...)
	l.server.Stdout, l.server.Stderr = l.log, l.log
	must(l.t, l.server.Start())
	l.t.Cleanup(l.stop)
}

// stop ends the server at once, as a power cut does.
func (l *lan) stop() {
	if l.server == nil {
		return
	}
	l.server.Process.Kill()
	l.server.Wait()
	l.server = nil
	if l.t.Failed() {
		l.t.Logf("server on %s: %s", l.ours, l.log)
	}
}

// running is a Manager that runs.
type running struct {
	*Manager
	t    *testing.T
	dir  string
	sys  string
	log  *testLog
	stop context.CancelFunc
	done chan struct{}
}

// node makes a Manager; plug in its links before run.
func node(t *testing.T) *running {
	dir := t.TempDir()
	return &running{t: t, dir: dir, sys: filepath.Join(dir, "sys")}
}

func (r *running) run(c mesh.NetworkConfig) {
	r.t.Helper()
	log := logrus.New()
	r.log = &testLog{t: r.t}
	log.SetOutput(r.log)
	m, err := New(Config{
		Settings: c, Hostname: func() string { return "alpha" }, ResolvConf: filepath.Join(r.dir, "resolv.conf"),
		Sys: r.sys, Proc: "/proc", Log: log, Now: time.Now,
	})
	must(r.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	r.Manager, r.stop, r.done = m, cancel, make(chan struct{})
	go func() {
		defer close(r.done)
		m.Run(ctx)
	}()
	r.t.Cleanup(r.end)
}

// end ends the Manager, as a restart of the host does.
func (r *running) end() {
	r.stop()
	<-r.done
}

// testLog is the test's log, which keeps what was logged.
type testLog struct {
	mu   sync.Mutex
	t    *testing.T
	text strings.Builder
}

// says tells whether something was logged.
func (l *testLog) says(s string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), s)
}

func (l *testLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.t.Logf("%s", bytes.TrimSpace(p))
	l.text.Write(p)
	return len(p), nil
}

// until waits for a condition; what says what is waited for.
func until(t *testing.T, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("not within %s: %s", limit, what)
}

// stays fails when a condition does not hold all the time.
func stays(t *testing.T, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if !ok() {
			t.Fatalf("no more: %s", what)
		}
	}
}

// addresses are the IPv4 and global IPv6 addresses of a link.
func addresses(t *testing.T, name string) []string {
	t.Helper()
	nif, err := net.InterfaceByName(name)
	must(t, err)
	list, err := nif.Addrs()
	must(t, err)
	var out []string
	for _, a := range list {
		if n := a.(*net.IPNet); n.IP.IsGlobalUnicast() {
			out = append(out, n.String())
		}
	}
	return out
}

func has(t *testing.T, name, prefix string) func() bool {
	return func() bool {
		return slices.ContainsFunc(addresses(t, name), func(a string) bool { return strings.HasPrefix(a, prefix) })
	}
}

func none(t *testing.T, name string) func() bool {
	return func() bool { return len(addresses(t, name)) == 0 }
}

// gateway is the default route's router over a link.
func gateway(t *testing.T, name string) string {
	t.Helper()
	nl, err := netlink.LinkByName(name)
	must(t, err)
	routes, err := netlink.RouteList(nl, netlink.FAMILY_V4)
	must(t, err)
	for _, r := range routes {
		if r.Gw != nil && (r.Dst == nil || r.Dst.IP.IsUnspecified()) {
			return r.Gw.String()
		}
	}
	return ""
}

// routesTo lists the routes by routers over a link.
func routesTo(t *testing.T, name string) []string {
	t.Helper()
	nl, err := netlink.LinkByName(name)
	must(t, err)
	var out []string
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := netlink.RouteList(nl, family)
		must(t, err)
		for _, r := range routes {
			if r.Gw != nil {
				out = append(out, fmt.Sprintf("%v by %s", r.Dst, r.Gw))
			}
		}
	}
	return out
}

// reachable says whether somebody at this address answers: a port that nobody listens on is refused.
func reachable(ip string) bool {
	c, err := net.DialTimeout("tcp", net.JoinHostPort(ip, "9"), 2*time.Second)
	if err == nil {
		c.Close()
		return true
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}
