package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"kingpost/internal/mesh/hostapi"
)

// pollEvery is how often a condition is looked at. An emulated node answers slowly enough by itself.
const pollEvery = 500 * time.Millisecond

// Until calls check until it returns nil; after limit its last error is the answer.
func Until(ctx context.Context, limit time.Duration, check func(context.Context) error) error {
	wait, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := check(wait)
		if err == nil {
			return nil
		}
		select {
		case <-wait.Done():
			if ctx.Err() != nil {
				return fmt.Errorf("%w; last seen: %w", context.Cause(ctx), err)
			}
			return fmt.Errorf("not so within %v; last seen: %w", limit, err)
		case <-time.After(pollEvery):
		}
	}
}

// UntilStatus waits until check is content with the node's status.
func (n *Node) UntilStatus(ctx context.Context, limit time.Duration, check func(*hostapi.Status) error) error {
	return Until(ctx, limit, func(ctx context.Context) error {
		s, err := n.Client().Status(ctx)
		if err != nil {
			return err
		}
		return check(s)
	})
}

// Settled is content once everything declared is as declared.
func Settled(s *hostapi.Status) error {
	if s.Settled {
		return nil
	}
	return fmt.Errorf("not settled: %s", JSON(s.Resources))
}

// Resource finds a resource by its key, "MODULE/ID".
func Resource(s *hostapi.Status, key string) (hostapi.ResourceStatus, error) {
	for _, r := range s.Resources {
		if r.Key == key {
			return r, nil
		}
	}
	return hostapi.ResourceStatus{}, fmt.Errorf("the node knows no resource %s", key)
}

// Up says whether a resource runs, or is done where it runs to completion.
func Up(r hostapi.ResourceStatus) bool {
	switch r.State {
	case "running", "healthy", "done", "present":
		return true
	}
	return false
}

// Logs reads the last bytes of a resource's log.
func (n *Node) Logs(ctx context.Context, key string, bytes int64) (string, error) {
	r, err := n.Client().Logs(ctx, key, hostapi.LogQuery{Bytes: bytes})
	if err != nil {
		return "", err
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	return string(b), err
}

// JSON is v for people.
func JSON(v any) string {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err.Error()
	}
	return string(b)
}
