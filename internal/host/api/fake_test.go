package api

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/sirupsen/logrus"
	"go.uber.org/goleak"

	"kingpost/internal/host/door"
	"kingpost/internal/host/identity"
	"kingpost/internal/host/route"
	"kingpost/internal/host/storefront"
	"kingpost/internal/host/supervise"
	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
	"kingpost/internal/mesh/tlsid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeSupervisor keeps a declaration and has sockets for seats.
type fakeSupervisor struct {
	supervise.API // what a test does not need is nil and panics

	mu       sync.Mutex
	declared *mesh.Declaration
	sockets  map[string]string
	accounts map[int]string
	log      func(ctx context.Context, key string, o supervise.LogOptions) (io.ReadCloser, error)
	cleared  []string
}

func (f *fakeSupervisor) Declare(_ context.Context, d mesh.Declaration) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.declared != nil && d.Version.Less(f.declared.Version) {
		return &mesh.CallError{Code: mesh.CodeConflict, Message: "an older declaration"}
	}
	f.declared = &d
	return nil
}

func (f *fakeSupervisor) Declaration() (mesh.Declaration, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.declared == nil {
		return mesh.Declaration{}, false
	}
	return *f.declared, true
}

func (f *fakeSupervisor) Status() hostapi.Status {
	return hostapi.Status{Resources: []hostapi.ResourceStatus{{Key: "controller/server", State: "backoff", Reason: "exit code 3"}}}
}

func (f *fakeSupervisor) SeatHolder(seat string) (string, bool) {
	_, ok := f.sockets[seat]
	return seat + "/server", ok
}

func (f *fakeSupervisor) DialSeat(ctx context.Context, seat string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "unix", f.sockets[seat])
}

func (f *fakeSupervisor) AccountOf(uid int) (string, bool) {
	m, ok := f.accounts[uid]
	return m, ok
}

func (f *fakeSupervisor) Clear(key string) error {
	f.cleared = append(f.cleared, key)
	return nil
}

func (f *fakeSupervisor) Logs(ctx context.Context, key string, o supervise.LogOptions) (io.ReadCloser, error) {
	return f.log(ctx, key, o)
}

// fakeRaises is a raise that goes through given statuses.
type fakeRaises struct {
	mu      sync.Mutex
	status  hostapi.RaiseStatus
	changed chan struct{}
}

func (f *fakeRaises) set(s hostapi.RaiseStatus) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status = s
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fakeRaises) Start(_ context.Context, r hostapi.RaiseRequest) (hostapi.RaiseStatus, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.status.Mesh != "" && f.status.Mesh != r.Mesh {
		return f.status, &hostapi.Error{Status: http.StatusConflict, Code: mesh.CodeConflict, Message: "another mesh"}
	}
	if f.status.State != "done" {
		f.status.Mesh, f.status.State = r.Mesh, "running"
	}
	return f.status, nil
}

func (f *fakeRaises) Status() hostapi.RaiseStatus {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status
}

func (f *fakeRaises) Watch(ctx context.Context) <-chan hostapi.RaiseStatus {
	out := make(chan hostapi.RaiseStatus)
	go func() {
		defer close(out)
		for {
			f.mu.Lock()
			s, changed := f.status, f.changed
			f.mu.Unlock()
			select {
			case out <- s:
			case <-ctx.Done():
				return
			}
			if s.State == "done" {
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

// rig is a whole API on a unix socket and over TLS, with a store and one seat behind it.
type rig struct {
	super  *fakeSupervisor
	raises *fakeRaises
	auth   *identity.Authority
	door   *door.Door
	nodeK  ed25519.PrivateKey
	claimK ed25519.PrivateKey
	socket string
	addr   string
	power  chan string
	ahead  atomic.Int64 // how much the node's clock is ahead
	log    *strings.Builder
}

func (r *rig) now() time.Time { return time.Now().Add(time.Duration(r.ahead.Load())) }

func key(t testing.TB) ed25519.PrivateKey {
	t.Helper()
	_, k, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func newRig(t testing.TB) *rig {
	t.Helper()
	dir := t.TempDir()
	r := &rig{
		super:  &fakeSupervisor{sockets: map[string]string{}, accounts: map[int]string{}},
		raises: &fakeRaises{status: hostapi.RaiseStatus{State: "none", Step: 1}, changed: make(chan struct{})},
		nodeK:  key(t), claimK: key(t), socket: filepath.Join(dir, "host.sock"), power: make(chan string, 1), log: &strings.Builder{},
	}
	var err error
	if r.auth, err = identity.Open(filepath.Join(dir, "identity"), r.now); err != nil {
		t.Fatal(err)
	}
	r.door = &door.Door{
		Mesh: r.auth.Mesh, CA: r.auth.CA, Operator: r.auth.Operator, NodeName: func() string { return "alpha" },
		Claim:     func() ed25519.PublicKey { return r.claimK.Public().(ed25519.PublicKey) },
		AccountOf: r.super.AccountOf, Now: r.now,
	}
	log := logrus.New()
	log.SetOutput(&lockedWriter{w: r.log})
	store := r.serveUnix(t, filepath.Join(dir, "store.sock"), registry.New(registry.Logger(stdlog.New(io.Discard, "", 0))))
	r.super.sockets["controller"] = r.serveUnix(t, filepath.Join(dir, "seat.sock"), http.HandlerFunc(echoSeat))
	dial := func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "unix", store) }
	s := New(Config{
		Door: r.door, Supervisor: r.super, Raises: func() Raises { return r.raises },
		Router: &route.Router{Holder: r.super.SeatHolder, Dial: r.super.DialSeat, Declaration: r.super.Declaration, Status: r.super.Status, Self: r.door.Self},
		Store:  storefront.New(storefront.Config{Door: r.door, Caller: CallerOf, Dial: dial, Log: log}),
		Node:   func() hostapi.Node { return hostapi.Node{Name: "alpha"} },
		Disks:  func(context.Context) (hostapi.Disks, error) { return disksAnswer(), nil },
		Power:  func(a string) error { r.power <- a; return nil },
		Reset:  func(q hostapi.ResetRequest) error { r.power <- "reset " + q.Name; return nil },
		Log:    log, Now: r.now,
	})
	ctx, cancel := context.WithCancel(context.Background())
	ul, err := ListenUnix(r.socket)
	if err != nil {
		t.Fatal(err)
	}
	tl, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.addr = tl.Addr().String()
	self, err := tlsid.SelfSigned(r.nodeK, "kp-000000")
	if err != nil {
		t.Fatal(err)
	}
	cert := func() (*tls.Certificate, error) {
		if c, err := r.auth.Node(ctx, r.nodeK); err == nil {
			return &c.Certificate, nil
		}
		return &self, nil
	}
	var wg sync.WaitGroup
	for _, f := range []func() error{
		func() error { return ServeUnix(ctx, ul, r.door, s.Handler()) },
		func() error { return ServeTLS(ctx, tl, cert, r.door, s.Handler()) },
	} {
		wg.Go(func() {
			if err := f(); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() { cancel(); wg.Wait() })
	return r
}

func (r *rig) serveUnix(t testing.TB, path string, h http.Handler) string {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: h}}
	s.Start()
	t.Cleanup(s.Close)
	return path
}

// echoSeat answers each verb with what it was told.
func echoSeat(w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	switch r.URL.Path {
	case "/verbs/garbage":
		io.WriteString(w, "<html>")
	case "/verbs/break":
		w.WriteHeader(http.StatusInternalServerError)
	case "/verbs/refuse":
		io.WriteString(w, `{"error":{"code":"denied","message":"not you"}}`)
	case "/verbs/hang":
		<-r.Context().Done()
	default:
		fmt.Fprintf(w, `{"result":{"path":%q,"caller":%q,"body":%s}}`, r.URL.Path, r.Header.Get(mesh.HeaderCaller), b)
	}
}

func (r *rig) raise(t testing.TB) {
	t.Helper()
	if err := r.auth.Create("home", "alpha", r.nodeK, r.claimK.Public().(ed25519.PublicKey)); err != nil {
		t.Fatal(err)
	}
}

func (r *rig) dial(t testing.TB, target string, o hostapi.Options) *hostapi.Client {
	t.Helper()
	c, err := hostapi.Dial(target, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// claimed is a client with the key k, before there is a mesh.
func (r *rig) keyClient(t testing.TB, k ed25519.PrivateKey) *hostapi.Client {
	t.Helper()
	o := hostapi.Options{NodeKey: tlsid.Fingerprint(r.nodeK.Public())}
	if k != nil {
		c, err := tlsid.SelfSigned(k, "operator")
		if err != nil {
			t.Fatal(err)
		}
		o.Key = &c
	}
	return r.dial(t, r.addr, o)
}

func (r *rig) operator(t testing.TB) *hostapi.Client {
	t.Helper()
	m, err := r.auth.Membership()
	if err != nil {
		t.Fatal(err)
	}
	return r.identityClient(t, []byte(m.Operator), tlsid.MarshalPrivateKey(r.claimK), []byte(m.CA))
}

func (r *rig) component(t testing.TB, module string) *hostapi.Client {
	t.Helper()
	cert, k, ca, err := r.auth.Issue(context.Background(), module)
	if err != nil {
		t.Fatal(err)
	}
	return r.identityClient(t, cert, k, ca)
}

func (r *rig) identityClient(t testing.TB, cert, k, ca []byte) *hostapi.Client {
	t.Helper()
	cred, err := tlsid.Parse(cert, k, ca)
	if err != nil {
		t.Fatal(err)
	}
	return r.dial(t, r.addr, hostapi.Options{Credentials: tlsid.Fixed(cred), Node: "alpha"})
}

type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}
