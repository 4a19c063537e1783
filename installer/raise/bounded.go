package raise

import (
	"context"
	"fmt"
	"time"

	"kingpost/internal/mesh"
)

// How long one question to a node may take. What hangs is an error like any other, and the step says so.
const (
	callTime     = time.Minute      // a verb, a message through the broker
	artifactTime = 15 * time.Minute // one artifact into or out of the store
	restartTime  = 5 * time.Minute
)

// bounded is a node that answers in time or not at all.
type bounded struct{ Node }

func within(ctx context.Context, d time.Duration, what string, do func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	err := do(limited)
	if err != nil && ctx.Err() == nil && limited.Err() != nil {
		return fmt.Errorf("%s was not answered within %s: %w", what, d, err)
	}
	return err
}

func (n bounded) Call(ctx context.Context, seat, verb string, params, result any, opts ...mesh.CallOption) error {
	return within(ctx, callTime, seat+" "+verb, func(ctx context.Context) error {
		return n.Node.Call(ctx, seat, verb, params, result, opts...)
	})
}

func (n bounded) PushSeed(ctx context.Context, e mesh.SeedEntry) error {
	return within(ctx, artifactTime, "the store", func(ctx context.Context) error { return n.Node.PushSeed(ctx, e) })
}

func (n bounded) ReadStored(ctx context.Context, e mesh.SeedEntry, read map[string]bool) error {
	return within(ctx, artifactTime, "the store", func(ctx context.Context) error { return n.Node.ReadStored(ctx, e, read) })
}

func (n bounded) BrokerTrip(ctx context.Context) error {
	return within(ctx, callTime, "the broker", n.Node.BrokerTrip)
}

func (n bounded) KeepCA(ctx context.Context) error {
	return within(ctx, callTime, "the vault", n.Node.KeepCA)
}

func (n bounded) Restart(ctx context.Context, key string) error {
	return within(ctx, restartTime, "the restart of "+key, func(ctx context.Context) error { return n.Node.Restart(ctx, key) })
}
