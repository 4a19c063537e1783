package qemutests

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
	"kingpost/internal/mesh/verbs"
	"kingpost/qemu-tests/lab"
)

func TestController(t *testing.T) {
	t.Run("killed", controllerKilled)
	t.Run("environment", controllerEnvironment)
	t.Run("never-healthy", controllerNeverHealthy)
}

// controllerKilled kills the controller by SIGKILL three times: it comes back, with its state, in a term of its own, and a
// write of an earlier term is refused.
func controllerKilled(t *testing.T) {
	n := raised(t)
	need(t, n.UntilStatus(t.Context(), lab.StepTime, lab.Settled), "the node to settle")
	digest := buildGuest(t, n)
	before := resource(t, n, controllerKey)
	stale, err := n.Client().Declaration(t.Context())
	need(t, err, "declaration")

	for i := range 3 {
		now := resource(t, n, controllerKey)
		killer := mesh.Manifest{Module: "killer", Version: fmt.Sprint(i), Resources: []mesh.Resource{{
			ID: "kill", Type: mesh.KindProcess, Bundle: "guest", Args: []string{"kill", fmt.Sprint(now.PID)},
			Capabilities: []string{"CAP_KILL"}, Policy: mesh.PolicyOnce,
		}}}
		params := verbs.PushParams{Manifest: killer, Digests: mesh.Digests{"bundle/guest": {"amd64": digest}}}
		call(t, n, mesh.SeatController, verbs.Push, params, nil)
		need(t, n.UntilStatus(t.Context(), lab.StepTime, func(s *hostapi.Status) error {
			r, err := lab.Resource(s, controllerKey)
			if err == nil && (r.PID == now.PID || !lab.Up(r) || r.Epoch <= now.Epoch) {
				k, _ := lab.Resource(s, "killer/kill")
				err = fmt.Errorf("the controller is %s, pid %d (was %d), epoch %d (was %d); the killer is %s: %s", r.State, r.PID, now.PID, r.Epoch, now.Epoch, k.State, k.Reason)
			}
			return err
		}), "the controller after kill %d", i+1)
		var m verbs.ModulesResult
		need(t, lab.Until(t.Context(), lab.StepTime, func(ctx context.Context) error {
			m = verbs.ModulesResult{}
			return n.Client().Call(ctx, mesh.SeatController, verbs.Modules, verbs.ModulesParams{Module: "killer"}, &m)
		}), "the controller to answer after kill %d", i+1)
		if len(m.Modules) != 1 || m.Modules[0].Latest != uint64(i+1) {
			t.Errorf("after kill %d the controller has lost a push: %s", i+1, lab.JSON(m))
		}
	}
	after := resource(t, n, controllerKey)
	if after.Epoch < before.Epoch+3 {
		t.Errorf("three restarts took the controller from epoch %d to %d only", before.Epoch, after.Epoch)
	}
	stale.Revision += 1000
	if err := n.Client().Declare(t.Context(), stale); !refusedWith(err, mesh.CodeConflict) {
		t.Errorf("a declaration of epoch %d, after epoch %d was given out, is answered by %v; wanted a conflict", stale.Epoch, after.Epoch, err)
	}
	controllerFromStore(t, n, mesh.KindProcess)
}

// buildGuest has the mesh's own builder make a bundle of the guest program.
func buildGuest(t *testing.T, n *lab.Node) string {
	t.Helper()
	program, err := theLab.Guest(t.Context(), "./qemu-tests/guest")
	need(t, err, "the guest program")
	var record verbs.BuildRecord
	call(t, n, mesh.SeatBuilder, verbs.Build, verbs.BuildParams{
		Name: "guest", Version: "1", Arch: "amd64", Files: []verbs.BuildFile{{Path: "bin/guest", Executable: true, Content: program}},
	}, &record)
	return record.Digest
}

// controllerEnvironment raises with a manifest that has an environment and a volume of its own: the temporary controller
// and the declared one have both.
func controllerEnvironment(t *testing.T) {
	m, err := theLab.Manifest("controller")
	need(t, err, "the controller's manifest")
	m.Resources = append(m.Resources, mesh.Resource{ID: "extra", Type: mesh.KindVolume})
	for i := range m.Resources {
		if r := &m.Resources[i]; r.ID == "server" {
			if r.Env == nil {
				r.Env = map[string]string{}
			}
			r.Env["GODEBUG"] = "inittrace=1"
			r.Volumes = append(r.Volumes, mesh.Mount{Volume: "extra", Path: "/extra"})
		}
	}
	n := boot(t, lab.Spec{})
	var temporary, declared bool
	has := func(d *mesh.Declaration) bool {
		for _, r := range d.Resources {
			if r.Key() != controllerKey {
				continue
			}
			for _, v := range r.Volumes {
				if v.Volume == "extra" && v.Path == "/extra" {
					return r.Env["GODEBUG"] == "inittrace=1"
				}
			}
		}
		return false
	}
	s, err := n.Raise(t.Context(), hostapi.RaiseRequest{Manifests: []mesh.Manifest{m}}, func(s hostapi.RaiseStatus) {
		d, err := n.Client().Declaration(t.Context())
		if err != nil || d == nil {
			if s.Certificate != "" {
				n.SetCredentials(s.Certificate, s.CA)
			}
			return
		}
		temporary = temporary || d.Epoch == 0 && has(d)
		declared = declared || d.Epoch > 0 && has(d)
	})
	logSteps(t, s)
	need(t, err, "raise")
	if !temporary || !declared {
		t.Errorf("the environment and volume of the manifest: with the temporary controller %v, with the declared one %v", temporary, declared)
	}
	if r := resource(t, n, "controller/extra"); !lab.Up(r) {
		t.Errorf("the manifest's own volume is %s", lab.JSON(r))
	}
	controllerFromStore(t, n, mesh.KindProcess)
	// The declaration says what the two were to have; that they had it shows in their log, to which Go's runtime writes a
	// trace of each start with this setting.
	const trace = "init runtime @"
	need(t, lab.Until(t.Context(), time.Minute, func(context.Context) error {
		text, err := n.Logs(t.Context(), controllerKey, 1<<20)
		if err == nil && strings.Count(text, trace) < 2 {
			err = fmt.Errorf("the log has the trace of %d starts, wanted one before the pivot and one after it:\n%.2000s", strings.Count(text, trace), text)
		}
		return err
	}), "the environment that the controllers really had")
}

// controllerNeverHealthy declares a controller that can never become healthy: the temporary one answers again, the reason is
// shown, and a corrected push finishes the raise.
func controllerNeverHealthy(t *testing.T) {
	good, err := theLab.Manifest("controller")
	need(t, err, "the controller's manifest")
	bad, err := theLab.Manifest("controller")
	need(t, err, "the controller's manifest")
	for i := range bad.Resources {
		if r := &bad.Resources[i]; r.ID == "server" {
			r.Health = &mesh.Health{TCP: "127.0.0.1:9", Start: mesh.Duration(20 * time.Second), Interval: mesh.Duration(2 * time.Second)}
		}
	}
	n := boot(t, lab.Spec{})
	_, err = n.Client().StartRaise(t.Context(), hostapi.RaiseRequest{Mesh: lab.MeshName, Manifests: []mesh.Manifest{bad}})
	need(t, err, "start the raise")
	var stuck hostapi.RaiseStep
	need(t, lab.Until(t.Context(), lab.RaiseTime, func(ctx context.Context) error {
		s, err := n.Client().Raise(ctx)
		if err != nil {
			return err
		}
		if s.Certificate != "" {
			n.SetCredentials(s.Certificate, s.CA)
		}
		if s.Step != 8 {
			return fmt.Errorf("the raise is %s at %s", s.State, lab.Step(*s))
		}
		stuck = s.Steps[7]
		if !strings.Contains(stuck.Reason, "health") || !strings.Contains(stuck.Reason, "temporary") {
			return fmt.Errorf("the pivot waits for: %q", stuck.Reason)
		}
		return nil
	}), "the pivot to say why it waits")
	t.Logf("the pivot waits: %s", stuck.Reason)
	r := resource(t, n, controllerKey)
	if r.Source != mesh.SourceSeed || !lab.Up(r) || !strings.Contains(r.Reason, "health") {
		t.Errorf("the temporary controller is not what runs again, with the reason: %s", lab.JSON(r))
	}
	var st verbs.StatusResult
	call(t, n, mesh.SeatController, verbs.Status, nil, &st)
	if st.Settled {
		t.Error("the controller says that all is as declared, while its declared self failed")
	}
	call(t, n, mesh.SeatController, verbs.Push, verbs.PushParams{Manifest: good}, nil)
	s, err := n.FollowRaise(t.Context(), nil)
	logSteps(t, s)
	need(t, err, "the raise after a corrected push")
	controllerFromStore(t, n, mesh.KindProcess)
	controllerAnswers(t, n)
}
