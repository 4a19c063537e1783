package identity

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/tlsid"
)

type clock struct{ t time.Time }

func (c *clock) now() time.Time { return c.t }

func key(t *testing.T) ed25519.PrivateKey {
	t.Helper()
	_, k, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func pub(k ed25519.PrivateKey) ed25519.PublicKey { return k.Public().(ed25519.PublicKey) }

// raised is an authority of the mesh home.
func raised(t *testing.T) (a *Authority, node, operator ed25519.PrivateKey, c *clock, dir string) {
	t.Helper()
	c = &clock{time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)}
	dir = filepath.Join(t.TempDir(), "identity")
	a = open(t, dir, c)
	node, operator = key(t), key(t)
	if err := a.Create("home", "alpha", node, pub(operator)); err != nil {
		t.Fatal(err)
	}
	return a, node, operator, c, dir
}

func open(t *testing.T, dir string, c *clock) *Authority {
	t.Helper()
	a, err := Open(dir, c.now)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestCreate(t *testing.T) {
	a, node, operator, c, dir := raised(t)
	ctx := context.Background()
	check := func(t *testing.T, a *Authority) {
		t.Helper()
		m, err := a.Membership()
		if err != nil || m.Mesh != "home" || m.Node != "alpha" || m.Joined {
			t.Fatalf("membership %+v, %v", m, err)
		}
		op, err := tlsid.ParseCertificate([]byte(m.Operator))
		if err != nil {
			t.Fatal(err)
		}
		id, err := tlsid.Verify([]*x509.Certificate{op}, a.CA(), x509.ExtKeyUsageClientAuth, c.now())
		if err != nil || id != (mesh.Identity{Mesh: "home", Role: mesh.RoleOperator, Name: OperatorName}) || !pub(operator).Equal(op.PublicKey) {
			t.Fatalf("operator %s, %v", id, err)
		}
		if _, err := tlsid.Verify([]*x509.Certificate{op}, a.CA(), x509.ExtKeyUsageServerAuth, c.now()); err == nil {
			t.Error("an operator can pass for a server")
		}
		cred, err := a.Node(ctx, node)
		if err != nil {
			t.Fatal(err)
		}
		if id, _ := cred.Identity(); id.String() != "kingpost://home/node/alpha" {
			t.Errorf("node is %s", id)
		}
	}
	check(t, a)
	t.Run("again", func(t *testing.T) {
		if err := a.Create("home", "alpha", node, pub(operator)); err != nil {
			t.Fatal(err)
		}
		check(t, a)
	})
	t.Run("after a restart", func(t *testing.T) { check(t, open(t, dir, c)) })
	t.Run("other mesh", func(t *testing.T) {
		if err := a.Create("away", "alpha", node, pub(operator)); !errors.Is(err, ErrOtherMesh) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("other operator", func(t *testing.T) {
		if err := a.Create("home", "alpha", node, pub(key(t))); err == nil {
			t.Error("a second operator came in by a repeated raise")
		}
	})
	t.Run("root only", func(t *testing.T) {
		filepath.Walk(dir, func(p string, fi os.FileInfo, err error) error {
			if err == nil && fi.Mode().Perm()&0o077 != 0 {
				t.Errorf("%s has the mode %v", p, fi.Mode())
			}
			return nil
		})
	})
}

// A cut at any file leaves a node that is in no mesh and can be raised, under another name too.
func TestCreateInterrupted(t *testing.T) {
	_, node, operator, c, dir := raised(t)
	for i, f := range []string{fileMembership, fileOperator, fileNode, fileCA, fileCAKey} {
		if err := os.Remove(filepath.Join(dir, f)); err != nil {
			t.Fatal(err)
		}
		a := open(t, dir, c)
		if m, _ := a.Mesh(); m != "" {
			t.Fatalf("without %s it is in the mesh %s", f, m)
		}
		if _, _, _, err := a.Issue(context.Background(), "broker"); !errors.Is(err, ErrNoMesh) {
			t.Errorf("without %s a certificate is issued: %v", f, err)
		}
		if i%2 == 0 {
			continue
		}
		name := []string{"home", "away"}[i/2%2]
		if err := a.Create(name, "alpha", node, pub(operator)); err != nil {
			t.Fatal(err)
		}
		if _, err := a.Node(context.Background(), node); err != nil {
			t.Fatal(err)
		}
		os.Remove(filepath.Join(dir, fileMembership))
	}
}

func TestDamaged(t *testing.T) {
	for _, tc := range []struct{ name, file, content string }{
		{"membership", fileMembership, "{"},
		{"membership without names", fileMembership, "{\"mesh\":\"home\"}"},
		{"CA", fileCA, "x"},
		{"CA of another", fileCA, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, _, _, c, dir := raised(t)
			if err := os.WriteFile(filepath.Join(dir, tc.file), []byte(tc.content), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := Open(dir, c.now); err == nil {
				t.Error("opened")
			}
		})
	}
	t.Run("node certificate", func(t *testing.T) {
		_, node, _, c, dir := raised(t)
		os.WriteFile(filepath.Join(dir, fileNode), []byte("x"), 0o600)
		if _, err := open(t, dir, c).Node(context.Background(), node); err != nil {
			t.Errorf("it is not issued anew: %v", err)
		}
	})
}

func TestIssue(t *testing.T) {
	a, _, _, c, dir := raised(t)
	ctx := context.Background()
	cert, k, ca, err := a.Issue(ctx, "broker")
	if err != nil {
		t.Fatal(err)
	}
	cred, err := tlsid.Parse(cert, k, ca)
	if err != nil {
		t.Fatal(err)
	}
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		id, err := tlsid.Verify([]*x509.Certificate{cred.Certificate.Leaf}, a.CA(), usage, c.now())
		if err != nil || id.String() != "kingpost://home/component/broker" {
			t.Errorf("%s, %v", id, err)
		}
	}
	cert2, k2, _, err := open(t, dir, c).Issue(ctx, "broker")
	if err != nil || string(cert2) != string(cert) || string(k2) != string(k) {
		t.Errorf("another certificate at the next start: %v", err)
	}
	for _, bad := range []string{"", "../ca", "UPPER", "a/b", "host"} {
		if _, _, _, err := a.Issue(ctx, bad); err == nil {
			t.Errorf("a certificate for %q", bad)
		}
	}
	c.t = c.t.Add(lifetime/2 + time.Hour)
	cert3, k3, _, err := a.Issue(ctx, "broker")
	if err != nil || string(cert3) == string(cert) || string(k3) != string(k) {
		t.Errorf("not renewed in the second half of its life: %v", err)
	}
}

func TestIssueAtOnce(t *testing.T) {
	a, _, _, _, _ := raised(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			cert, k, ca, err := a.Issue(context.Background(), "vault")
			if err == nil {
				_, err = tlsid.Parse(cert, k, ca)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestNodeRenewal(t *testing.T) {
	a, node, _, c, _ := raised(t)
	first, err := a.Node(context.Background(), node)
	if err != nil {
		t.Fatal(err)
	}
	c.t = c.t.Add(lifetime/2 + time.Hour)
	second, err := a.Node(context.Background(), node)
	if err != nil || second == first || !second.Certificate.Leaf.NotAfter.After(first.Certificate.Leaf.NotAfter) {
		t.Fatalf("not renewed: %v", err)
	}
}

// fakeVault keeps the key like the vault does.
type fakeVault struct {
	key    []byte
	err    error
	wrong  bool
	called int
}

func (v *fakeVault) PutKey(_ context.Context, b []byte) error { v.key = b; return v.err }

func (v *fakeVault) GetKey(context.Context) ([]byte, error) {
	v.called++
	if v.wrong {
		_, k, _ := ed25519.GenerateKey(rand.Reader)
		return tlsid.MarshalPrivateKey(k), v.err
	}
	return v.key, v.err
}

func TestKeep(t *testing.T) {
	a, node, _, c, dir := raised(t)
	ctx := context.Background()
	if _, _, _, err := a.Issue(ctx, "vault"); err != nil {
		t.Fatal(err)
	}
	v := &fakeVault{}
	a.SetVault(v)
	v.wrong = true
	if err := a.Keep(ctx, v); err == nil {
		t.Fatal("a vault that gives back another key is trusted")
	}
	v.wrong, v.err = false, errors.New("sealed")
	if err := a.Keep(ctx, v); err == nil {
		t.Fatal("a vault that fails is trusted")
	}
	if _, err := os.Stat(filepath.Join(dir, fileCAKey)); err != nil {
		t.Fatalf("the key is gone before the vault has it: %v", err)
	}
	v.err = nil
	for range 2 {
		if err := a.Keep(ctx, v); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, fileCAKey)); err == nil {
		t.Error("the key is still here")
	}
	b := open(t, dir, c)
	b.SetVault(v)
	before := v.called
	if _, _, _, err := b.Issue(ctx, "vault"); err != nil || v.called != before {
		t.Errorf("a kept certificate asks the vault: %v", err)
	}
	if _, _, _, err := b.Issue(ctx, "catalogue"); err != nil || v.called == before {
		t.Errorf("a new certificate does not ask the vault: %v", err)
	}
	v.err = errors.New("sealed")
	if _, _, _, err := b.Issue(ctx, "builder"); err == nil || !strings.Contains(err.Error(), "sealed") {
		t.Errorf("got %v", err)
	}
	// A due certificate that cannot be renewed serves on, until its end.
	c.t = c.t.Add(lifetime/2 + time.Hour)
	if _, err := b.Node(ctx, node); err != nil {
		t.Error(err)
	}
	c.t = c.t.Add(lifetime)
	if _, _, _, err := b.Issue(ctx, "vault"); err == nil {
		t.Error("an expired certificate is handed out")
	}
}
