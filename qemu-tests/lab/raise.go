package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
)

// MeshName is the mesh that tests raise.
const MeshName = "home"

// Raise asks for a raise and follows it to its end; see FollowRaise.
func (n *Node) Raise(ctx context.Context, req hostapi.RaiseRequest, each func(hostapi.RaiseStatus)) (*hostapi.RaiseStatus, error) {
	if req.Mesh == "" {
		req.Mesh = MeshName
	}
	if _, err := n.Client().StartRaise(ctx, req); err != nil {
		return nil, fmt.Errorf("start the raise: %w", err)
	}
	return n.FollowRaise(ctx, each)
}

// FollowRaise follows the raise under way until it is done, and calls each (which may be nil) at every change. From then
// on the node's client is the mesh's operator. Refused and failed raises are errors that say the step and the reason.
func (n *Node) FollowRaise(ctx context.Context, each func(hostapi.RaiseStatus)) (*hostapi.RaiseStatus, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, RaiseTime, fmt.Errorf("the raise of %s was not done within %v", n.Name, RaiseTime))
	defer cancel()
	var last hostapi.RaiseStatus
	stop := errors.New("the raise has ended")
	for {
		err := n.Client().FollowRaise(ctx, func(s hostapi.RaiseStatus) error {
			last = s
			if each != nil {
				each(s)
			}
			switch s.State {
			case "done", "refused", "failed":
				return stop
			}
			return nil
		})
		if errors.Is(err, stop) {
			break
		}
		if ctx.Err() != nil {
			return &last, fmt.Errorf("%w; it stood at %s", context.Cause(ctx), Step(last))
		}
		select {
		case <-n.Done():
			return &last, fmt.Errorf("the machine ended during the raise, which stood at %s", Step(last))
		case <-time.After(pollEvery): // a connection that broke, a host that restarts
		}
	}
	if last.State != "done" {
		return &last, fmt.Errorf("the raise is %s: %s", last.State, Step(last))
	}
	return &last, n.SetCredentials(last.Certificate, last.CA)
}

// Step says where a raise stands.
func Step(s hostapi.RaiseStatus) string {
	if s.Step < 1 || s.Step > len(s.Steps) {
		return "state " + s.State
	}
	st := s.Steps[s.Step-1]
	return fmt.Sprintf("step %d %s %s: %s", st.Number, st.Name, st.State, st.Reason)
}

// raisedDisk is the disk of a node that was raised and powered off.
type raisedDisk struct {
	once   sync.Once
	path   string
	status *hostapi.RaiseStatus
	err    error
}

// Raised boots a node from a disk that was raised once for all tests of a run. manifests, named form, are what the raise
// is asked for; form "" is the image's own.
func (l *Lab) Raised(ctx context.Context, form string, manifests ...mesh.Manifest) (*Node, error) {
	n, err := l.StartRaised(ctx, form, Spec{}, manifests...)
	if err != nil {
		return n, err
	}
	return n, n.WaitUp(ctx, 0)
}

// StartRaised is Raised without waiting, and with s for what is not the disk.
func (l *Lab) StartRaised(ctx context.Context, form string, s Spec, manifests ...mesh.Manifest) (*Node, error) {
	l.mu.Lock()
	d := l.raised[form]
	if d == nil {
		d = &raisedDisk{}
		l.raised[form] = d
	}
	l.mu.Unlock()
	d.once.Do(func() { d.err = l.raise(ctx, d, manifests) })
	if d.err != nil {
		return nil, fmt.Errorf("raise a mesh for several tests: %w", d.err)
	}
	s.Base = d.path
	n, err := l.Start(ctx, s)
	if err != nil {
		return n, err
	}
	return n, n.SetCredentials(d.status.Certificate, d.status.CA)
}

// KeepRaised makes the disk of a raised node, which this powers off and ends, the one that Raised boots from.
func (n *Node) KeepRaised(ctx context.Context, form string, status *hostapi.RaiseStatus) error {
	if err := n.PowerOff(ctx); err != nil {
		return err
	}
	if n.Base != "" || n.keep {
		return errors.New("only a node on a disk of its own can be kept as raised")
	}
	path := filepath.Join(n.lab.dir, "raised-"+form+".img")
	if err := os.Rename(n.Path, path); err != nil {
		return err
	}
	n.Discard()
	n.lab.mu.Lock()
	defer n.lab.mu.Unlock()
	d := &raisedDisk{path: path, status: status}
	d.once.Do(func() {})
	n.lab.raised[form] = d
	return nil
}

func (l *Lab) raise(ctx context.Context, d *raisedDisk, manifests []mesh.Manifest) error {
	n, err := l.Boot(ctx, Spec{})
	if n != nil {
		defer n.Discard()
	}
	if err == nil {
		d.status, err = n.Raise(ctx, hostapi.RaiseRequest{Manifests: manifests}, nil)
	}
	if err == nil {
		err = n.PowerOff(ctx)
	}
	if err == nil {
		d.path = filepath.Join(l.dir, filepath.Base(n.dir)+"-raised.img")
		err = os.Rename(n.Path, d.path)
	}
	if err != nil && n != nil && n.VM != nil {
		if dir, kerr := n.Keep("raise-for-several-tests"); kerr == nil {
			err = fmt.Errorf("%w (kept in %s)", err, dir)
		}
	}
	return err
}
