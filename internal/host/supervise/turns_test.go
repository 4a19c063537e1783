package supervise

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"kingpost/internal/mesh"
)

// TestTurns has many units ask before anybody may start: those that others need come first, whoever asked first, and no
// more than there are turns start at once.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s turns
		limit := max(2, runtime.NumCPU())
		last, first := make([]*unit, limit), make([]*unit, limit)
		for i := range limit {
			last[i] = newUnit(nil, "late/server")
			if s.take(last[i], 2) {
				t.Fatal("a turn before there are any")
			}
		}
		for i := range limit {
			first[i] = newUnit(nil, "early/server")
			s.take(first[i], 0)
		}
		s.open()
		for i := range limit {
			if !s.take(first[i], 0) {
				t.Errorf("%d of those that others need has no turn", i)
			}
			if s.take(last[i], 2) {
				t.Errorf("%d of the others has one beside them", i)
			}
		}
		s.back(first[0])
		select {
		case <-last[0].wake:
		default:
			t.Error("who comes next is not woken")
		}
		if !s.take(last[0], 2) || s.take(last[1], 2) {
			t.Error("one turn that is given back is one turn")
		}
		// A start that takes too long does not hold up the rest.
		time.Sleep(turnLimit + time.Second)
		if !s.take(last[1], 2) {
			t.Error("a turn lasts for ever")
		}
		s.back(first[1]) // one that has no turn any more
		for i := range limit {
			s.back(last[i])
		}
		if len(s.given) != 0 || len(s.asked) != 0 || s.free != limit {
			t.Errorf("left: %d given, %d asked, %d free of %d", len(s.given), len(s.asked), s.free, limit)
		}
	})
}

func TestRank(t *testing.T) {
	for name, tt := range map[string]struct {
		r    mesh.Resource
		want int
	}{
		"store":      {mesh.Resource{Seats: []string{mesh.SeatStore, mesh.SeatRegistry}}, 0},
		"broker":     {mesh.Resource{Seats: []string{mesh.SeatBroker}}, 0},
		"controller": {mesh.Resource{Seats: []string{mesh.SeatController}}, 1},
		"critical":   {mesh.Resource{Critical: true}, 1},
		"any other":  {mesh.Resource{Seats: []string{"web"}}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			if got := rank(&spec{Declared: mesh.Declared{Resource: tt.r}}); got != tt.want {
				t.Errorf("rank %d, wanted %d", got, tt.want)
			}
		})
	}
}
