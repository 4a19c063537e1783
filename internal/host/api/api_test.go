package api

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"kingpost/internal/host/identity"
	"kingpost/internal/host/supervise"
	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
	"kingpost/internal/mesh/tlsid"
)

// status is the HTTP status that a client's error carries: 200 for nil, 0 for one of the connection.
func status(err error) int {
	var e *hostapi.Error
	var ce *mesh.CallError
	switch {
	case err == nil:
		return 200
	case errors.As(err, &e):
		return e.Status
	case errors.As(err, &ce):
		return statusOf(ce.Code)
	}
	return 0
}

func TestDoors(t *testing.T) {
	r := newRig(t)
	ctx := context.Background()
	d := &mesh.Declaration{Mesh: "home", Node: "alpha", Resources: []mesh.Declared{}}
	get := func(c *hostapi.Client) error { _, err := c.Status(ctx); return err }
	put := func(c *hostapi.Client) error { return c.Declare(ctx, d) }
	raise := func(c *hostapi.Client) error { _, err := c.Raise(ctx); return err }
	call := func(c *hostapi.Client) error { return c.Call(ctx, "controller", "status", nil, nil) }
	type row struct {
		name string
		c    *hostapi.Client
		do   func(*hostapi.Client) error
		want int
	}
	check := func(t *testing.T, rows []row) {
		for _, tc := range rows {
			t.Run(tc.name, func(t *testing.T) {
				if err := tc.c.Ping(ctx); err != nil {
					t.Errorf("ping: %v", err)
				}
				if _, err := tc.c.Node(ctx); err != nil {
					t.Errorf("node: %v", err)
				}
				if err := tc.do(tc.c); status(err) != tc.want {
					t.Errorf("got %d (%v), want %d", status(err), err, tc.want)
				}
			})
		}
	}
	claim, nobody, stranger := r.keyClient(t, r.claimK), r.keyClient(t, nil), r.keyClient(t, key(t))
	root := r.dial(t, r.socket, hostapi.Options{})
	t.Run("before the raise", func(t *testing.T) {
		check(t, []row{
			{"claim key", claim, get, 200},
			{"claim key, raise", claim, raise, 200},
			{"claim key, declare", claim, put, 200},
			{"claim key, call", claim, call, 401 + 2}, // nobody holds a seat for somebody in no mesh
			{"no certificate", nobody, get, 401},
			{"no certificate, raise", nobody, raise, 401},
			{"another key", stranger, get, 401},
			{"another key, raise", stranger, raise, 401},
			{"root", root, get, 200},
			{"root, call", root, call, 503},
		})
	})

	r.raise(t)
	m, err := r.auth.Membership()
	if err != nil {
		t.Fatal(err)
	}
	away := newRig(t)
	away.nodeK = r.nodeK // the same key in another mesh: nothing may come of it
	if err := away.auth.Create("away", "alpha", r.nodeK, r.door.Claim()); err != nil {
		t.Fatal(err)
	}
	am, err := away.auth.Membership()
	if err != nil {
		t.Fatal(err)
	}
	// Another mesh's operator, with our CA to trust the server by.
	foreign := r.identityClient(t, []byte(am.Operator), tlsid.MarshalPrivateKey(r.claimK), []byte(m.CA))
	awayVault, awayKey, _, err := away.auth.Issue(ctx, "controller")
	if err != nil {
		t.Fatal(err)
	}
	foreignComponent := r.identityClient(t, awayVault, awayKey, []byte(m.CA))
	t.Run("after the raise", func(t *testing.T) {
		check(t, []row{
			{"operator", r.operator(t), get, 200},
			{"operator, declare", r.operator(t), put, 200},
			{"operator, call", r.operator(t), call, 200},
			{"controller, declare", r.component(t, "controller"), put, 200},
			{"vault, declare", r.component(t, "vault"), put, 403},
			{"vault, status", r.component(t, "vault"), get, 200},
			{"vault, raise", r.component(t, "vault"), raise, 403},
			{"claim key without certificate", r.keyClient(t, r.claimK), get, 403},
			{"claim key comes back", r.keyClient(t, r.claimK), raise, 200},
			{"no certificate", r.keyClient(t, nil), get, 401},
			{"another key", r.keyClient(t, key(t)), raise, 401},
			{"operator of another mesh by its own key", foreign, get, 403},
			{"component of another mesh", foreignComponent, get, 401},
			{"root", root, put, 200},
			{"root, call", root, call, 200},
		})
	})
	t.Run("expired", func(t *testing.T) {
		op, comp := r.operator(t), r.component(t, "vault")
		if err := get(op); err != nil { // the connection is open before the time has come
			t.Fatal(err)
		}
		r.ahead.Store(int64(6 * 366 * 24 * time.Hour))
		defer r.ahead.Store(0)
		if err := get(op); status(err) != 403 || !strings.Contains(err.Error(), "expired") {
			t.Errorf("operator: %v", err)
		}
		if err := get(comp); status(err) != 401 || !strings.Contains(err.Error(), "expired") {
			t.Errorf("component: %v", err)
		}
	})
}

// The client's side of trust.
func TestWrongServer(t *testing.T) {
	r := newRig(t)
	ctx := context.Background()
	pin := r.dial(t, r.addr, hostapi.Options{NodeKey: tlsid.Fingerprint(key(t).Public())})
	var pe *tlsid.PinError
	if err := pin.Ping(ctx); !errors.As(err, &pe) {
		t.Errorf("another node's key: %v", err)
	}
	r.raise(t)
	if err := r.keyClient(t, nil).Ping(ctx); err != nil {
		t.Errorf("the pin does not hold after the raise: %v", err)
	}
	m, _ := r.auth.Membership()
	cred, err := tlsid.Parse([]byte(m.Operator), tlsid.MarshalPrivateKey(r.claimK), []byte(m.CA))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.dial(t, r.addr, hostapi.Options{Credentials: tlsid.Fixed(cred), Node: "beta"}).Ping(ctx); err == nil || !strings.Contains(err.Error(), "alpha") {
		t.Errorf("another node's name: %v", err)
	}
	other, err := identity.Open(t.TempDir(), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Create("home", "alpha", key(t), r.door.Claim()); err != nil {
		t.Fatal(err)
	}
	om, _ := other.Membership()
	if err := r.identityClient(t, []byte(om.Operator), tlsid.MarshalPrivateKey(r.claimK), []byte(om.CA)).Ping(ctx); !errors.Is(err, tlsid.ErrForeign) {
		t.Errorf("another mesh of the same name: %v", err)
	}
	if _, err := hostapi.Dial(r.addr, hostapi.Options{}); err == nil {
		t.Error("a client that trusts anybody can be made")
	}
	for _, bad := range []string{"", "host:0", "host:99999", "host:http", "a/b:1", "user@host"} {
		if _, err := hostapi.Dial(bad, hostapi.Options{NodeKey: "x"}); err == nil {
			t.Errorf("address %q is taken", bad)
		}
	}
}

// Another uid on the unix socket: a helper process drops to it and asks.
func TestPeer(t *testing.T) {
	if s := os.Getenv("API_TEST_SOCKET"); s != "" {
		c, err := hostapi.Dial(s, hostapi.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, err = c.Status(context.Background())
		os.Stdout.WriteString("status " + http.StatusText(status(err)) + "\n")
		err = c.Declare(context.Background(), &mesh.Declaration{Mesh: "home", Node: "alpha", Resources: []mesh.Declared{}})
		os.Stdout.WriteString("declare " + http.StatusText(status(err)) + "\n")
		var echo struct{ Caller string }
		c.Call(context.Background(), "controller", "status", nil, &echo)
		os.Stdout.WriteString("caller " + echo.Caller + "\n")
		return
	}
	if os.Getuid() != 0 {
		t.Skip("only root can become another uid")
	}
	r := newRig(t)
	r.raise(t)
	for dir := r.socket; dir != "/"; dir = dir[:max(strings.LastIndex(dir, "/"), 1)] {
		if strings.HasPrefix(dir, os.TempDir()+"/") && dir != r.socket {
			os.Chmod(dir, 0o755) // so that the other uid can reach the socket
		}
		if dir == "/" || !strings.Contains(dir[1:], "/") {
			break
		}
	}
	r.super.accounts[7001], r.super.accounts[7002] = "controller", "vault"
	exe, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir() + "/peer"
	if err := os.WriteFile(bin, exe, 0o755); err != nil {
		t.Fatal(err)
	}
	os.Chmod(bin[:strings.LastIndex(bin, "/")], 0o755)
	for _, tc := range []struct {
		name string
		uid  uint32
		want []string
	}{
		{"controller's account", 7001, []string{"status OK", "declare OK", "caller kingpost://home/component/controller"}},
		{"vault's account", 7002, []string{"status OK", "declare Forbidden", "caller kingpost://home/component/vault"}},
		{"somebody", 7003, []string{"status Forbidden", "declare Forbidden", "caller \n"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cmd := exec.Command(bin, "-test.run=^TestPeer$")
			cmd.Dir = "/"
			cmd.Env = append(os.Environ(), "API_TEST_SOCKET="+r.socket)
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: tc.uid, Gid: tc.uid}}
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			for _, w := range tc.want {
				if !strings.Contains(string(out), w) {
					t.Errorf("want %q in\n%s", w, out)
				}
			}
		})
	}
}

func TestCall(t *testing.T) {
	r := newRig(t)
	r.raise(t)
	ctx := context.Background()
	c := r.operator(t)
	var echo struct {
		Path, Caller string
		Body         struct {
			Probe  bool
			Params map[string]int
		}
	}
	if err := c.Call(ctx, "controller", "plan", map[string]int{"n": 1}, &echo, mesh.Probe()); err != nil {
		t.Fatal(err)
	}
	if echo.Path != "/verbs/plan" || echo.Caller != "kingpost://home/operator/operator" || !echo.Body.Probe || echo.Body.Params["n"] != 1 {
		t.Errorf("the holder was told %+v", echo)
	}
	r.super.declared = &mesh.Declaration{Resources: []mesh.Declared{{Module: "controller", Resource: mesh.Resource{ID: "server", Seats: []string{"gone"}}}}}
	for _, tc := range []struct{ name, seat, verb, code, says string }{
		{"refused by the holder", "controller", "refuse", mesh.CodeDenied, "not you"},
		{"garbage", "controller", "garbage", mesh.CodeUnavailable, "no call response"},
		{"broken", "controller", "break", mesh.CodeUnavailable, "no call response"},
		{"declared but not running", "gone", "ping", mesh.CodeUnavailable, "controller/server should hold it and is backoff (exit code 3)"},
		{"not declared", "none", "ping", mesh.CodeUnavailable, "nothing that is declared"},
		{"bad seat", "Up", "ping", mesh.CodeBadParams, "lower-case"},
		{"bad verb", "controller", "..", mesh.CodeBadParams, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := c.Call(ctx, tc.seat, tc.verb, nil, nil)
			var ce *mesh.CallError
			if tc.verb == ".." { // the path is cleaned on the way; it must only not get through
				if err == nil {
					t.Error("accepted")
				}
				return
			}
			if !errors.As(err, &ce) || ce.Code != tc.code || !strings.Contains(ce.Message, tc.says) {
				t.Errorf("got %v", err)
			}
		})
	}
	t.Run("given up", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		if err := c.Call(ctx, "controller", "hang", nil, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
}

func TestBodies(t *testing.T) {
	r := newRig(t)
	c := r.dial(t, r.socket, hostapi.Options{})
	huge := `{"mesh":"home","node":"alpha","resources":[` + strings.Repeat(" ", maxDeclaration) + `]}`
	for _, tc := range []struct {
		name, method, path, body string
		want                     int
	}{
		{"no JSON", "PUT", "/v1/declaration", "hello", 400},
		{"empty", "PUT", "/v1/declaration", "", 400},
		{"unknown field", "PUT", "/v1/declaration", `{"mesh":"home","node":"alpha","resources":[],"x":1}`, 400},
		{"too large", "PUT", "/v1/declaration", huge, 413},
		{"root account", "PUT", "/v1/declaration", `{"mesh":"home","node":"alpha","resources":[{"module":"m","id":"a","type":"process","bundle":"b","digest":"sha256:` + strings.Repeat("a", 64) + `","account":"root"}]}`, 400},
		{"power: unknown action", "POST", "/v1/power", `{"action":"explode"}`, 400},
		{"reset: no name", "POST", "/v1/reset", `{"keepClaim":true}`, 400},
		{"reset: unknown key", "POST", "/v1/reset", `{"name":"alpha","yes":true}`, 400},
		{"power: too large", "POST", "/v1/power", `{"action":"` + strings.Repeat("a", maxSmall) + `"}`, 413},
		{"raise: twice a key", "POST", "/v1/raise", `{"mesh":"home","mesh":"away"}`, 400},
		{"wrong method", "DELETE", "/v1/declaration", "", 405},
		{"nothing there", "GET", "/v3/x", "", 404},
		{"logs: bad name", "GET", "/v1/logs/UP", "", 400},
		{"logs: bad since", "GET", "/v1/logs/m?since=yesterday", "", 400},
		{"logs: bad bytes", "GET", "/v1/logs/m?bytes=-1", "", 400},
		{"logs: bad follow", "GET", "/v1/logs/m?follow=maybe", "", 400},
	} {
		t.Run(tc.name, func(t *testing.T) {
			req, err := http.NewRequest(tc.method, c.BaseURL()+tc.path, strings.NewReader(tc.body))
			if err != nil {
				t.Fatal(err)
			}
			resp, err := c.HTTP().Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			b, _ := io.ReadAll(resp.Body)
			if resp.StatusCode != tc.want || !bytes.Contains(b, []byte(`"message":`)) {
				t.Errorf("got %d %s, want %d", resp.StatusCode, b, tc.want)
			}
		})
	}
}

func TestConflictAndPower(t *testing.T) {
	r := newRig(t)
	ctx := context.Background()
	c := r.dial(t, r.socket, hostapi.Options{})
	if d, err := c.Declaration(ctx); d != nil || err != nil {
		t.Errorf("before anything is declared: %v, %v", d, err)
	}
	d := &mesh.Declaration{Mesh: "home", Node: "alpha", Version: mesh.Version{Epoch: 2, Revision: 1}, Resources: []mesh.Declared{}}
	if err := c.Declare(ctx, d); err != nil {
		t.Fatal(err)
	}
	d.Epoch = 1
	if err := c.Declare(ctx, d); status(err) != 409 {
		t.Errorf("an older declaration: %v", err)
	}
	if got, err := c.Declaration(ctx); err != nil || got.Epoch != 2 {
		t.Errorf("got %+v, %v", got, err)
	}
	if err := c.Clear(ctx, "controller/server"); err != nil || len(r.super.cleared) != 1 || r.super.cleared[0] != "controller/server" {
		t.Errorf("clear: %v, %v", err, r.super.cleared)
	}
	if err := c.Reset(ctx, hostapi.ResetRequest{Name: "alpha"}); err != nil || <-r.power != "reset alpha" {
		t.Errorf("reset: %v", err)
	}
	if err := c.Power(ctx, "reboot"); err != nil || <-r.power != "reboot" {
		t.Error(err)
	}
}

func TestRaiseStream(t *testing.T) {
	r := newRig(t)
	ctx := context.Background()
	c := r.keyClient(t, r.claimK)
	s, err := c.StartRaise(ctx, hostapi.RaiseRequest{Mesh: "home"})
	if err != nil || s.State != "running" {
		t.Fatalf("%+v, %v", s, err)
	}
	if _, err := c.StartRaise(ctx, hostapi.RaiseRequest{Mesh: "away"}); status(err) != 409 {
		t.Errorf("another mesh: %v", err)
	}
	// A reader that is slower than the raise sees the last state all the same, and nothing is queued.
	var seen []int
	first := true
	err = c.FollowRaise(ctx, func(s hostapi.RaiseStatus) error {
		seen = append(seen, s.Step)
		if first {
			first = false
			for i := 2; i <= 10; i++ {
				r.raises.set(hostapi.RaiseStatus{Mesh: "home", State: "running", Step: i})
			}
			r.raises.set(hostapi.RaiseStatus{Mesh: "home", State: "done", Step: 10})
		}
		return nil
	})
	if err != nil || seen[len(seen)-1] != 10 {
		t.Errorf("saw %v, %v", seen, err)
	}
	if s, err := c.StartRaise(ctx, hostapi.RaiseRequest{Mesh: "home"}); err != nil || s.State != "done" {
		t.Errorf("again on a raised node: %+v, %v", s, err)
	}
	r.raises.set(hostapi.RaiseStatus{Mesh: "home", State: "running", Step: 3})
	stop := errors.New("enough")
	if err := c.FollowRaise(ctx, func(hostapi.RaiseStatus) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("got %v", err)
	}
}

func TestLogs(t *testing.T) {
	r := newRig(t)
	r.raise(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var got supervise.LogOptions
	var written atomic.Int64
	r.super.log = func(ctx context.Context, key string, o supervise.LogOptions) (io.ReadCloser, error) {
		got = o
		if key == "absent" {
			return nil, &mesh.CallError{Code: mesh.CodeNotFound, Message: "no such module"}
		}
		if !o.Follow {
			return io.NopCloser(strings.NewReader("one\ntwo\n")), nil
		}
		pr, pw := io.Pipe()
		go func() {
			defer pw.Close()
			for ctx.Err() == nil {
				n, err := pw.Write(bytes.Repeat([]byte("x"), 64<<10))
				written.Add(int64(n))
				if err != nil {
					return
				}
			}
		}()
		return pr, nil
	}
	c := r.operator(t)
	rd, err := c.Logs(ctx, "m/a", hostapi.LogQuery{Since: time.Minute, Bytes: 100})
	if err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(rd)
	rd.Close()
	if string(b) != "one\ntwo\n" || got.Bytes != 100 || time.Since(got.Since) > 2*time.Minute {
		t.Errorf("%q with %+v", b, got)
	}
	if _, err := c.Logs(ctx, "absent", hostapi.LogQuery{}); status(err) != 404 {
		t.Errorf("absent: %v", err)
	}
	if _, err := r.component(t, "vault").Logs(ctx, "controller", hostapi.LogQuery{}); status(err) != 403 {
		t.Errorf("another module's log: %v", err)
	}
	if rd, err := r.component(t, "vault").Logs(ctx, "vault", hostapi.LogQuery{}); err != nil {
		t.Errorf("its own log: %v", err)
	} else {
		rd.Close()
	}
	// Nobody reads: the writer must come to a halt far below what it would write in that time.
	rd, err = c.Logs(ctx, "m", hostapi.LogQuery{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	one := make([]byte, 1)
	if _, err := io.ReadFull(rd, one); err != nil {
		t.Fatal(err)
	}
	time.Sleep(300 * time.Millisecond)
	rd.Close()
	if n := written.Load(); n > 16<<20 {
		t.Errorf("%d bytes were taken for a reader that does not read", n)
	}
}
