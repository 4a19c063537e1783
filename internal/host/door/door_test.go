package door

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"strings"
	"testing"
	"time"

	"kingpost/internal/host/identity"
	"kingpost/internal/mesh"
	"kingpost/internal/mesh/tlsid"
)

func newKey(t *testing.T) ed25519.PrivateKey {
	t.Helper()
	_, k, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func state(t *testing.T, k ed25519.PrivateKey) *tls.ConnectionState {
	t.Helper()
	c, err := tlsid.SelfSigned(k, "x")
	if err != nil {
		t.Fatal(err)
	}
	return &tls.ConnectionState{PeerCertificates: []*x509.Certificate{c.Leaf}}
}

func TestTLS(t *testing.T) {
	claim, stranger, node := newKey(t), newKey(t), newKey(t)
	now := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	a, err := identity.Open(t.TempDir(), func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	d := &Door{
		Mesh: a.Mesh, CA: a.CA, Operator: a.Operator, NodeName: func() string { return "alpha" },
		Claim: func() ed25519.PublicKey { return claim.Public().(ed25519.PublicKey) },
		AccountOf: func(uid int) (string, bool) {
			m, ok := map[int]string{7001: "controller", 7002: mesh.HostModule}[uid]
			return m, ok
		},
		Now: func() time.Time { return now },
	}
	api := Rule{Claim: true, Roles: []mesh.Role{mesh.RoleOperator, mesh.RoleComponent}, Modules: []string{"controller"}}
	raise := Rule{Claim: true, Returning: true, Roles: []mesh.Role{mesh.RoleOperator}}
	may := func(t *testing.T, c Caller, r Rule, want bool) {
		t.Helper()
		err := d.Check(c, r)
		if (err == nil) != want {
			t.Errorf("%s: %v, want allowed=%v", c, err, want)
		}
		var refusal *Refusal
		if err != nil && (!errors.As(err, &refusal) || !strings.HasPrefix(err.Error(), "denied: ")) {
			t.Errorf("%s: %v is no refusal", c, err)
		}
	}

	t.Run("before the raise", func(t *testing.T) {
		may(t, d.TLS(nil), api, false)
		may(t, d.TLS(&tls.ConnectionState{}), api, false)
		may(t, d.TLS(&tls.ConnectionState{}), Rule{Open: true}, true)
		may(t, d.TLS(state(t, claim)), api, true)
		may(t, d.TLS(state(t, stranger)), api, false)
		may(t, d.Unix(0), api, true)
		may(t, d.Unix(7001), api, true)
		may(t, d.Unix(1000), api, false)
		may(t, d.Unix(7002), Rule{Roles: []mesh.Role{mesh.RoleComponent}}, false) // a module that calls itself host
		unclaimed := *d
		unclaimed.Claim = func() ed25519.PublicKey { return nil }
		may(t, unclaimed.TLS(state(t, claim)), api, false)
	})

	if err := a.Create("home", "alpha", node, claim.Public().(ed25519.PublicKey)); err != nil {
		t.Fatal(err)
	}
	m, err := a.Membership()
	if err != nil {
		t.Fatal(err)
	}
	cert := func(pem string) *tls.ConnectionState {
		c, err := tlsid.ParseCertificate([]byte(pem))
		if err != nil {
			t.Fatal(err)
		}
		return &tls.ConnectionState{PeerCertificates: []*x509.Certificate{c}}
	}
	component := func(module string) *tls.ConnectionState {
		pem, _, _, err := a.Issue(context.Background(), module)
		if err != nil {
			t.Fatal(err)
		}
		return cert(string(pem))
	}
	t.Run("after the raise", func(t *testing.T) {
		may(t, d.TLS(cert(m.Operator)), api, true)
		may(t, d.TLS(component("controller")), api, true)
		may(t, d.TLS(component("vault")), api, false)
		may(t, d.TLS(component("controller")), raise, false)
		may(t, d.TLS(state(t, claim)), api, false)  // the key without its certificate ...
		may(t, d.TLS(state(t, claim)), raise, true) // ... may only come back for it
		may(t, d.TLS(state(t, stranger)), raise, false)
		may(t, d.Unix(0), api, true)
		if got := d.Unix(0).Identity.String(); got != "kingpost://home/operator/alpha" {
			t.Errorf("the node itself is %s", got)
		}
		if got := d.Unix(7001).Identity.String(); got != "kingpost://home/component/controller" {
			t.Errorf("the account is %s", got)
		}
	})
	t.Run("expired", func(t *testing.T) {
		now = now.AddDate(6, 0, 0)
		c := d.TLS(cert(m.Operator))
		may(t, c, api, false)
		may(t, c, raise, true) // the key is still the operator's: it fetches a new one
		if !strings.Contains(c.Denied, "expired") {
			t.Errorf("denied says %q", c.Denied)
		}
	})
}
