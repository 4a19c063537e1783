package seat

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"kingpost/internal/mesh"
)

// Everybody is every role: for ping, describe, and what is no secret.
func Everybody() []mesh.Role {
	return []mesh.Role{mesh.RoleOperator, mesh.RoleViewer, mesh.RoleNode, mesh.RoleComponent}
}

// Operators is the role that may change the mesh.
func Operators() []mesh.Role { return []mesh.Role{mesh.RoleOperator} }

// Request is who calls, and how.
type Request struct {
	Caller mesh.Identity
	Verb   string
	// Probe is true while a Check runs for a probe. Run is never called for one.
	Probe bool
}

// None is the parameters of a verb that takes none.
type None struct{}

// Verb is one verb of a seat. P is a struct with json tags: it is decoded strictly, so an unknown or
// repeated field is refused as mesh.CodeBadParams, and its field names are what `describe` lists.
type Verb[P any] struct {
	Name    string
	Summary string // one line, for people
	Roles   []mesh.Role
	Changes bool // whether it changes state
	// Timeout bounds Check and Run together; 0 is DefaultTimeout.
	Timeout time.Duration
	// Allow decides on authority beyond the role; nil: the role is enough. An error counts as mesh.CodeDenied.
	Allow func(r Request) error
	// Check validates p beyond its types and decides on authority that depends on it. It changes nothing.
	// An error that is no *mesh.CallError counts as mesh.CodeBadParams. It runs before Run, and for a probe
	// that carries parameters.
	Check func(ctx context.Context, r Request, p *P) error
	// Run does it. Its result is marshalled as JSON; nil is {}.
	Run func(ctx context.Context, r Request, p *P) (any, error)
}

// DefaultTimeout bounds a verb that does not say how long it may take.
const DefaultTimeout = time.Minute

// verb is a Verb without its type parameter.
type verb struct {
	info    mesh.VerbInfo
	timeout time.Duration
	// prepare decodes and checks; what it returns does the effect.
	prepare func(ctx context.Context, r Request, params json.RawMessage) (func(context.Context) (any, error), error)
}

// Register adds v to s. It panics on a verb that is registered twice or incomplete: that is a mistake in
// the program, found by its first start.
func Register[P any](s *Server, v Verb[P]) {
	names := fieldNames(reflect.TypeFor[P]())
	if v.Name == "" || v.Summary == "" || len(v.Roles) == 0 || v.Run == nil {
		panic(fmt.Sprintf("seat %s: verb %q lacks a name, summary, roles or Run", s.opt.Seat, v.Name))
	}
	if _, twice := s.verbs[v.Name]; twice {
		panic(fmt.Sprintf("seat %s: verb %q is registered twice", s.opt.Seat, v.Name))
	}
	timeout := v.Timeout
	if timeout == 0 {
		timeout = DefaultTimeout
	}
	s.verbs[v.Name] = &verb{
		info: mesh.VerbInfo{
			Name: v.Name, Summary: v.Summary, Roles: slices.Clone(v.Roles), Params: names, Changes: v.Changes,
		},
		timeout: timeout,
		prepare: func(ctx context.Context, r Request, params json.RawMessage) (func(context.Context) (any, error), error) {
			if v.Allow != nil {
				if err := v.Allow(r); err != nil {
					return nil, Errorf(mesh.CodeDenied, "%v", err)
				}
			}
			p := new(P)
			given, err := decode(params, p)
			if err != nil {
				return nil, Errorf(mesh.CodeBadParams, "parameters of %s: %v", v.Name, err)
			}
			// A probe without parameters asks only whether the verb is there and its state opens: a caller
			// can so probe everything that describe lists without knowing what each verb needs.
			if v.Check != nil && (given || !r.Probe) {
				if err := v.Check(ctx, r, p); err != nil {
					var ce *mesh.CallError
					if errors.As(err, &ce) {
						return nil, err
					}
					return nil, Errorf(mesh.CodeBadParams, "parameters of %s: %v", v.Name, err)
				}
			}
			return func(ctx context.Context) (any, error) { return v.Run(ctx, r, p) }, nil
		},
	}
}

// Errorf makes a refusal with one of the mesh.Code constants.
func Errorf(code, format string, args ...any) *mesh.CallError {
	return &mesh.CallError{Code: code, Message: fmt.Sprintf(format, args...)}
}

// fieldNames lists the JSON names of a struct's fields, embedded ones included, in their order.
func fieldNames(t reflect.Type) []string {
	if t.Kind() != reflect.Struct {
		panic(fmt.Sprintf("parameters must be a struct, not %s", t))
	}
	var names []string
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous && f.Type.Kind() == reflect.Struct && f.Tag.Get("json") == "" {
			names = append(names, fieldNames(f.Type)...)
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" || !f.IsExported() {
			continue
		}
		if name == "" {
			panic(fmt.Sprintf("field %s of %s has no json tag", f.Name, t))
		}
		names = append(names, name)
	}
	return names
}
