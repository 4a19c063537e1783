package supervise

import (
	"context"
	"errors"
	"io"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
)

var errSoon = errors.New("not built yet")

func (s *Supervisor) Run(ctx context.Context) error                         { <-ctx.Done(); return nil }
func (s *Supervisor) Declare(ctx context.Context, d mesh.Declaration) error { return errSoon }
func (s *Supervisor) Declaration() (mesh.Declaration, bool)                 { return mesh.Declaration{}, false }
func (s *Supervisor) Status() hostapi.Status                                { return hostapi.Status{} }
func (s *Supervisor) Changed() <-chan struct{}                              { return nil }
func (s *Supervisor) Epoch() uint64                                         { return 0 }
func (s *Supervisor) SeatSocket(seat string) (path, key string, ok bool)    { return "", "", false }
func (s *Supervisor) Clear(key string) error                                { return errSoon }
func (s *Supervisor) Restart(ctx context.Context, key string) error         { return errSoon }
func (s *Supervisor) StopAll(ctx context.Context) error                     { return errSoon }
func (s *Supervisor) SetSeed(enabled bool)                                  {}
func (s *Supervisor) Logs(ctx context.Context, key string, o LogOptions) (io.ReadCloser, error) {
	return nil, errSoon
}
func (s *Supervisor) AccountOf(uid int) (module string, ok bool) { return "", false }

// ExecMain is the entry of `mesh-host exec SPEC`: it becomes the process that SPEC describes. It
// returns only on failure, with the exit code for os.Exit.
func ExecMain(args []string) int { return 1 }
