package host

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/sirupsen/logrus"
	"go.uber.org/goleak"

	"kingpost/internal/host/supervise"
	"kingpost/internal/mesh"
	"kingpost/internal/mesh/artifact"
	"kingpost/internal/mesh/hostapi"
	"kingpost/internal/mesh/tlsid"
	"kingpost/internal/mesh/verbs"
	"kingpost/internal/release"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeSupervisor has sockets for seats; what a test does not need is nil and panics.
type fakeSupervisor struct {
	supervise.API
	mu      sync.Mutex
	changed chan struct{}
	sockets map[string]string
	stopped bool
}

func (f *fakeSupervisor) Run(ctx context.Context) error { <-ctx.Done(); return nil }

func (f *fakeSupervisor) Changed() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

func (f *fakeSupervisor) set(seat, socket string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sockets[seat] = socket
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fakeSupervisor) SeatHolder(seat string) (string, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return seat + "/server", f.sockets[seat] != ""
}

func (f *fakeSupervisor) DialSeat(ctx context.Context, seat string) (net.Conn, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sockets[seat] == "" {
		return nil, errors.New("nobody holds the seat " + seat)
	}
	return new(net.Dialer).DialContext(ctx, "unix", f.sockets[seat])
}

func (f *fakeSupervisor) StopAll(context.Context) error         { f.stopped = true; return nil }
func (f *fakeSupervisor) OwnChanged()                           {}
func (f *fakeSupervisor) Warnings() []string                    { return nil }
func (f *fakeSupervisor) AccountOf(int) (string, bool)          { return "", false }
func (f *fakeSupervisor) Declaration() (mesh.Declaration, bool) { return mesh.Declaration{}, false }
func (f *fakeSupervisor) Status() hostapi.Status                { return hostapi.Status{} }
func (f *fakeSupervisor) Declare(context.Context, mesh.Declaration) error {
	return &mesh.CallError{Code: mesh.CodeConflict, Message: "older"}
}

// idleRaise is a raise that nobody asked for.
type idleRaise struct{}

func (idleRaise) Run(ctx context.Context) error { <-ctx.Done(); return nil }
func (idleRaise) Status() hostapi.RaiseStatus   { return hostapi.RaiseStatus{State: "none"} }
func (idleRaise) Start(context.Context, hostapi.RaiseRequest) (hostapi.RaiseStatus, error) {
	return hostapi.RaiseStatus{}, nil
}
func (idleRaise) Watch(context.Context) <-chan hostapi.RaiseStatus {
	c := make(chan hostapi.RaiseStatus)
	close(c)
	return c
}

type testHost struct {
	*Host
	super  *fakeSupervisor
	node   *RaiseNode
	claim  ed25519.PrivateKey
	api    string
	store  string
	ready  chan struct{}
	done   chan error
	signal chan string
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// start runs a host below a folder of its own, or root if that is given.
func start(t *testing.T, root string) *testHost {
	t.Helper()
	if root == "" {
		root = t.TempDir()
	}
	_, claim, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p := PathsBelow(root)
	for _, d := range []string{filepath.Dir(p.NodeConfig), p.State, p.Run} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(p.NodeConfig); err != nil {
		conf := "hostname: alpha\nclaim: " + tlsid.FormatPublicKey(claim.Public().(ed25519.PublicKey)) + "\n"
		if err := os.WriteFile(p.NodeConfig, []byte(conf), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	logger := logrus.New()
	logger.SetOutput(io.Discard)
	th := &testHost{
		super: &fakeSupervisor{changed: make(chan struct{}), sockets: map[string]string{}},
		claim: claim, api: freePort(t), store: freePort(t),
		ready: make(chan struct{}), done: make(chan error, 1), signal: make(chan string, 1),
	}
	th.Host, err = New(Config{
		Paths:           p,
		Supervisor:      func(supervise.Config) (supervise.API, error) { return th.super, nil },
		Raiser:          func(n *RaiseNode, _, _ string) (Raiser, error) { return idleRaise{}, nil },
		ParseNodeConfig: release.ParseNodeConfig,
		ListenAPI:       th.api, ListenStore: th.store, BrokerAddress: "127.0.0.1:1",
		Signal: func(a string) error { th.signal <- a; return nil },
		Notify: func(lines ...string) error {
			for _, l := range lines {
				if l == "READY=1" {
					close(th.ready)
				}
			}
			return nil
		},
		Digest: "baked-in", Log: logger, Now: time.Now,
	})
	if err != nil {
		t.Fatal(err)
	}
	th.node = &RaiseNode{th.Host}
	ctx, cancel := context.WithCancel(context.Background())
	go func() { th.done <- th.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-th.done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(10 * time.Second):
			t.Error("the host does not end")
		}
	})
	select {
	case <-th.ready:
	case <-time.After(10 * time.Second):
		t.Fatal("the host is not ready")
	}
	return th
}

func (th *testHost) dial(t *testing.T, target string, o hostapi.Options) *hostapi.Client {
	t.Helper()
	c, err := hostapi.Dial(target, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// eventually waits for what comes by itself.
func eventually(t *testing.T, what string, f func() error) {
	t.Helper()
	var err error
	for range 200 {
		if err = f(); err == nil {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatalf("%s: %v", what, err)
}

func TestHost(t *testing.T) {
	root := t.TempDir()
	th := start(t, root)
	ctx := context.Background()
	local := th.dial(t, th.cfg.Paths.Socket, hostapi.Options{})
	n, err := local.Node(ctx) // at once: READY says that it answers
	if err != nil {
		t.Fatal(err)
	}
	if n.Name != "alpha" || n.State != "claimed" || !n.Claimed || n.Claim != tlsid.Fingerprint(th.claim.Public()) || n.DataSize == 0 || n.Mesh != "" {
		t.Errorf("%+v", n)
	}
	self, err := tlsid.SelfSigned(th.claim, "operator")
	if err != nil {
		t.Fatal(err)
	}
	claim := th.dial(t, th.api, hostapi.Options{NodeKey: n.Key, Key: &self})
	eventually(t, "claim key over TLS", func() error { _, err := claim.Raise(ctx); return err })

	// The mesh comes to be while connections are open.
	if err := th.node.CreateMesh(ctx, "home", ""); err != nil {
		t.Fatal(err)
	}
	if err := th.node.CreateMesh(ctx, "home", ""); err != nil {
		t.Errorf("again: %v", err)
	}
	if err := th.node.CreateMesh(ctx, "away", ""); err == nil {
		t.Error("a second mesh")
	}
	m, err := th.node.Membership(ctx)
	if err != nil || m.Mesh != "home" || m.Node != "alpha" {
		t.Fatalf("%+v, %v", m, err)
	}
	cred, err := tlsid.Parse([]byte(m.Operator), tlsid.MarshalPrivateKey(th.claim), []byte(m.CA))
	if err != nil {
		t.Fatal(err)
	}
	opts := hostapi.Options{Credentials: tlsid.Fixed(cred), Node: "alpha"}
	operator := th.dial(t, th.api, opts)
	if _, err := operator.Status(ctx); err != nil {
		t.Errorf("operator: %v", err)
	}
	if _, err := claim.Status(ctx); err == nil {
		t.Error("the claim key keeps its power on an open connection")
	}
	if n, err := operator.Node(ctx); err != nil || n.State != "raising" || n.Mesh != "home" {
		t.Errorf("%+v, %v", n, err)
	}

	t.Run("store port", func(t *testing.T) {
		front := th.dial(t, th.store, opts)
		ping := func() error { return (&artifact.Client{HTTP: front.HTTP(), Base: front.BaseURL()}).Ping(ctx) }
		if ping() == nil {
			t.Error("it is open before a store runs")
		}
		sock := serve(t, registry.New(registry.Logger(log.New(io.Discard, "", 0))))
		th.super.set("store", sock)
		eventually(t, "the store's port", ping)
		if user, err := th.node.PortUser(ctx, port(t, th.store)); err != nil || user != "" {
			t.Errorf("the host itself is in the way: %q, %v", user, err)
		}
		th.super.set("store", "")
		eventually(t, "closing the store's port", func() error {
			c, err := net.Dial("tcp", th.store)
			if err == nil {
				c.Close()
				return errors.New("still open")
			}
			return nil
		})
	})
	t.Run("declare is refused in the API's form", func(t *testing.T) {
		var he *hostapi.Error
		if err := th.node.Declare(ctx, mesh.Declaration{}); !errors.As(err, &he) || he.Code != mesh.CodeConflict || he.Status != 409 {
			t.Errorf("%v", err)
		}
	})
	t.Run("changes", func(t *testing.T) {
		cctx, cancel := context.WithCancel(ctx)
		c := th.node.Changes(cctx)
		th.super.set("x", "y")
		eventually(t, "a change", func() error {
			select {
			case <-c:
				return nil
			default:
				th.super.set("x", "z")
				return errors.New("none came")
			}
		})
		cancel()
	})
	t.Run("power", func(t *testing.T) {
		if err := operator.Power(ctx, "reboot"); err != nil {
			t.Fatal(err)
		}
		if a := <-th.signal; a != "reboot" || !th.super.stopped {
			t.Errorf("%s, stopped %v", a, th.super.stopped)
		}
		if err := <-th.done; err != nil {
			t.Error(err)
		}
		th.done <- nil
	})
	t.Run("the next start", func(t *testing.T) {
		if err := os.WriteFile(th.cfg.Paths.NodeConfig, []byte("hostname: beta\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		again := start(t, root)
		n := again.Node()
		if n.Name != "alpha" || n.ID != th.self.ID || n.Mesh != "home" || !n.Claimed || len(n.Warnings) != 2 {
			t.Errorf("%+v", n)
		}
	})
}

func port(t *testing.T, addr string) int {
	t.Helper()
	a, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	return a.Port
}

func serve(t *testing.T, h http.Handler) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: h}}
	s.Start()
	t.Cleanup(s.Close)
	return path
}

// layer packs a program into a seed of a bundle, an image over the same layer, and a module.
func writeSeed(t *testing.T, dir string) {
	t.Helper()
	ctx := context.Background()
	content := bytes.Repeat([]byte("program "), 10000)
	when := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	var buf bytes.Buffer
	layer, err := artifact.PackLayer(ctx, &buf, []artifact.File{{
		Path: "bin/tool", Mode: 0o755, Size: int64(len(content)),
		Open: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil },
	}}, when)
	if err != nil {
		t.Fatal(err)
	}
	open := func(context.Context) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil }
	o := artifact.Origin{Version: "0.1.0", Arch: "amd64", Created: when}
	w, err := artifact.NewLayoutWriter(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []func() (*artifact.Artifact, error){
		func() (*artifact.Artifact, error) { return artifact.NewBundle("tool", o, layer, open) },
		func() (*artifact.Artifact, error) {
			return artifact.NewImage("tool", o, artifact.ImageConfig{Entrypoint: []string{"/bin/tool"}}, layer, open)
		},
		func() (*artifact.Artifact, error) {
			return artifact.NewModule("tool", o, []byte(`{"module":"tool","resources":[{"id":"a","type":"process","bundle":"tool"}]}`))
		},
	} {
		a, err := f()
		if err == nil {
			err = w.Add(ctx, a)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestSeed(t *testing.T) {
	th := start(t, "")
	ctx := context.Background()
	if _, err := th.node.SeedEntries(ctx); err == nil {
		t.Error("a seed that is not there has entries")
	}
	seed := th.cfg.Paths.Seed
	writeSeed(t, seed)
	if err := th.node.VerifySeed(ctx, nil); err != nil {
		t.Fatal(err)
	}
	ms, err := th.node.SeedModules(ctx)
	if err != nil || len(ms) != 1 || ms[0].Module != "tool" {
		t.Fatalf("%+v, %v", ms, err)
	}
	entries, err := th.node.SeedEntries(ctx)
	if err != nil || len(entries) != 3 {
		t.Fatalf("%+v, %v", entries, err)
	}
	if err := th.node.PushSeed(ctx, entries[0]); err == nil {
		t.Error("pushed into no store")
	}
	th.super.set("store", serve(t, registry.New(registry.Logger(log.New(io.Discard, "", 0)))))
	read := map[string]bool{}
	for _, e := range entries {
		if err := th.node.ReadStored(ctx, e, map[string]bool{}); err == nil {
			t.Errorf("%s is read from an empty store", e.Ref)
		}
		for range 2 {
			if err := th.node.PushSeed(ctx, e); err != nil {
				t.Fatal(err)
			}
		}
		if err := th.node.ReadStored(ctx, e, read); err != nil {
			t.Errorf("%s: %v", e.Ref, err)
		}
		if e.Size < 100 {
			t.Errorf("%s has %d bytes", e.Ref, e.Size)
		}
		e.Digest = "sha256:" + strings.Repeat("0", 64)
		if err := th.node.ReadStored(ctx, e, read); err == nil {
			t.Errorf("%s: another digest is accepted", e.Ref)
		}
	}
	// One byte, anywhere.
	blobs, _ := filepath.Glob(filepath.Join(seed, "blobs/sha256/*"))
	for _, b := range blobs {
		raw, err := os.ReadFile(b)
		if err != nil {
			t.Fatal(err)
		}
		raw[len(raw)/2] ^= 1
		os.Chmod(b, 0o644)
		os.WriteFile(b, raw, 0o644)
		if err := th.node.VerifySeed(ctx, nil); err == nil {
			t.Errorf("one byte of %s was changed and nobody saw it", filepath.Base(b))
		}
		raw[len(raw)/2] ^= 1
		os.WriteFile(b, raw, 0o644)
	}
}

// vaultSeat is a vault that keeps what it is given.
type vaultSeat struct {
	mu      sync.Mutex
	secrets map[string]string
	callers []string
}

func (v *vaultSeat) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.callers = append(v.callers, r.Header.Get(mesh.HeaderCaller))
	var req mesh.CallRequest
	json.NewDecoder(r.Body).Decode(&req)
	switch r.URL.Path {
	case "/verbs/put":
		var p verbs.PutParams
		json.Unmarshal(req.Params, &p)
		v.secrets[p.Name] = p.Value
		io.WriteString(w, `{"result":{}}`)
	case "/verbs/get":
		var p verbs.GetParams
		json.Unmarshal(req.Params, &p)
		b, _ := json.Marshal(verbs.GetResult{Name: p.Name, Version: 1, Value: v.secrets[p.Name]})
		json.NewEncoder(w).Encode(mesh.CallResponse{Result: b})
	}
}

func TestKeepCA(t *testing.T) {
	th := start(t, "")
	ctx := context.Background()
	if err := th.node.KeepCA(ctx); err == nil {
		t.Error("kept before there is a CA")
	}
	if err := th.node.CreateMesh(ctx, "home", ""); err != nil {
		t.Fatal(err)
	}
	if err := th.node.KeepCA(ctx); err == nil {
		t.Error("kept without a vault")
	}
	v := &vaultSeat{secrets: map[string]string{}}
	th.super.set("vault", serve(t, v))
	for range 2 {
		if err := th.node.KeepCA(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if !strings.Contains(v.secrets[secretCA], "PRIVATE KEY") || v.callers[0] != "kingpost://home/component/host" {
		t.Errorf("the vault was called by %v", v.callers)
	}
	if _, err := os.Stat(filepath.Join(th.cfg.Paths.identity(), "ca.key")); err == nil {
		t.Error("the key is still on disk")
	}
	if _, _, _, err := th.id.Issue(ctx, "newcomer"); err != nil {
		t.Errorf("issue with the vault's key: %v", err)
	}
	th.super.set("vault", "")
	if _, _, _, err := th.id.Issue(ctx, "another"); err == nil || !strings.Contains(err.Error(), "vault") {
		t.Errorf("without the vault: %v", err)
	}
}

func TestPortUser(t *testing.T) {
	th := start(t, "")
	for _, tc := range []struct {
		cgroup string
		ours   bool
	}{
		{"/kingpost/registry.server", true}, {"/kingpost/broker.server", true}, {"/kingpost/web.server", false},
		{"/kingpost/registryx.server", false}, {"/", false}, {"/user/kingpost", false},
	} {
		if got := ourCgroup(tc.cgroup); got != tc.ours {
			t.Errorf("%s: %v", tc.cgroup, got)
		}
	}
	if user, err := th.node.PortUser(context.Background(), port(t, freePort(t))); err != nil || user != "" {
		t.Errorf("a free port: %q, %v", user, err)
	}
}
