package supervise

import (
	"cmp"
	"runtime"
	"slices"
	"sync"
	"time"

	"kingpost/internal/mesh"
)

// A node that starts everything at once gets each of it late, the store and the broker, which others need, as late as
// the rest. So only a few resources start at a time, those first that others need.

const (
	// turnsGather is how long the first turn after Run waits for who else asks.
	turnsGather = 150 * time.Millisecond
	// turnLimit is how long a start counts as one: who takes longer goes on beside the next.
	turnLimit = 10 * time.Second
)

// turns lets units start a few at a time. The zero value lets nobody before open.
type turns struct {
	mu     sync.Mutex
	opened bool
	free   int
	asked  []turn // sorted: whose turn comes next is first
	given  map[*unit]*time.Timer
}

type turn struct {
	u    *unit
	rank int
}

// open lets units start from now on, as many at a time as there are CPUs, and two at least: one computes while the other
// waits for the disk.
func (t *turns) open() {
	t.mu.Lock()
	t.opened, t.free, t.given = true, max(2, runtime.NumCPU()), map[*unit]*time.Timer{}
	t.mu.Unlock()
	t.next()
}

// take reports whether it is u's turn to start. When it is not, u is woken as soon as it is.
func (t *turns) take(u *unit, rank int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.given[u] != nil {
		return true
	}
	if !slices.ContainsFunc(t.asked, func(a turn) bool { return a.u == u }) {
		t.asked = append(t.asked, turn{u, rank})
		slices.SortStableFunc(t.asked, func(a, b turn) int { return cmp.Compare(a.rank, b.rank) })
	}
	if !t.opened || t.free == 0 || t.asked[0].u != u {
		return false
	}
	t.give()
	return true
}

// give gives the next turn. t.mu is held, and there is one to give.
func (t *turns) give() *unit {
	u := t.asked[0].u
	t.asked = t.asked[1:]
	t.free--
	t.given[u] = time.AfterFunc(turnLimit, func() { t.back(u) })
	return u
}

// back ends u's turn, if it has one, or its wait for one.
func (t *turns) back(u *unit) {
	t.mu.Lock()
	t.asked = slices.DeleteFunc(t.asked, func(a turn) bool { return a.u == u })
	if timer := t.given[u]; timer != nil {
		timer.Stop()
		delete(t.given, u)
		t.free++
	}
	t.mu.Unlock()
	t.next()
}

// next wakes those whose turn has come.
func (t *turns) next() {
	t.mu.Lock()
	var wake []*unit
	for t.opened && t.free > 0 && len(t.asked) > 0 {
		wake = append(wake, t.give())
	}
	t.mu.Unlock()
	for _, u := range wake {
		u.poke()
	}
}

// rank orders starts: what others need, what the node is not good without, the rest.
func rank(sp *spec) int {
	switch {
	case slices.ContainsFunc(sp.Seats, func(s string) bool {
		return s == mesh.SeatStore || s == mesh.SeatRegistry || s == mesh.SeatBroker
	}):
		return 0
	case sp.controller() || sp.Critical:
		return 1
	}
	return 2
}
