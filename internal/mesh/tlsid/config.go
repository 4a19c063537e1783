package tlsid

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"kingpost/internal/mesh"
)

// IdentityOf reads the identity in a certificate: exactly one URI name, and it must be an identity. It
// says nothing about whether the certificate is genuine.
func IdentityOf(c *x509.Certificate) (mesh.Identity, error) {
	if len(c.URIs) != 1 {
		return mesh.Identity{}, fmt.Errorf("the certificate of %q has %d URI names, an identity has one", c.Subject.CommonName, len(c.URIs))
	}
	return mesh.ParseIdentity(c.URIs[0].String())
}

// ErrExpired and ErrForeign tell apart why Verify refuses.
var (
	ErrExpired = errors.New("the certificate has expired")
	ErrForeign = errors.New("the certificate is not of this mesh")
)

// Verify checks that chain[0] was issued by ca, is within its time, is fit for usage, and is an identity
// of the mesh that ca belongs to; it returns that identity.
func Verify(chain []*x509.Certificate, ca *x509.Certificate, usage x509.ExtKeyUsage, now time.Time) (mesh.Identity, error) {
	if len(chain) == 0 {
		return mesh.Identity{}, errors.New("no certificate was shown")
	}
	if ca == nil {
		return mesh.Identity{}, fmt.Errorf("%w: there is no mesh yet", ErrForeign)
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca)
	// The mesh CA signs leaves itself: what else a peer sends is not looked at.
	_, err := chain[0].Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{usage}})
	if err != nil {
		var invalid x509.CertificateInvalidError
		if errors.As(err, &invalid) && invalid.Reason == x509.Expired {
			return mesh.Identity{}, fmt.Errorf("%w: %s, valid until %s, and it is %s here", ErrExpired,
				chain[0].Subject.CommonName, chain[0].NotAfter.UTC().Format(time.DateOnly), now.UTC().Format(time.DateOnly))
		}
		return mesh.Identity{}, fmt.Errorf("%w: %w", ErrForeign, err)
	}
	id, err := IdentityOf(chain[0])
	if err != nil {
		return mesh.Identity{}, err
	}
	if m := MeshOf(ca); id.Mesh != m {
		return mesh.Identity{}, fmt.Errorf("%w: %s, issued by the CA of %s", ErrForeign, id, m)
	}
	return id, nil
}

// MeshOf is the name of the mesh whose CA ca is, empty for a certificate that is none.
func MeshOf(ca *x509.Certificate) string {
	if ca == nil || !ca.IsCA || len(ca.URIs) != 1 || ca.URIs[0].Scheme != "kingpost" || ca.URIs[0].Path != "" {
		return ""
	}
	return ca.URIs[0].Host
}

// Source gives the credentials to use now; renewal may change them.
type Source func() (*Credentials, error)

// Fixed is a Source of credentials that do not change.
func Fixed(c *Credentials) Source { return func() (*Credentials, error) { return c, nil } }

// FromDir is a Source that reads a component's identity folder again at every handshake, since the host
// replaces the files when it renews them.
func FromDir(dir string) Source { return func() (*Credentials, error) { return Load(dir) } }

// ClientConfig is for a client: it shows src's certificate and accepts a server whose certificate is of
// the same mesh and whose identity expect accepts (nil: any node or component). now is the clock.
//
// InsecureSkipVerify only turns off the check against the address; VerifyConnection does the rest, on
// resumed connections too.
func ClientConfig(src Source, expect func(mesh.Identity) error, now func() time.Time) *tls.Config {
	if expect == nil {
		expect = anyServer
	}
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		InsecureSkipVerify: true,
		VerifyConnection: func(cs tls.ConnectionState) error {
			cred, err := src()
			if err != nil {
				return err
			}
			id, err := Verify(cs.PeerCertificates, cred.CA, x509.ExtKeyUsageServerAuth, now())
			if err != nil {
				return fmt.Errorf("the server's certificate: %w", err)
			}
			return expect(id)
		},
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			cred, err := src()
			if err != nil {
				return nil, err
			}
			return &cred.Certificate, nil
		},
	}
}

func anyServer(id mesh.Identity) error {
	if id.Role == mesh.RoleNode || id.Role == mesh.RoleComponent {
		return nil
	}
	return fmt.Errorf("the server is %s, which is neither a node nor a component", id)
}

// Expect accepts exactly the identity of role and name, in whichever mesh the CA belongs to.
func Expect(role mesh.Role, name string) func(mesh.Identity) error {
	return func(id mesh.Identity) error {
		if id.Role != role || id.Name != name {
			return fmt.Errorf("the server is %s, want the %s %s", id, role, name)
		}
		return nil
	}
}

// PinConfig is for a client before there is a mesh: it shows cert (nil: none) and accepts the one server
// whose key has this fingerprint.
func PinConfig(fingerprint string, cert *tls.Certificate) *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		InsecureSkipVerify: true, // see ClientConfig
		VerifyConnection: func(cs tls.ConnectionState) error {
			if got := FingerprintOf(cs.PeerCertificates[0]); !SameFingerprint(got, fingerprint) {
				return &PinError{Want: fingerprint, Got: got}
			}
			return nil
		},
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			if cert == nil {
				return &tls.Certificate{}, nil
			}
			return cert, nil
		},
	}
}

// PinError is a server that has another key than the one that was pinned.
type PinError struct {
	Want, Got string
}

func (e *PinError) Error() string {
	return fmt.Sprintf("the node's key is %s, want %s; compare it with the one on the node's console", e.Got, e.Want)
}

// ServerConfig is for a server that admits identities of its own mesh alone: it shows src's certificate
// and refuses a client without a valid one. The handler finds who it is by Verify or IdentityOf.
func ServerConfig(src Source, now func() time.Time) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		ClientAuth: tls.RequireAnyClientCert,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			cred, err := src()
			if err != nil {
				return nil, err
			}
			return &cred.Certificate, nil
		},
		VerifyConnection: func(cs tls.ConnectionState) error {
			cred, err := src()
			if err != nil {
				return err
			}
			_, err = Verify(cs.PeerCertificates, cred.CA, x509.ExtKeyUsageClientAuth, now())
			return err
		},
	}
}
