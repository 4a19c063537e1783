package controller

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/verbs"
)

func fixed(at time.Time) func() time.Time { return func() time.Time { return at } }

// writeCA writes a certificate as the host puts it into a component's identity.
func writeCA(t testing.TB) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: start.AddDate(10, 0, 0), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestToken(t *testing.T) {
	now := start
	c := openTest(t, t.TempDir(), 1, &fakeHost{}, func(o *Options) {
		o.CA, o.Now = writeCA(t), func() time.Time { return now }
	})
	defer closeTest(t, c)
	res, err := c.Token(t.Context(), "ann", &verbs.TokenParams{TTL: mesh.Duration(time.Minute)})
	if err != nil {
		t.Fatal(err)
	}
	data, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(res.Token, TokenPrefix))
	if err != nil {
		t.Fatal(err)
	}
	var tok joinToken
	if err := json.Unmarshal(data, &tok); err != nil {
		t.Fatal(err)
	}
	if tok.Mesh != "home" || mesh.CheckDigest(tok.CA) != nil || strings.Join(tok.Addresses, " ") != "192.0.2.1:7443 [2001:db8::1]:7443" {
		t.Fatalf("token says %+v", tok)
	}
	if d := dump(t, c); strings.Contains(d, tok.Secret) || !strings.Contains(d, hashHex(tok.Secret)) {
		t.Fatal("the state keeps the secret, or not its hash")
	}
	for range maxTokens - 1 {
		if _, err := c.Token(t.Context(), "ann", &verbs.TokenParams{TTL: mesh.Duration(time.Minute)}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Token(t.Context(), "ann", &verbs.TokenParams{}); err == nil {
		t.Fatal("there is no bound on open tokens")
	}
	now = now.Add(2 * time.Minute)
	if _, err := c.Token(t.Context(), "ann", &verbs.TokenParams{}); err != nil {
		t.Fatalf("expired tokens still count: %v", err)
	}
	if n := strings.Count(dump(t, c), bucketTokensPath); n != 1 {
		t.Fatalf("%d tokens are kept", n)
	}
	if _, err := c.Token(t.Context(), "ann", &verbs.TokenParams{TTL: mesh.Duration(1000 * time.Hour)}); err == nil {
		t.Fatal("a token for ever")
	}
}

const bucketTokensPath = "tokens/"
