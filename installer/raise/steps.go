package raise

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
)

// step is one of the ten. observe changes nothing and decides alone whether the step is done; act is
// idempotent, may be cut off anywhere, and is called again until observe is satisfied.
type step struct {
	name string
	// limit is how long the step may take before the raise gives up for now; 0 is no limit.
	limit   time.Duration
	observe func(context.Context, *walk) (observation, error)
	act     func(context.Context, *walk) error
}

// observation is what a step sees.
type observation struct {
	done bool
	// refused is said by preflight alone: nothing was changed, and nothing will be until the cause is gone.
	refused bool
	reason  string // what it waits for, or why it was refused
}

func waiting(format string, args ...any) (observation, error) {
	return observation{reason: fmt.Sprintf(format, args...)}, nil
}

func refused(format string, args ...any) (observation, error) {
	return observation{refused: true, reason: fmt.Sprintf(format, args...)}, nil
}

func done() (observation, error) { return observation{done: true}, nil }

// steps is the raise. The limits are generous: a slow machine that still moves must not be given up, and
// what waits for a person (steps 1 and 8) has none.
func steps() []step {
	return []step{
		{"preflight", 0, observePreflight, nil},
		{"identity", 2 * time.Minute, observeIdentity, actIdentity},
		{"store running", 10 * time.Minute, observeStore, actStore},
		{"store populated", time.Hour, observePopulated, actPopulate},
		{"broker running", 10 * time.Minute, observeBroker, actBroker},
		{"temporary controller", 10 * time.Minute, observeTemporary, actTemporary},
		{"declared", 10 * time.Minute, observeDeclared, actDeclare},
		{"pivot", 0, observePivot, nil},
		{"confirmed", 20 * time.Minute, observeConfirmed, actConfirm},
		{"seed parked", 5 * time.Minute, observeParked, actPark},
	}
}

// walk is one pass over the steps. What it remembers is only what need not be observed twice by the
// same process; a new process starts with an empty one.
type walk struct {
	node    Node
	request hostapi.RaiseRequest
	saved   func() error // puts the request on disk where it is not yet
	plan    *plan
	// verified is set once the whole seed was read and found right; it cannot change under a running system.
	verified  bool
	stored    map[string]bool // artifacts read back from the store, see storedKey
	blobs     map[string]bool // digests of their blobs: a component's bundle and image share theirs
	confirmed bool
	// say shows a reason while an act is under way, warn adds a warning to the step.
	say  func(format string, args ...any)
	warn func(warnings ...string)
	// pause waits between two looks at something, in an act.
	pause func(context.Context) error
}

// ready says whether a resource is as its declaration wants it.
func ready(r hostapi.ResourceStatus) bool {
	return slices.Contains([]string{"running", "healthy", "done", "present"}, r.State)
}

func status(s hostapi.Status, key string) *hostapi.ResourceStatus {
	for i := range s.Resources {
		if s.Resources[i].Key == key {
			return &s.Resources[i]
		}
	}
	return nil
}

// describe says why a resource is not ready, in the supervisor's words.
func describe(r *hostapi.ResourceStatus, key string) string {
	switch {
	case r == nil:
		return key + " is not known to the host yet"
	case r.Reason != "":
		return fmt.Sprintf("%s is %s: %s", key, r.State, r.Reason)
	}
	return fmt.Sprintf("%s is %s", key, r.State)
}

// unready lists what of the given modules is not ready, nil when everything is.
func unready(s hostapi.Status, d *mesh.Declaration, modules ...string) []string {
	var out []string
	for i := range d.Resources {
		r := &d.Resources[i]
		if len(modules) > 0 && !slices.Contains(modules, r.Module) {
			continue
		}
		if st := status(s, r.Key()); st == nil || !ready(*st) {
			out = append(out, describe(st, r.Key()))
		}
	}
	return out
}

// resources looks at the declared resources of modules and says what is missing.
func (w *walk) resources(ctx context.Context, modules ...string) (missing string, err error) {
	d, err := w.node.Declaration(ctx)
	if err != nil {
		return "", fmt.Errorf("read the node's declaration: %w", err)
	}
	for _, m := range modules {
		if d == nil || !slices.ContainsFunc(d.Resources, func(r mesh.Declared) bool { return r.Module == m }) {
			return "module " + m + " is not declared yet", nil
		}
	}
	s, err := w.node.Status(ctx)
	if err != nil {
		return "", fmt.Errorf("read the node's status: %w", err)
	}
	return strings.Join(unready(s, d, modules...), "; "), nil
}
