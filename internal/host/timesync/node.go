package timesync

import (
	"context"
	"fmt"
	"time"

	"kingpost/internal/mesh/hostapi"
)

// Node asks another node for its time by its API: a joined node its control-node, over a connection that says who answers.
// The answer is worth half of the time that it took; a second question over the same connection takes less.
func Node(now func() time.Time, client *hostapi.Client) func(ctx context.Context, server string) (Sample, error) {
	return func(ctx context.Context, server string) (Sample, error) {
		ctx, cancel := context.WithTimeout(ctx, askTime)
		defer cancel()
		var best Sample
		for i := range 2 {
			start := time.Now() // for how long it takes, which the clock's own steps do not change
			asked := now()
			n, err := client.Node(ctx)
			if err != nil {
				return Sample{}, fmt.Errorf("ask the node %s for its time: %w", server, err)
			}
			half := time.Since(start) / 2
			s := Sample{Offset: n.Time.Sub(asked.Add(half)), Distance: half}
			if i == 0 || s.Distance < best.Distance {
				best = s
			}
		}
		return best, nil
	}
}
