package builderd

import (
	"context"
	"time"

	"github.com/sirupsen/logrus"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/seat"
	"kingpost/internal/mesh/verbs"
)

// buildTimeout bounds one build, waiting for the one before included.
const buildTimeout = 15 * time.Minute

// Server answers the verbs of the builder seat in the mesh meshName.
func (b *Builder) Server(meshName string, log logrus.FieldLogger) *seat.Server {
	s := seat.New(seat.Options{
		Seat: mesh.SeatBuilder, Mesh: meshName, Open: b.Check, Log: log,
		MaxBody: verbs.MaxBuildInline*4/3 + 2<<20, // base64, and the names
	})
	seat.Register(s, seat.Verb[verbs.BuildsParams]{
		Name: verbs.List, Summary: "the builds that were made, newest first", Roles: seat.Everybody(),
		Check: func(_ context.Context, _ seat.Request, p *verbs.BuildsParams) error {
			if p.Name == "" {
				return nil
			}
			return mesh.CheckName(p.Name)
		},
		Run: func(_ context.Context, _ seat.Request, p *verbs.BuildsParams) (any, error) {
			return verbs.BuildsResult{Builds: b.log.newest(p.Name)}, nil
		},
	})
	seat.Register(s, seat.Verb[verbs.BuildParams]{
		Name: verbs.Build, Summary: "makes a bundle from files that are built already, and puts it into the store",
		Roles: seat.Operators(), Changes: true, Timeout: buildTimeout,
		Check: func(_ context.Context, _ seat.Request, p *verbs.BuildParams) error { return checkBuild(p) },
		Run: func(ctx context.Context, r seat.Request, p *verbs.BuildParams) (any, error) {
			return b.Build(ctx, r.Caller.String(), p)
		},
	})
	return s
}
