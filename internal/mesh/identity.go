package mesh

import (
	"fmt"
	"net/url"
	"strings"
)

// Role is what an identity may be in a mesh.
type Role string

const (
	RoleOperator  Role = "operator"
	RoleViewer    Role = "viewer"
	RoleNode      Role = "node"
	RoleComponent Role = "component"
)

// Identity is who somebody is in a mesh. In a certificate it is the one URI subject alternative name
// (RFC 5280, section 4.2.1.6): "kingpost://MESH/ROLE/NAME". It is never bound to an address.
type Identity struct {
	Mesh string
	Role Role
	Name string
}

// URI is the identity as a URI.
func (i Identity) URI() *url.URL {
	return &url.URL{Scheme: "kingpost", Host: i.Mesh, Path: "/" + string(i.Role) + "/" + i.Name}
}

func (i Identity) String() string { return i.URI().String() }

// ParseIdentity reads an identity from its URI form. Anything but the three parts is an error.
func ParseIdentity(s string) (Identity, error) {
	rest, ok := strings.CutPrefix(s, "kingpost://")
	if !ok {
		return Identity{}, fmt.Errorf("identity %q does not start with kingpost://", s)
	}
	p := strings.Split(rest, "/")
	if len(p) != 3 {
		return Identity{}, fmt.Errorf("identity %q is not kingpost://MESH/ROLE/NAME", s)
	}
	id := Identity{Mesh: p[0], Role: Role(p[1]), Name: p[2]}
	switch id.Role {
	case RoleOperator, RoleViewer, RoleNode, RoleComponent:
	default:
		return Identity{}, fmt.Errorf("identity %q has the unknown role %q", s, p[1])
	}
	for _, n := range []string{id.Mesh, id.Name} {
		if err := CheckName(n); err != nil {
			return Identity{}, fmt.Errorf("identity %q: %w", s, err)
		}
	}
	return id, nil
}

// HostModule is the name under which a node's host acts as a component: the prefix of what it keeps in the
// vault. The one module of that name declares the host itself, in the one form that Resource.validateHost takes.
const HostModule = "host"

// CheckModule accepts the names that a module may have: those of CheckName but HostModule.
func CheckModule(s string) error {
	if s == HostModule {
		return fmt.Errorf("the name %q is the host's own; choose another", s)
	}
	return CheckName(s)
}

// CheckName accepts the names of meshes, nodes, modules, resources and artifacts:
// [a-z0-9][a-z0-9-]{0,62}, a DNS label (RFC 1123, section 2.1) in lower case.
func CheckName(s string) error {
	if s == "" {
		return fmt.Errorf("a name is missing")
	}
	if len(s) > 63 {
		return fmt.Errorf("the name %.20q... has %d characters, at most 63 are allowed", s, len(s))
	}
	for i, c := range s {
		switch {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9', c == '-' && i > 0 && i < len(s)-1:
		default:
			return fmt.Errorf("the name %q has %q; lower-case letters, digits and inner hyphens are allowed", s, c)
		}
	}
	return nil
}
