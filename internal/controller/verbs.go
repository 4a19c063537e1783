package controller

import (
	"context"

	"github.com/sirupsen/logrus"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/seat"
	"kingpost/internal/mesh/verbs"
)

// Server answers the verbs of the controller seat.
func (c *Controller) Server(log logrus.FieldLogger) *seat.Server {
	s := seat.New(seat.Options{
		Seat: mesh.SeatController, Mesh: c.opt.Mesh, Open: c.Check, Log: log,
		About: func() map[string]any {
			return map[string]any{"mesh": c.opt.Mesh, "node": c.opt.Node, "epoch": c.opt.Epoch}
		},
	})
	seat.Register(s, seat.Verb[seat.None]{
		Name: verbs.Status, Summary: "the mesh at a glance: nodes, modules, seats, and what is held and why", Roles: seat.Everybody(),
		Run: func(ctx context.Context, _ seat.Request, _ *seat.None) (any, error) { return c.Status(ctx) },
	})
	seat.Register(s, seat.Verb[seat.None]{
		Name: verbs.Nodes, Summary: "the nodes, with what their hosts report", Roles: seat.Everybody(),
		Run: func(ctx context.Context, _ seat.Request, _ *seat.None) (any, error) { return c.Nodes(ctx) },
	})
	seat.Register(s, seat.Verb[verbs.ModulesParams]{
		Name: verbs.Modules, Summary: "the modules, with digests and history", Roles: seat.Everybody(),
		Check: func(_ context.Context, _ seat.Request, p *verbs.ModulesParams) error { return optional(p.Module) },
		Run: func(ctx context.Context, _ seat.Request, p *verbs.ModulesParams) (any, error) {
			return c.Modules(ctx, p)
		},
	})
	seat.Register(s, seat.Verb[verbs.PlanParams]{
		Name: verbs.Plan, Summary: "what a push, or without a manifest `declare`, would change on which node and why", Roles: seat.Everybody(),
		Check: func(_ context.Context, _ seat.Request, p *verbs.PlanParams) error {
			if p.Manifest == nil {
				if p.Digests != nil || p.Placement != nil {
					return seat.Errorf(mesh.CodeBadParams, "digests and placement belong to a manifest; give it too")
				}
				return nil
			}
			return (&proposal{manifest: *p.Manifest, digests: p.Digests, placement: p.Placement}).check()
		},
		Run: func(ctx context.Context, _ seat.Request, p *verbs.PlanParams) (any, error) { return c.Plan(ctx, p) },
	})
	seat.Register(s, seat.Verb[verbs.PushParams]{
		Name: verbs.Push, Summary: "brings a module, or a new version or form of it, into the mesh", Roles: seat.Operators(), Changes: true,
		Check: func(_ context.Context, _ seat.Request, p *verbs.PushParams) error {
			return (&proposal{manifest: p.Manifest, digests: p.Digests, placement: p.Placement}).check()
		},
		Run: func(ctx context.Context, r seat.Request, p *verbs.PushParams) (any, error) {
			return c.Push(ctx, r.Caller.String(), p)
		},
	})
	seat.Register(s, seat.Verb[verbs.DeclareParams]{
		Name: verbs.Declare, Summary: "lets go what is held, writes the declarations and delivers them", Roles: seat.Operators(), Changes: true,
		Check: func(_ context.Context, _ seat.Request, p *verbs.DeclareParams) error { return optional(p.Node) },
		Run: func(ctx context.Context, _ seat.Request, p *verbs.DeclareParams) (any, error) {
			return c.Declare(ctx, p)
		},
	})
	seat.Register(s, seat.Verb[verbs.ModuleMovedParams]{
		Name: verbs.ModuleMoved, Summary: "records that a module runs on another node now", Roles: seat.Operators(), Changes: true,
		Check: func(_ context.Context, _ seat.Request, p *verbs.ModuleMovedParams) error { return checkMoved(p) },
		Run: func(ctx context.Context, _ seat.Request, p *verbs.ModuleMovedParams) (any, error) {
			return c.ModuleMoved(ctx, p)
		},
	})
	seat.Register(s, seat.Verb[verbs.RemoveParams]{
		Name: verbs.Remove, Summary: "takes a module off the mesh; the content of its volumes stays", Roles: seat.Operators(), Changes: true,
		Check: func(_ context.Context, _ seat.Request, p *verbs.RemoveParams) error { return checkRemove(p) },
		Run: func(ctx context.Context, _ seat.Request, p *verbs.RemoveParams) (any, error) {
			return c.Remove(ctx, p)
		},
	})
	seat.Register(s, seat.Verb[verbs.TokenParams]{
		Name: verbs.Token, Summary: "makes a one-time token by which a node can join", Roles: seat.Operators(), Changes: true,
		Check: func(_ context.Context, _ seat.Request, p *verbs.TokenParams) error { return checkToken(p) },
		Run: func(ctx context.Context, r seat.Request, p *verbs.TokenParams) (any, error) {
			return c.Token(ctx, r.Caller.String(), p)
		},
	})
	return s
}

func optional(name string) error {
	if name == "" {
		return nil
	}
	return mesh.CheckName(name)
}
