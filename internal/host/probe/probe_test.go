package probe

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	"go.uber.org/goleak"

	"kingpost/internal/host/identity"
	"kingpost/internal/mesh"
	"kingpost/internal/mesh/tlsid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type party struct {
	auth     *identity.Authority
	node     ed25519.PrivateKey
	operator ed25519.PrivateKey
}

func newParty(t *testing.T, name string) party {
	t.Helper()
	a, err := identity.Open(t.TempDir(), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	_, node, _ := ed25519.GenerateKey(rand.Reader)
	_, op, _ := ed25519.GenerateKey(rand.Reader)
	if err := a.Create(name, "alpha", node, op.Public().(ed25519.PublicKey)); err != nil {
		t.Fatal(err)
	}
	return party{a, node, op}
}

func (p party) source() (*tlsid.Credentials, error) { return p.auth.Node(context.Background(), p.node) }

// The broker is the real one, built from the same pinned module as the image, with the certificate that
// the host issues and with verification of its clients on.
func TestBroker(t *testing.T) {
	dir := t.TempDir()
	bin := filepath.Join(dir, "nats-server")
	build := exec.Command("go", "build", "-o", bin, "github.com/nats-io/nats-server/v2")
	build.Dir = "../../../images/third-party/broker"
	build.Env = append(os.Environ(), "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build nats-server: %v\n%s", err, out)
	}
	home, away := newParty(t, "home"), newParty(t, "away")
	start := func(t *testing.T, module, extra string) string {
		t.Helper()
		id := t.TempDir()
		cert, key, ca, err := home.auth.Issue(context.Background(), module)
		if err != nil {
			t.Fatal(err)
		}
		for n, b := range map[string][]byte{tlsid.FileCertificate: cert, tlsid.FileKey: key, tlsid.FileCA: ca} {
			if err := os.WriteFile(filepath.Join(id, n), b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		conf := fmt.Sprintf("host: 127.0.0.1\nport: -1\nports_file_dir: %q\ntls { cert_file: %q, key_file: %q, ca_file: %q, verify: true }\n%s\n",
			id, id+"/cert.pem", id+"/key.pem", id+"/ca.pem", strings.ReplaceAll(extra, "DIR", id))
		if err := os.WriteFile(filepath.Join(id, "nats.conf"), []byte(conf), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(bin, "-c", filepath.Join(id, "nats.conf"))
		var log strings.Builder
		cmd.Stderr = &log
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			cmd.Process.Kill()
			cmd.Wait()
			if t.Failed() {
				t.Log(log.String())
			}
		})
		for range 200 {
			if m, _ := filepath.Glob(filepath.Join(id, "*.ports")); len(m) == 1 {
				b, err := os.ReadFile(m[0])
				if _, after, ok := strings.Cut(string(b), "nats://"); ok && err == nil {
					addr, _, _ := strings.Cut(after, "\"")
					return addr
				}
				if _, after, ok := strings.Cut(string(b), "tls://"); ok && err == nil {
					addr, _, _ := strings.Cut(after, "\"")
					return addr
				}
			}
			time.Sleep(25 * time.Millisecond)
		}
		t.Fatal("nats-server does not say where it listens")
		return ""
	}
	js := "jetstream { store_dir: \"DIR/js\" }"
	addr := start(t, "broker", js)
	for _, tc := range []struct {
		name string
		addr string
		src  tlsid.Source
		want string // part of the error, "" for none
	}{
		{"answers", addr, home.source, ""},
		{"client of another mesh", addr, away.source, "not of this mesh"},
		{"server is no broker", start(t, "catalogue", js), home.source, "want the component broker"},
		{"without JetStream", start(t, "broker", ""), home.source, "without JetStream"},
		{"nobody listens", "127.0.0.1:1", home.source, "refused"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := &Broker{Address: tc.addr, Identity: tc.src, Now: time.Now}
			trip, err := b.Trip(context.Background())
			if tc.want == "" {
				if err != nil || trip.Version == "" || trip.Millis <= 0 {
					t.Fatalf("%+v, %v", trip, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("got %v, want %q in it", err, tc.want)
			}
		})
	}
	// It is asked again and again for its health, so a question must leave nothing in its log; a connection
	// that is only opened and closed does.
	t.Run("nothing in its log", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "log")
		addr := start(t, "broker", js+fmt.Sprintf("\nlog_file: %q", file))
		complaints := func() string {
			time.Sleep(100 * time.Millisecond)
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if i := strings.Index(string(b), "[ERR]"); i >= 0 {
				return string(b[i:])
			}
			return ""
		}
		b := &Broker{Address: addr, Identity: home.source, Now: time.Now}
		for range 3 {
			if _, err := b.Trip(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		if c := complaints(); c != "" {
			t.Errorf("it logs %s", c)
		}
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
		for i := 0; complaints() == ""; i++ {
			if i == 50 {
				t.Fatal("a connection that ends at once is not logged, so this test sees nothing")
			}
		}
	})
	// The other direction of trust: the server refuses whoever its CA did not issue.
	t.Run("the broker refuses another mesh", func(t *testing.T) {
		theirs, err := away.source()
		if err != nil {
			t.Fatal(err)
		}
		ours, _ := home.source()
		mixed := &tlsid.Credentials{Certificate: theirs.Certificate, CA: ours.CA}
		b := &Broker{Address: addr, Identity: tlsid.Fixed(mixed), Now: time.Now}
		if _, err := b.Trip(context.Background()); err == nil {
			t.Error("it was let in")
		}
	})
}

func TestStore(t *testing.T) {
	sock := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	srv := &httptest.Server{Listener: l, Config: &http.Server{Handler: registry.New()}}
	srv.Start()
	up := true
	s := &Store{Seat: mesh.SeatStore, Dial: func(ctx context.Context) (net.Conn, error) {
		if !up {
			return nil, errors.New("nobody holds it")
		}
		return new(net.Dialer).DialContext(ctx, "unix", sock)
	}}
	if _, err := s.Ping(context.Background()); err != nil {
		t.Error(err)
	}
	up = false
	if _, err := s.Ping(context.Background()); err == nil {
		t.Error("a store that nobody holds answers")
	}
	up = true
	srv.Close()
	if _, err := s.Ping(context.Background()); err == nil {
		t.Error("a store that is gone answers")
	}
}
