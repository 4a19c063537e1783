package tlsid

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"time"

	"kingpost/internal/mesh"
)

// Names of the files in the folder that mesh.EnvIdentity names.
const (
	FileCertificate = "cert.pem"
	FileKey         = "key.pem"
	FileCA          = "ca.pem"
)

// Credentials are what one side has: its certificate with the private key, and the CA of its mesh.
type Credentials struct {
	Certificate tls.Certificate   // Leaf is set
	CA          *x509.Certificate // nil before there is a mesh
}

// Parse reads credentials from PEM.
func Parse(cert, key, ca []byte) (*Credentials, error) {
	c, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("certificate and key: %w", err)
	}
	if c.Leaf == nil {
		if c.Leaf, err = x509.ParseCertificate(c.Certificate[0]); err != nil {
			return nil, fmt.Errorf("certificate: %w", err)
		}
	}
	root, err := ParseCertificate(ca)
	if err != nil {
		return nil, fmt.Errorf("mesh CA: %w", err)
	}
	return &Credentials{Certificate: c, CA: root}, nil
}

// Load reads cert.pem, key.pem and ca.pem of a folder.
func Load(dir string) (*Credentials, error) {
	var b [3][]byte
	for i, n := range []string{FileCertificate, FileKey, FileCA} {
		var err error
		if b[i], err = os.ReadFile(filepath.Join(dir, n)); err != nil {
			return nil, fmt.Errorf("load identity: %w", err)
		}
	}
	c, err := Parse(b[0], b[1], b[2])
	if err != nil {
		return nil, fmt.Errorf("load identity from %s: %w", dir, err)
	}
	return c, nil
}

// Identity is who these credentials are.
func (c *Credentials) Identity() (mesh.Identity, error) { return IdentityOf(c.Certificate.Leaf) }

// distantPast is when every certificate starts to be valid. The clock of a machine without a battery
// may stand anywhere after 1970, so a certificate is bounded by its end alone.
func distantPast() time.Time { return time.Unix(0, 0).UTC() }

// SelfSigned makes a certificate for key, signed by itself. It proves nothing but possession of the key;
// nodes and operators use it before there is a mesh.
func SelfSigned(key ed25519.PrivateKey, commonName string) (tls.Certificate, error) {
	tmpl := &x509.Certificate{
		SerialNumber: Serial(),
		Subject:      pkix.Name{CommonName: commonName},
		NotBefore:    distantPast(),
		NotAfter:     time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC), // RFC 5280, section 4.1.2.5: no well-defined end
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("sign own certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("sign own certificate: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, nil
}

// Serial is a fresh random serial number of 127 bits.
func Serial() *big.Int {
	b := make([]byte, 16)
	rand.Read(b)  // never fails
	b[0] &= 0x7f  // positive, and at most 20 octets in DER
	b[15] |= 0x01 // never zero
	return new(big.Int).SetBytes(b)
}
