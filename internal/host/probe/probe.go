// Package probe asks the third-party servers that Kingpost runs whether they truly work, by the same
// requests that their users make. They are the answers of the seats store, registry and broker.
//
// It never restarts and never repairs anything. Store is in this file, Broker in broker.go.
package probe

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"kingpost/internal/mesh/artifact"
)

// Store is the artifact store on its socket.
type Store struct {
	Seat string
	// Dial connects to the running store.
	Dial func(context.Context) (net.Conn, error)
}

// Summary implements route.Builtin.
func (s *Store) Summary() string { return "asks the artifact store for its API version (GET /v2/)" }

// Ping implements route.Builtin.
func (s *Store) Ping(ctx context.Context) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	c := artifact.NewClient(s.Dial)
	defer c.HTTP.CloseIdleConnections()
	if err := c.Ping(ctx); err != nil {
		return nil, fmt.Errorf("GET /v2/: %w", err)
	}
	return map[string]any{"seat": s.Seat, "status": http.StatusOK}, nil
}
