package identity

import (
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"time"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/tlsid"
)

// lifetime of an issued certificate. It is long because a node's clock may be years behind that of those
// who judge its certificates: revocation, not age, is what takes an identity away.
const lifetime = 5 * 365 * 24 * time.Hour

// fetchTimeout bounds the wait for the keeper of the CA's key.
const fetchTimeout = 5 * time.Second

// distantPast is the start of every certificate's validity, see tlsid.
func distantPast() time.Time { return time.Unix(0, 0).UTC() }

// newCA makes the CA of a mesh: an Ed25519 key, since all who judge (Go's TLS in host, store clients and
// broker, and OpenSSL) know it. Its name is the one URI "kingpost://MESH". It has no end of its own: a
// mesh without a network could not replace it in time, so replacing it is an act and not a date.
func newCA(name string) (ed25519.PrivateKey, *x509.Certificate, error) {
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	tmpl := &x509.Certificate{
		SerialNumber:          tlsid.Serial(),
		Subject:               pkix.Name{CommonName: name + " mesh CA", Organization: []string{name}},
		URIs:                  []*url.URL{{Scheme: "kingpost", Host: name}},
		NotBefore:             distantPast(),
		NotAfter:              time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC),
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, pub, key)
	if err != nil {
		return nil, nil, err
	}
	ca, err := x509.ParseCertificate(der)
	return key, ca, err
}

// sign issues a certificate in PEM. Nodes and components serve as well as call; people only call.
func (a *Authority) sign(key ed25519.PrivateKey, ca *x509.Certificate, id mesh.Identity, pub crypto.PublicKey) ([]byte, error) {
	usage := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if id.Role == mesh.RoleNode || id.Role == mesh.RoleComponent {
		usage = append(usage, x509.ExtKeyUsageServerAuth)
	}
	tmpl := &x509.Certificate{
		SerialNumber: tlsid.Serial(),
		Subject:      pkix.Name{CommonName: id.Name, Organization: []string{id.Mesh}, OrganizationalUnit: []string{string(id.Role)}},
		URIs:         []*url.URL{id.URI()},
		// Stock clients (nats, crane) can only compare a DNS name; the identity's own name serves them.
		DNSNames:              []string{id.Name},
		NotBefore:             distantPast(),
		NotAfter:              a.now().Add(lifetime).UTC(),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           usage,
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, ca, pub, key)
	if err != nil {
		return nil, fmt.Errorf("issue a certificate for %s: %w", id, err)
	}
	return tlsid.EncodeCertificate(der), nil
}

// due says that a certificate should be replaced: less than half of its life is left, or its end is so
// far away that it was issued under a clock that stood wrong.
func due(c *x509.Certificate, now time.Time) bool {
	left := c.NotAfter.Sub(now)
	return left < lifetime/2 || left > 2*lifetime
}

// renewed returns kept (PEM) when it still serves, else a new certificate. A kept one that is due but
// cannot be replaced now serves until its end.
func (a *Authority) renewed(ctx context.Context, kept []byte, id mesh.Identity, pub ed25519.PublicKey) (cert []byte, fresh bool, err error) {
	ca := a.CA()
	var usable []byte
	if leaf, err := tlsid.ParseCertificate(kept); err == nil && pub.Equal(leaf.PublicKey) {
		got, err := tlsid.Verify([]*x509.Certificate{leaf}, ca, x509.ExtKeyUsageServerAuth, a.now())
		if err == nil && got == id {
			usable = tlsid.EncodeCertificate(leaf.Raw)
			if !due(leaf, a.now()) {
				return usable, false, nil
			}
		}
	}
	key, err := a.caKey(ctx)
	if err == nil {
		cert, err = a.sign(key, ca, id, pub)
	}
	switch {
	case err == nil:
		return cert, true, nil
	case usable != nil:
		return usable, false, nil
	}
	return nil, false, err
}

// caKey gets the CA's key from wherever it is kept.
func (a *Authority) caKey(ctx context.Context) (ed25519.PrivateKey, error) {
	a.mu.Lock()
	rec, fetch := a.rec, a.fetch
	a.mu.Unlock()
	if rec.Joined {
		return nil, errors.New("certificates of this mesh are issued on its control-node")
	}
	var b []byte
	var err error
	switch {
	case rec.Keeper == "":
		b, err = a.readOptional(fileCAKey)
	case fetch == nil:
		err = fmt.Errorf("the mesh CA's key is kept by the %s, which cannot be asked yet", rec.Keeper)
	default:
		ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
		defer cancel()
		if b, err = fetch(ctx); err != nil {
			err = fmt.Errorf("get the mesh CA's key from the %s: %w", rec.Keeper, err)
		}
	}
	if err != nil {
		return nil, err
	}
	return a.matchCA(b)
}

// matchCA parses a private key and makes sure that it is the CA's.
func (a *Authority) matchCA(b []byte) (ed25519.PrivateKey, error) {
	key, err := tlsid.ParsePrivateKey(b)
	if err != nil {
		return nil, fmt.Errorf("mesh CA: %w", err)
	}
	if !key.Public().(ed25519.PublicKey).Equal(a.CA().PublicKey) {
		return nil, errors.New("the kept key is not the mesh CA's")
	}
	return key, nil
}

// afterCertificate is what follows the first PEM block.
func afterCertificate(b []byte) []byte {
	_, rest := pem.Decode(b)
	return rest
}
