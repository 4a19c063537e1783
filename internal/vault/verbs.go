package vault

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/sirupsen/logrus"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/seat"
	"kingpost/internal/mesh/verbs"
)

// Server answers the verbs of the vault seat in the mesh meshName.
func (v *Vault) Server(meshName string, log logrus.FieldLogger) *seat.Server {
	s := seat.New(seat.Options{Seat: mesh.SeatVault, Mesh: meshName, Open: v.Check, MaxBody: 2 << 20, Log: log})
	users := []mesh.Role{mesh.RoleOperator, mesh.RoleComponent}
	seat.Register(s, seat.Verb[verbs.PutParams]{
		Name: verbs.Put, Summary: "stores a secret as its next version", Roles: users, Changes: true,
		Check: func(_ context.Context, r seat.Request, p *verbs.PutParams) error {
			if err := allowed(r, p.Name); err != nil {
				return err
			}
			switch n := len(p.Value) + len(p.Bytes); {
			case p.Value != "" && len(p.Bytes) > 0:
				return errors.New("value and bytes: give one of them")
			case n == 0:
				return errors.New("value or bytes: give one of them")
			case n > maxValue:
				return fmt.Errorf("the secret has %d bytes, at most %d are allowed", n, maxValue)
			}
			return nil
		},
		Run: func(_ context.Context, _ seat.Request, p *verbs.PutParams) (any, error) {
			if p.Value != "" {
				return v.Put(p.Name, []byte(p.Value))
			}
			return v.Put(p.Name, p.Bytes)
		},
	})
	seat.Register(s, seat.Verb[verbs.GetParams]{
		Name: verbs.Get, Summary: "reads a secret, its newest version or one that is named", Roles: users,
		Check: func(_ context.Context, r seat.Request, p *verbs.GetParams) error { return allowed(r, p.Name) },
		Run: func(_ context.Context, _ seat.Request, p *verbs.GetParams) (any, error) {
			value, version, err := v.Get(p.Name, p.Version)
			if err != nil {
				return nil, err
			}
			res := &verbs.GetResult{Name: p.Name, Version: version}
			if utf8.Valid(value) {
				res.Value = string(value)
			} else {
				res.Bytes = value
			}
			return res, nil
		},
	})
	seat.Register(s, seat.Verb[verbs.SecretsParams]{
		Name: verbs.List, Summary: "the names of secrets and keys that the caller may use", Roles: users,
		Check: func(_ context.Context, _ seat.Request, p *verbs.SecretsParams) error {
			if p.Module == "" {
				return nil
			}
			return mesh.CheckName(p.Module)
		},
		Run: func(_ context.Context, r seat.Request, p *verbs.SecretsParams) (any, error) {
			return v.List(func(name string) bool {
				return may(r.Caller, name) && (p.Module == "" || strings.HasPrefix(name, p.Module+"/"))
			})
		},
	})
	seat.Register(s, seat.Verb[verbs.SignParams]{
		Name: verbs.Sign, Summary: "signs a message by an ed25519 key, which is made on its first use", Roles: users, Changes: true,
		Check: func(_ context.Context, r seat.Request, p *verbs.SignParams) error {
			if err := allowed(r, p.Name); err != nil {
				return err
			}
			switch n := len(p.Message); {
			case n == 0:
				return errors.New("message: it is empty")
			case n > maxMessage:
				return fmt.Errorf("message: it has %d bytes, at most %d are signed at once; sign its digest", n, maxMessage)
			}
			return nil
		},
		Run: func(_ context.Context, _ seat.Request, p *verbs.SignParams) (any, error) {
			return v.Sign(p.Name, p.Message)
		},
	})
	return s
}

// may decides whether caller may use name. A component has its own module's secrets. The host of the
// control-node counts as one, of the module that no manifest may claim (mesh.HostModule), and what it keeps
// there, the key of the mesh CA, is its own: an operator who could read it could make identities at will.
func may(caller mesh.Identity, name string) bool {
	switch caller.Role {
	case mesh.RoleOperator:
		return !strings.HasPrefix(name, mesh.HostModule+"/")
	case mesh.RoleComponent:
		return strings.HasPrefix(name, caller.Name+"/")
	}
	return false
}

func allowed(r seat.Request, name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	if !may(r.Caller, name) {
		return seat.Errorf(mesh.CodeDenied, "%s may not use %s: a component has its own module's secrets, an operator all but the host's", r.Caller, name)
	}
	return nil
}
