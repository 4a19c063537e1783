package tlsid

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"
)

var now = time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)

type testCA struct {
	key  ed25519.PrivateKey
	cert *x509.Certificate
}

func newTestCA(t *testing.T, name string) testCA {
	t.Helper()
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: Serial(), Subject: pkix.Name{CommonName: name}, URIs: []*url.URL{{Scheme: "kingpost", Host: name}},
		NotBefore: distantPast(), NotAfter: now.AddDate(50, 0, 0), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, pub, key)
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return testCA{key, c}
}

func (ca testCA) leaf(t *testing.T, end time.Time, usage x509.ExtKeyUsage, uris ...string) *x509.Certificate {
	t.Helper()
	pub, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: Serial(), NotBefore: distantPast(), NotAfter: end, ExtKeyUsage: []x509.ExtKeyUsage{usage}}
	for _, s := range uris {
		u, err := url.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		tmpl.URIs = append(tmpl.URIs, u)
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, ca.cert, pub, ca.key)
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestVerify(t *testing.T) {
	home, other := newTestCA(t, "home"), newTestCA(t, "other")
	impostor := newTestCA(t, "home") // a CA of the same name with another key
	later := now.AddDate(1, 0, 0)
	client := x509.ExtKeyUsageClientAuth
	for _, tc := range []struct {
		name string
		leaf *x509.Certificate
		ca   *x509.Certificate
		at   time.Time
		is   error  // nil with want set: it verifies
		want string // identity, or part of the error
	}{
		{"good", home.leaf(t, later, client, "kingpost://home/node/alpha"), home.cert, now, nil, "kingpost://home/node/alpha"},
		{"good in 1970", home.leaf(t, later, client, "kingpost://home/node/alpha"), home.cert, time.Unix(60, 0), nil, "kingpost://home/node/alpha"},
		{"expired", home.leaf(t, now.Add(-time.Hour), client, "kingpost://home/node/alpha"), home.cert, now, ErrExpired, "2026-11-30"},
		{"other mesh", other.leaf(t, later, client, "kingpost://other/node/alpha"), home.cert, now, ErrForeign, ""},
		{"other CA, same name", impostor.leaf(t, later, client, "kingpost://home/node/alpha"), home.cert, now, ErrForeign, ""},
		{"this CA, other mesh's identity", home.leaf(t, later, client, "kingpost://other/node/alpha"), home.cert, now, ErrForeign, "kingpost://other"},
		{"server certificate as client", home.leaf(t, later, x509.ExtKeyUsageServerAuth, "kingpost://home/node/alpha"), home.cert, now, ErrForeign, ""},
		{"no identity", home.leaf(t, later, client), home.cert, now, errAny, "0 URI names"},
		{"two identities", home.leaf(t, later, client, "kingpost://home/node/a", "kingpost://home/node/b"), home.cert, now, errAny, "2 URI names"},
		{"unknown role", home.leaf(t, later, client, "kingpost://home/king/a"), home.cert, now, errAny, "unknown role"},
		{"the CA itself", home.cert, home.cert, now, errAny, ""},
		{"no mesh", home.leaf(t, later, client, "kingpost://home/node/alpha"), nil, now, ErrForeign, "no mesh"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			id, err := Verify([]*x509.Certificate{tc.leaf}, tc.ca, client, tc.at)
			if tc.is == nil {
				if err != nil || id.String() != tc.want {
					t.Fatalf("got %s, %v; want %s", id, err, tc.want)
				}
				return
			}
			if err == nil || tc.is != errAny && !errors.Is(err, tc.is) || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("got %s, %v; want an error %v with %q", id, err, tc.is, tc.want)
			}
		})
	}
	if _, err := Verify(nil, home.cert, client, now); err == nil {
		t.Error("no certificate verifies")
	}
}

var errAny = errors.New("any error")

func TestPublicKey(t *testing.T) {
	pub, key, _ := ed25519.GenerateKey(rand.Reader)
	got, err := ParsePublicKey(" " + FormatPublicKey(pub) + "\n")
	if err != nil || !got.Equal(pub) {
		t.Fatalf("read back %v, %v", got, err)
	}
	back, err := ParsePrivateKey(MarshalPrivateKey(key))
	if err != nil || !back.Equal(key) {
		t.Fatalf("private key read back: %v", err)
	}
	fp := Fingerprint(pub)
	for _, s := range []string{"", "SHA256:", "SHA256:abc", fp[7:], fp + "AAAA", strings.ToLower(fp)} {
		if IsFingerprint(s) {
			t.Errorf("%q counts as a fingerprint", s)
		}
	}
	if !IsFingerprint(fp) || !IsFingerprint(" "+fp+"=\n") {
		t.Errorf("%q is no fingerprint", fp)
	}
	if !strings.HasPrefix(fp, "SHA256:") || !SameFingerprint(fp, " "+fp+"=\n") || SameFingerprint(fp, Fingerprint(newTestCA(t, "x").key.Public())) {
		t.Errorf("fingerprint %s compares wrongly", fp)
	}
	for name, bad := range map[string]string{
		"empty": "", "no prefix": base64.StdEncoding.EncodeToString(pub), "raw key": "ed25519:" + base64.StdEncoding.EncodeToString(pub),
		"not base64": "ed25519:!!!", "long": "ed25519:" + strings.Repeat("A", 1<<20),
		"x25519": "ed25519:MCowBQYDK2VuAyEAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAE=",
	} {
		if _, err := ParsePublicKey(bad); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	for _, bad := range []string{"", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"} {
		if _, err := ParsePrivateKey([]byte(bad)); err == nil {
			t.Errorf("private key %q accepted", bad)
		}
	}
}

func FuzzParsePublicKey(f *testing.F) {
	f.Add("ed25519:MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=")
	f.Add("ed25519:")
	f.Fuzz(func(t *testing.T, s string) {
		if k, err := ParsePublicKey(s); err == nil {
			if again, err := ParsePublicKey(FormatPublicKey(k)); err != nil || !again.Equal(k) {
				t.Fatalf("%q is not read back", s)
			}
		}
	})
}

func TestSelfSigned(t *testing.T) {
	_, key, _ := ed25519.GenerateKey(rand.Reader)
	c, err := SelfSigned(key, "kp-123456")
	if err != nil {
		t.Fatal(err)
	}
	if FingerprintOf(c.Leaf) != Fingerprint(key.Public()) {
		t.Error("fingerprints differ")
	}
	if _, err := IdentityOf(c.Leaf); err == nil {
		t.Error("a self-signed certificate is an identity")
	}
	if m := MeshOf(c.Leaf); m != "" {
		t.Errorf("a self-signed certificate is the CA of %q", m)
	}
}
