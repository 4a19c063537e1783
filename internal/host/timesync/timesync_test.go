package timesync

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"

	"kingpost/internal/mesh/hostapi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestChoose(t *testing.T) {
	const s, ms = time.Second, time.Millisecond
	for _, tc := range []struct {
		name     string
		samples  []Sample
		want     string // server; empty: refused
		agree    int
		outvoted string
	}{
		{"one", []Sample{{"a", 10 * s, 50 * ms}}, "a", 1, ""},
		{"two agree", []Sample{{"a", 10 * s, 50 * ms}, {"b", 10*s + 20*ms, 10 * ms}}, "b", 2, ""},
		{"two differ", []Sample{{"a", 10 * s, 50 * ms}, {"b", 12 * s, 50 * ms}}, "", 0, ""},
		{"one liar of three", []Sample{{"a", 10 * ms, 50 * ms}, {"liar", 87600 * time.Hour, ms}, {"b", 20 * ms, 40 * ms}}, "b", 2, "liar"},
		{"one liar just beside", []Sample{{"a", 0, 10 * ms}, {"b", 5 * ms, 10 * ms}, {"liar", 100 * ms, 10 * ms}}, "a", 2, "liar"},
		{"three differ", []Sample{{"a", 0, ms}, {"b", s, ms}, {"c", 2 * s, ms}}, "", 0, ""},
		{"two and two", []Sample{{"a", 0, ms}, {"b", 0, ms}, {"c", 2 * s, ms}, {"d", 2 * s, ms}}, "", 0, ""},
		{"touching", []Sample{{"a", 0, 10 * ms}, {"b", 20 * ms, 10 * ms}}, "a", 2, ""},
		{"one that knows nothing", []Sample{{"a", 0, 5 * ms}, {"b", s, 5 * ms}, {"vague", 0, 10 * s}}, "a", 2, "b"},
		{"none", nil, "", 0, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, err := choose(tc.samples)
			out := ""
			for _, o := range c.outvoted {
				out += o.Server
			}
			if c.Server != tc.want || (err == nil) != (tc.want != "") || c.agree != tc.agree || out != tc.outvoted {
				t.Errorf("got %+v, %v", c, err)
			}
		})
	}
}

// fakeClock is a clock that stands somewhere else than the machine's and runs with it.
type fakeClock struct {
	mu     sync.Mutex
	off    time.Duration
	steps  int
	slewed time.Duration
}

func (c *fakeClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Round(0).Add(c.off)
}

func (c *fakeClock) Step(by time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.off += by
	c.steps++
	return nil
}

func (c *fakeClock) Slew(by time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.slewed += by
	return nil
}

const years = 10 * 365 * 24 * time.Hour

// keeper makes a Keeper of a clock that is off by off, and of what servers say.
func keeper(off time.Duration, floor time.Time, ask func(ctx context.Context, server string) (Sample, error), servers ...string) (*Keeper, *fakeClock, *[]time.Time) {
	log := logrus.New()
	log.SetOutput(discard{})
	c := &fakeClock{off: off}
	var kept []time.Time
	if ask == nil {
		ask = NTP(c.Now)
	}
	return New(Config{
		Servers: func() ([]string, string) { return servers, "node.yaml" }, Changed: func() <-chan struct{} { return nil },
		Ask: ask, Clock: c, Floor: func() time.Time { return floor }, Keep: func(t time.Time) { kept = append(kept, t) }, Log: log,
	}), c, &kept
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

// truth answers with the machine's own time.
func truth(c **fakeClock) func(context.Context, string) (Sample, error) {
	return func(context.Context, string) (Sample, error) {
		return Sample{Offset: time.Since((*c).Now()), Distance: time.Millisecond}, nil
	}
}

func TestPoll(t *testing.T) {
	ctx := t.Context()
	var c *fakeClock
	for _, tc := range []struct {
		name         string
		off          time.Duration
		floor        time.Time
		steps        int
		slews, fails bool
	}{
		{"right", 0, time.Time{}, 0, true, false},
		{"a little off", 100 * time.Millisecond, time.Time{}, 0, true, false},
		{"a second off", time.Second, time.Time{}, 1, false, false},
		{"ten years early", -years, time.Now().Add(-time.Hour), 1, false, false},
		{"ten years late", years, time.Now().Add(-time.Hour), 1, false, false},
		{"the truth is before the floor", years, time.Now().Add(time.Hour), 0, false, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var k *Keeper
			var kept *[]time.Time
			k, c, kept = keeper(tc.off, tc.floor, truth(&c), "a")
			_, err := k.poll(ctx)
			if (err != nil) != tc.fails || c.steps != tc.steps || tc.slews != (err == nil && c.steps == 0) || (len(*kept) == 1) == tc.fails || k.Status().Synced == tc.fails {
				t.Fatalf("%v; %d steps, slewed %s, kept %v, %+v", err, c.steps, c.slewed, *kept, k.Status())
			}
			if off := c.off.Abs(); !tc.fails && off > stepFrom {
				t.Errorf("the clock is still off by %s", off)
			}
		})
	}
}

// A clock that was right is not moved far on one server's word, unless that stays with it.
func TestDoubt(t *testing.T) {
	var c *fakeClock
	lie := time.Duration(0)
	k, c, _ := keeper(0, time.Time{}, func(ctx context.Context, s string) (Sample, error) {
		x, _ := truth(&c)(ctx, s)
		x.Offset += lie
		return x, nil
	}, "a")
	poll := func() error { _, err := k.poll(t.Context()); return err }
	if err := poll(); err != nil {
		t.Fatal(err)
	}
	lie = time.Hour
	if err := poll(); err == nil || c.steps != 0 {
		t.Fatalf("an hour at once: %v", err)
	}
	lie = 2 * time.Hour // another lie is no confirmation
	for i := range doubtPolls {
		err := poll()
		if last := i == doubtPolls-1; (err == nil) != last {
			t.Fatalf("poll %d: %v", i, err)
		}
	}
	if c.steps != 1 {
		t.Errorf("%d steps", c.steps)
	}
	lie = years * 20
	if err := poll(); err == nil || !strings.Contains(err.Error(), "not believed") {
		t.Errorf("beyond 2200: %v", err)
	}
}

func TestNoServer(t *testing.T) {
	k, _, _ := keeper(0, time.Time{}, func(context.Context, string) (Sample, error) { return Sample{}, errors.New("no answer") })
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := k.Run(ctx); err != nil {
		t.Error(err)
	}
	if s := k.Status(); s.Synced || !strings.Contains(s.Reason, "no time server: ") {
		t.Errorf("%+v", s)
	}
	k, _, _ = keeper(0, time.Time{}, func(context.Context, string) (Sample, error) { return Sample{}, errors.New("no answer") }, "a", "b")
	if _, err := k.poll(t.Context()); err == nil || !strings.Contains(err.Error(), "no answer") {
		t.Errorf("silent servers: %v", err)
	}
}

// A joined node takes the control-node's time.
func TestNode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "host.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	srv := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"name":"alpha","time":%q}`, time.Now().Format(time.RFC3339Nano))
	})}}
	srv.Start()
	defer srv.Close()
	client, err := hostapi.Dial(path, hostapi.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	c := &fakeClock{off: -years}
	s, err := Node(c.Now, client)(t.Context(), "alpha")
	if err != nil || (s.Offset-years).Abs() > s.Distance+time.Millisecond {
		t.Errorf("%+v, %v", s, err)
	}
}

const envInside = "KINGPOST_TEST_NETNS"

// Against real servers (chrony) in a name space of their own: a clock that is ten years off is corrected, and one liar
// beside two of them convinces nobody.
func TestChrony(t *testing.T) {
	if os.Getenv(envInside) == "" {
		if os.Geteuid() != 0 {
			t.Fatal("this test makes a network name space: run it as root, as make test does in CI")
		}
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestChrony$", "-test.v", "-test.timeout", "2m")
		cmd.Env = append(os.Environ(), envInside+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
		out, err := cmd.CombinedOutput()
		t.Logf("%s", out)
		if err != nil {
			t.Errorf("in its name space: %v", err)
		}
		return
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		t.Fatal(err)
	}
	chrony(t, "127.0.0.1")
	chrony(t, "127.0.0.2")
	liar(t, "127.0.0.3", -years)
	until := func(what string, servers []string, off time.Duration) {
		t.Helper()
		k, c, _ := keeper(off, time.Time{}, nil, servers...)
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(200 * time.Millisecond) {
			_, err := k.poll(t.Context())
			if err == nil {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%s: %v", what, err)
			}
		}
		if c.off.Abs() > 50*time.Millisecond {
			t.Errorf("%s: the clock is off by %s; %+v", what, c.off, k.Status())
		}
	}
	until("ten years early", []string{"127.0.0.1"}, -years)
	until("ten years late", []string{"127.0.0.1"}, years)
	until("one liar", []string{"127.0.0.3", "127.0.0.1", "127.0.0.2"}, 5*time.Second)
	k, c, _ := keeper(0, time.Time{}, nil, "127.0.0.3", "127.0.0.1")
	if _, err := k.poll(t.Context()); err == nil || c.steps != 0 || !strings.Contains(err.Error(), "do not agree") {
		t.Errorf("one of two lies: %v", err)
	}
	k, _, _ = keeper(0, time.Time{}, nil, "127.0.0.9")
	if _, err := k.poll(t.Context()); err == nil || !strings.Contains(err.Error(), "127.0.0.9") {
		t.Errorf("nobody there: %v", err)
	}
}

// chrony starts chronyd on an address, with the machine's clock, which it does not touch.
func chrony(t *testing.T, address string) {
	t.Helper()
	if _, err := exec.LookPath("chronyd"); err != nil {
		t.Fatalf("%v; make test installs it (package chrony)", err)
	}
	dir := t.TempDir()
	conf := filepath.Join(dir, "chrony.conf")
	text := fmt.Sprintf("local stratum 8\nallow\nbindaddress %s\ncmdport 0\nbindcmdaddress /\npidfile %s\n", address, filepath.Join(dir, "pid"))
	if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("chronyd", "-x", "-d", "-u", "root", "-f", conf)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
}

// liar is a time server whose answers are whole and wrong.
func liar(t *testing.T, address string, by time.Duration) {
	t.Helper()
	c, err := net.ListenPacket("udp", address+":123")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	stamp := func(at time.Time) uint64 {
		return uint64(at.Unix()+2208988800)<<32 | uint64(at.Nanosecond())<<32/1e9
	}
	go func() {
		b := make([]byte, 512)
		for {
			n, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			if n < 48 {
				continue
			}
			now := stamp(time.Now().Add(by))
			r := make([]byte, 48)
			r[0], r[1], r[3] = 0x24, 1, 0xec // version 4, server; stratum 1
			binary.BigEndian.PutUint64(r[16:], now)
			copy(r[24:32], b[40:48])
			binary.BigEndian.PutUint64(r[32:], now)
			binary.BigEndian.PutUint64(r[40:], now)
			c.WriteTo(r, from)
		}
	}()
}
