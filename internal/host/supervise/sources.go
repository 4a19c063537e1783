package supervise

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/artifact"
)

// SeatHolder implements API.
func (s *Supervisor) SeatHolder(seat string) (key string, ok bool) {
	u := s.holder(seat)
	if u == nil {
		return "", false
	}
	return u.key, true
}

// holder is the unit that runs with seat.
func (s *Supervisor) holder(seat string) *unit {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.order {
		u := s.units[k]
		if u == nil {
			continue
		}
		u.mu.Lock()
		sp := u.active
		u.mu.Unlock()
		if sp != nil && slices.Contains(sp.Seats, seat) {
			return u
		}
	}
	return nil
}

// DialSeat implements API. The seat's folder is the workload's, so the socket is opened without following
// a link out of it: a holder cannot make the host talk to a socket that is not its own.
func (s *Supervisor) DialSeat(ctx context.Context, seat string) (net.Conn, error) {
	u := s.holder(seat)
	if u == nil {
		return nil, &mesh.CallError{Code: mesh.CodeUnavailable, Message: "nobody on this node holds the seat " + seat}
	}
	u.mu.Lock()
	sp := u.active
	u.mu.Unlock()
	if sp == nil {
		return nil, &mesh.CallError{Code: mesh.CodeUnavailable, Message: u.key + ", which held the seat " + seat + ", has just ended"}
	}
	return dialSocket(ctx, s.seatDir(sp.name()), seatSocket)
}

// seedSource is the seed as a source.
func (s *Supervisor) seedSource() (artifact.Source, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seedOff {
		return nil, fmt.Errorf("%w: the seed is disabled", errSource)
	}
	if s.layout == nil {
		l, err := artifact.OpenLayout(os.DirFS(s.cfg.Seed))
		if err != nil {
			return nil, fmt.Errorf("open the seed: %w", err)
		}
		s.layout = l
	}
	return s.layout, nil
}

// storeSource is the artifact store as a source: the one that runs here, else the mesh's.
func (s *Supervisor) storeSource() (artifact.Source, error) {
	if s.holder(mesh.SeatStore) != nil {
		tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return s.DialSeat(ctx, mesh.SeatStore)
		}, DisableCompression: true, DisableKeepAlives: true, ResponseHeaderTimeout: time.Minute}
		return &artifact.Client{HTTP: &http.Client{Transport: tr}, Base: "http://store"}, nil
	}
	if s.cfg.Store != nil {
		tr, base, err := s.cfg.Store()
		if err != nil {
			return nil, err
		}
		return &artifact.Client{HTTP: &http.Client{Transport: tr}, Base: strings.TrimSuffix(base, "/")}, nil
	}
	return nil, fmt.Errorf("%w: no artifact store runs here", errSource)
}
