package identity

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"kingpost/internal/atomicfile"
	"kingpost/internal/mesh"
	"kingpost/internal/mesh/tlsid"
)

// OperatorName is the name of the first operator of a mesh.
const OperatorName = "operator"

// retryRenewal is the pause after an attempt to renew the node's certificate.
const retryRenewal = time.Minute

// Errors that a caller decides on.
var (
	ErrNoMesh    = errors.New("this node is in no mesh")
	ErrOtherMesh = errors.New("this node is in another mesh")
)

// Authority is this node's place in its mesh. Its methods may be called at once from many goroutines.
type Authority struct {
	dir string
	now func() time.Time

	// mu guards what follows, and is never held while something is signed: the vault, which may have to be
	// asked for the key, itself asks for a certificate when it starts.
	mu    sync.Mutex
	rec   record
	ca    *x509.Certificate
	node  *tlsid.Credentials
	retry time.Time // when to try again to renew node
	// fetch gets the CA's key (PKCS #8, PEM) from its keeper.
	fetch func(ctx context.Context) ([]byte, error)
}

// Open reads what is on disk below dir; a node in no mesh is no error. now is the clock.
func Open(dir string, now func() time.Time) (*Authority, error) {
	a := &Authority{dir: dir, now: now}
	if err := a.prepare(); err != nil {
		return nil, err
	}
	rec, err := a.readRecord()
	if err != nil || rec.Mesh == "" {
		return a, err
	}
	b, err := a.readOptional(fileCA)
	if err == nil && b == nil {
		err = errors.New("it is missing")
	}
	if err == nil {
		a.ca, err = tlsid.ParseCertificate(b)
	}
	if err == nil && tlsid.MeshOf(a.ca) != rec.Mesh {
		err = fmt.Errorf("it is the CA of %q", tlsid.MeshOf(a.ca))
	}
	if err != nil {
		return nil, fmt.Errorf("read the CA of the mesh %s in %s: %w; restore the folder from a backup", rec.Mesh, a.path(fileCA), err)
	}
	a.rec = rec
	if rec.Keeper != "" {
		// A cut between the record and the removal may have left it.
		return a, atomicfile.Remove(a.path(fileCAKey))
	}
	return a, nil
}

// Mesh and the node's name in it, both empty while there is none.
func (a *Authority) Mesh() (meshName, node string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.rec.Mesh, a.rec.Node
}

// CA is the mesh CA's certificate, nil while there is none.
func (a *Authority) CA() *x509.Certificate {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ca
}

// Membership is what a raise shows of it.
func (a *Authority) Membership() (mesh.Membership, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.rec.Mesh == "" {
		return mesh.Membership{}, nil
	}
	op, err := a.readOptional(fileOperator)
	if err != nil {
		return mesh.Membership{}, fmt.Errorf("read the operator's certificate: %w", err)
	}
	return mesh.Membership{
		Mesh: a.rec.Mesh, Node: a.rec.Node, Joined: a.rec.Joined,
		CA: string(tlsid.EncodeCertificate(a.ca.Raw)), Operator: string(op),
	}, nil
}

// Create makes the mesh: its CA, the certificate of this node, and the operator's. It is idempotent for
// the mesh that this node is in already, as long as it is for the same operator. Another mesh is ErrOtherMesh.
func (a *Authority) Create(name, node string, nodeKey ed25519.PrivateKey, operator ed25519.PublicKey) error {
	if err := mesh.CheckName(name); err != nil {
		return fmt.Errorf("name of the mesh: %w", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.rec.Mesh != "" {
		if a.rec.Mesh != name {
			return fmt.Errorf("make the mesh %s: %w, %s", name, ErrOtherMesh, a.rec.Mesh)
		}
		return a.checkOperator(operator)
	}
	key, ca, err := newCA(name)
	if err != nil {
		return fmt.Errorf("make the CA of the mesh %s: %w", name, err)
	}
	nodeCert, err := a.sign(key, ca, mesh.Identity{Mesh: name, Role: mesh.RoleNode, Name: node}, nodeKey.Public())
	if err != nil {
		return err
	}
	opCert, err := a.sign(key, ca, mesh.Identity{Mesh: name, Role: mesh.RoleOperator, Name: OperatorName}, operator)
	if err != nil {
		return err
	}
	for _, f := range []struct {
		name string
		data []byte
	}{
		{fileCAKey, tlsid.MarshalPrivateKey(key)},
		{fileCA, tlsid.EncodeCertificate(ca.Raw)},
		{fileNode, nodeCert},
		{fileOperator, opCert},
	} {
		if err := atomicfile.Write(a.path(f.name), f.data, 0o600); err != nil {
			return fmt.Errorf("make the mesh %s: %w", name, err)
		}
	}
	rec := record{Mesh: name, Node: node}
	if err := a.writeRecord(rec); err != nil {
		return fmt.Errorf("make the mesh %s: %w", name, err)
	}
	a.rec, a.ca, a.node = rec, ca, nil
	return nil
}

// checkOperator refuses a second operator by way of a repeated raise; a.mu is held.
func (a *Authority) checkOperator(operator ed25519.PublicKey) error {
	b, err := a.readOptional(fileOperator)
	if err != nil {
		return fmt.Errorf("read the operator's certificate: %w", err)
	}
	c, err := tlsid.ParseCertificate(b)
	if err != nil {
		return fmt.Errorf("read the operator's certificate: %w", err)
	}
	if !operator.Equal(c.PublicKey) {
		return fmt.Errorf("the mesh %s has the operator with the key %s already; another one (%s) is added by that operator",
			a.rec.Mesh, tlsid.FingerprintOf(c), tlsid.Fingerprint(operator))
	}
	return nil
}

// Operator is the public key of the mesh's first operator, nil while there is none.
func (a *Authority) Operator() ed25519.PublicKey {
	a.mu.Lock()
	defer a.mu.Unlock()
	b, err := a.readOptional(fileOperator)
	if err != nil || b == nil || a.rec.Mesh == "" {
		return nil
	}
	c, err := tlsid.ParseCertificate(b)
	if err != nil {
		return nil
	}
	pub, _ := c.PublicKey.(ed25519.PublicKey)
	return pub
}

// Node gives the node's credentials, with a new certificate when the kept one is in the second half of
// its life. A certificate that cannot be renewed yet is used as long as it is valid.
func (a *Authority) Node(ctx context.Context, key ed25519.PrivateKey) (*tlsid.Credentials, error) {
	a.mu.Lock()
	rec, ca, node, retry := a.rec, a.ca, a.node, a.retry
	a.mu.Unlock()
	now := a.now()
	if rec.Mesh == "" {
		return nil, ErrNoMesh
	}
	if node != nil && (!due(node.Certificate.Leaf, now) || now.Before(retry)) {
		return node, nil
	}
	id := mesh.Identity{Mesh: rec.Mesh, Role: mesh.RoleNode, Name: rec.Node}
	kept, _ := a.readOptional(fileNode)
	cert, fresh, err := a.renewed(ctx, kept, id, key.Public().(ed25519.PublicKey))
	if err == nil && fresh {
		err = atomicfile.Write(a.path(fileNode), cert, 0o600)
	}
	if err != nil {
		return nil, fmt.Errorf("certificate of the node %s: %w", rec.Node, err)
	}
	leaf, err := tlsid.ParseCertificate(cert)
	if err != nil {
		return nil, fmt.Errorf("certificate of the node %s: %w", rec.Node, err)
	}
	node = &tlsid.Credentials{
		Certificate: tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf},
		CA:          ca,
	}
	a.mu.Lock()
	a.node, a.retry = node, now.Add(retryRenewal)
	a.mu.Unlock()
	return node, nil
}

// Issue gives the component MODULE its certificate, its private key and the mesh CA, in PEM. All starts
// of a module share one key until its certificate is due. It implements supervise.Identities.
func (a *Authority) Issue(ctx context.Context, module string) (cert, key, ca []byte, err error) {
	if err := mesh.CheckName(module); err != nil {
		return nil, nil, nil, fmt.Errorf("issue a certificate: %w", err)
	}
	if module == mesh.HostModule {
		return nil, nil, nil, fmt.Errorf("issue a certificate: the name %s is the host's own; give the module another one", module)
	}
	a.mu.Lock()
	rec, root := a.rec, a.ca
	a.mu.Unlock()
	if rec.Mesh == "" {
		return nil, nil, nil, fmt.Errorf("certificate of %s: %w", module, ErrNoMesh)
	}
	id := mesh.Identity{Mesh: rec.Mesh, Role: mesh.RoleComponent, Name: module}
	name := dirComponents + "/" + module + ".pem"
	kept, _ := a.readOptional(name)
	priv, err := tlsid.ParsePrivateKey(afterCertificate(kept))
	if err != nil { // the first time, or damaged: a new key asks for a new certificate
		kept = nil
		if _, priv, err = ed25519.GenerateKey(rand.Reader); err != nil {
			return nil, nil, nil, fmt.Errorf("key of %s: %w", module, err)
		}
	}
	key = tlsid.MarshalPrivateKey(priv)
	cert, fresh, err := a.renewed(ctx, kept, id, priv.Public().(ed25519.PublicKey))
	if err == nil && fresh {
		err = atomicfile.Write(a.path(name), slices.Concat(cert, key), 0o600)
	}
	if err != nil {
		return nil, nil, nil, fmt.Errorf("certificate of %s: %w", module, err)
	}
	return cert, key, tlsid.EncodeCertificate(root.Raw), nil
}
