// Package door decides who somebody is that comes to the host, and what their role lets them do. All
// ways in (unix socket, API over TLS, the store's front) ask it, so there is one place to read and to test.
//
// It never reads a request's body and never acts. Start with Caller, then Door.
package door

import (
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"slices"
	"time"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/tlsid"
)

// Caller is who is on the other side of one connection.
type Caller struct {
	// Identity is the caller in the mesh; its Role is empty for one that has none (see Claim).
	mesh.Identity
	// Claim is set for the holder of the claim key, or of the first operator's key, who shows no
	// certificate of the mesh.
	Claim bool
	// Local is set on the unix socket.
	Local bool
	// Denied says why a certificate that was shown did not count; empty when none was shown.
	Denied string
}

// String is for the log.
func (c Caller) String() string {
	switch {
	case c.Role != "":
		return c.Identity.String()
	case c.Claim:
		return "claim key"
	}
	return "unknown"
}

// Door knows who may come in. All fields are functions, since a raise changes the answers.
type Door struct {
	// Mesh is the mesh and this node's name, empty while there is none.
	Mesh func() (meshName, node string)
	// NodeName is this node's name, in a mesh or not.
	NodeName func() string
	// CA is the mesh CA, nil while there is none.
	CA func() *x509.Certificate
	// Claim is the claim key, nil for an unclaimed node.
	Claim func() ed25519.PublicKey
	// Operator is the first operator's key, nil while there is none.
	Operator func() ed25519.PublicKey
	// AccountOf is the module that a uid on this node belongs to.
	AccountOf func(uid int) (module string, ok bool)
	Now       func() time.Time
}

// Unix is the caller with this uid on the unix socket: root is the node itself and acts as an operator;
// an account is its module's component; anybody else is nobody.
func (d *Door) Unix(uid int) Caller {
	m, _ := d.Mesh()
	if uid == 0 {
		return Caller{Identity: d.Self(), Local: true}
	}
	if module, ok := d.AccountOf(uid); ok && module != mesh.HostModule {
		return Caller{Identity: mesh.Identity{Mesh: m, Role: mesh.RoleComponent, Name: module}, Local: true}
	}
	return Caller{Local: true, Denied: fmt.Sprintf("uid %d is neither root nor the account of a module", uid)}
}

// Self is the node's own identity where it acts for itself: with the authority of an operator.
func (d *Door) Self() mesh.Identity {
	m, _ := d.Mesh()
	return mesh.Identity{Mesh: m, Role: mesh.RoleOperator, Name: d.NodeName()}
}

// TLS is the caller on a TLS connection. TLS itself has proved possession of the certificate's key. It is
// asked again for every request, so that time and a raise count at once.
func (d *Door) TLS(cs *tls.ConnectionState) Caller {
	if cs == nil || len(cs.PeerCertificates) == 0 {
		return Caller{}
	}
	leaf := cs.PeerCertificates[0]
	ca := d.CA()
	pub, _ := leaf.PublicKey.(ed25519.PublicKey)
	if ca == nil {
		claim := d.Claim()
		switch {
		case claim == nil:
			return Caller{Denied: "nobody has claimed this node; put the claim key into node.yaml"}
		case !claim.Equal(pub):
			return Caller{Denied: fmt.Sprintf("this node is claimed by the key %s, and the certificate is of the key %s", tlsid.Fingerprint(claim), tlsid.FingerprintOf(leaf))}
		}
		return Caller{Claim: true}
	}
	id, err := tlsid.Verify(cs.PeerCertificates, ca, x509.ExtKeyUsageClientAuth, d.Now())
	if err == nil {
		return Caller{Identity: id}
	}
	// The operator's key without its certificate: it gets no further than to fetch that.
	for _, k := range []ed25519.PublicKey{d.Operator(), d.Claim()} {
		if k != nil && k.Equal(pub) {
			return Caller{Claim: true, Denied: err.Error()}
		}
	}
	return Caller{Denied: err.Error()}
}

// Rule says who may do one thing.
type Rule struct {
	Open bool // everybody, known or not
	// Claim lets the claim key in: always while there is no mesh, and later only where Returning is set.
	Claim     bool
	Returning bool
	Roles     []mesh.Role
	// Modules names the components that RoleComponent is restricted to; empty: all.
	Modules []string
}

// Refusal is why a caller may not do something.
type Refusal struct {
	Known   bool // false: who it is could not be told (HTTP 401), true: it may not (403)
	Message string
}

func (r *Refusal) Error() string { return r.Message }

// Check returns nil or a *Refusal.
func (d *Door) Check(c Caller, r Rule) error {
	m, _ := d.Mesh()
	if r.Open {
		return nil
	}
	if c.Claim && r.Claim && (m == "" || r.Returning) {
		return nil
	}
	if c.Role == "" {
		msg := c.Denied
		switch {
		case msg != "":
		case m == "":
			msg = "show a certificate of the claim key; this node is in no mesh yet"
		default:
			msg = fmt.Sprintf("show a certificate of the mesh %s", m)
		}
		return &Refusal{Known: c.Claim || c.Local, Message: "denied: " + msg}
	}
	if !slices.Contains(r.Roles, c.Role) {
		return &Refusal{Known: true, Message: fmt.Sprintf("denied: %s may not do this; roles that may: %v", c, r.Roles)}
	}
	if c.Role == mesh.RoleComponent && len(r.Modules) > 0 && !slices.Contains(r.Modules, c.Name) {
		return &Refusal{Known: true, Message: fmt.Sprintf("denied: %s may not do this; components that may: %v", c, r.Modules)}
	}
	return nil
}
