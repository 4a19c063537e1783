package timesync

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Sample is what one server says.
type Sample struct {
	Server string
	Offset time.Duration // to be added to the clock
	// Distance is how far the truth may be from Offset (RFC 5905's root distance).
	Distance time.Duration
}

// least is the distance that every sample has at least: clocks that tick alike may differ by so much between two answers.
const least = 5 * time.Millisecond

// askAll asks all servers at the same time. It fails only where none has an answer.
func askAll(ctx context.Context, servers []string, ask func(context.Context, string) (Sample, error)) ([]Sample, error) {
	samples, errs := make([]Sample, len(servers)), make([]error, len(servers))
	var wg sync.WaitGroup
	for i, s := range servers {
		wg.Go(func() {
			samples[i], errs[i] = ask(ctx, s)
			samples[i].Server = s
			samples[i].Distance = max(samples[i].Distance, least)
		})
	}
	wg.Wait()
	var out []Sample
	for i := range samples {
		if errs[i] == nil {
			out = append(out, samples[i])
		}
	}
	if len(out) == 0 {
		return nil, errors.Join(errs...)
	}
	return out, nil
}

// choice is a sample that is believed.
type choice struct {
	Sample
	agree    int // servers that say the same, itself included
	outvoted []Sample
}

// choose finds the time that more than half of the servers agree upon (Marzullo's algorithm, RFC 5905, section 11.2.1),
// and of these takes the one that knows it best. One server is believed alone; two must agree.
func choose(samples []Sample) (choice, error) {
	best, at := 0, time.Duration(0)
	for _, s := range samples {
		// The largest set of intervals with a common point has it at the lower end of one of them.
		point, n := s.Offset-s.Distance, 0
		for _, o := range samples {
			if (o.Offset - point).Abs() <= o.Distance {
				n++
			}
		}
		if n > best {
			best, at = n, point
		}
	}
	if len(samples) == 0 || 2*best <= len(samples) {
		return choice{}, fmt.Errorf("the time servers do not agree: %s; name a third one, which decides", describe(samples))
	}
	c := choice{agree: best}
	for _, s := range samples {
		if (s.Offset - at).Abs() > s.Distance {
			c.outvoted = append(c.outvoted, s)
		} else if c.Server == "" || s.Distance < c.Distance {
			c.Sample = s
		}
	}
	return c, nil
}

func describe(samples []Sample) string {
	out := ""
	slices.SortFunc(samples, func(a, b Sample) int { return int((a.Offset - b.Offset) / max((a.Offset-b.Offset).Abs(), 1)) })
	for _, s := range samples {
		if out != "" {
			out += ", "
		}
		out += fmt.Sprintf("%s says %+.3f s", s.Server, s.Offset.Seconds())
	}
	return out
}
