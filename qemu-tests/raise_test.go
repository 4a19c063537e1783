package qemutests

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
	"kingpost/internal/mesh/tlsid"
	"kingpost/internal/mesh/verbs"
	"kingpost/qemu-tests/lab"
)

// TestRaise raises a mesh under UEFI on a machine that reaches nothing and is reached by the operator's port alone.
func TestRaise(t *testing.T) {
	t.Run("process", func(t *testing.T) {
		n := boot(t, lab.Spec{UEFI: true})
		s := raise(t, n, hostapi.RaiseRequest{})
		controllerFromStore(t, n, mesh.KindProcess)
		allSeatsAnswer(t, n)
		third := map[string]mesh.Kind{"registry": mesh.KindContainer, "broker": mesh.KindContainer}
		for _, r := range status(t, n).Resources {
			if k, ok := third[r.Module]; ok && r.Type != mesh.KindVolume && r.Type != mesh.KindFile && r.Type != k {
				t.Errorf("%s is a %s, third-party software is a container", r.Key, r.Type)
			}
		}
		operatorsProgram(t, n)
		raiseAgain(t, n)
		need(t, n.KeepRaised(t.Context(), "", s), "power off and keep the disk")
	})
	t.Run("container", func(t *testing.T) {
		n := boot(t, lab.Spec{UEFI: true})
		container := containerForm(t)
		raise(t, n, hostapi.RaiseRequest{Manifests: []mesh.Manifest{container}})
		controllerFromStore(t, n, mesh.KindContainer)
		allSeatsAnswer(t, n)

		process, err := theLab.Manifest("controller")
		need(t, err, "the controller's manifest")
		handover(t, n, process, mesh.KindProcess)
		handover(t, n, container, mesh.KindContainer)
		controllerAnswers(t, n)
	})
}

// containerForm is the controller's manifest with the server in the form of a container.
func containerForm(t *testing.T) mesh.Manifest {
	t.Helper()
	m, err := theLab.Manifest("controller")
	need(t, err, "the controller's manifest")
	for i := range m.Resources {
		r := &m.Resources[i]
		if r.ID == "server" {
			r.Type, r.Name, r.Bundle, r.Network = mesh.KindContainer, r.Bundle, "", "host"
		}
	}
	return m
}

// handoverGap is the longest that status may stay unanswered during a handover. The controller's two forms share a
// volume, so one is stopped before the other starts; on an emulated machine that is seconds.
const handoverGap = 20 * time.Second

// handover pushes the controller in another form and has its status asked throughout.
func handover(t *testing.T, n *lab.Node, m mesh.Manifest, form mesh.Kind) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var mu sync.Mutex
	var gap time.Duration
	last, answers := time.Now(), 0
	var asker sync.WaitGroup
	asker.Go(func() {
		for ctx.Err() == nil {
			one, cancel := context.WithTimeout(ctx, 5*time.Second)
			err := n.Client().Call(one, mesh.SeatController, verbs.Status, nil, nil)
			cancel()
			now := time.Now()
			mu.Lock()
			if err == nil {
				last, answers = now, answers+1
			}
			gap = max(gap, now.Sub(last))
			mu.Unlock()
			time.Sleep(100 * time.Millisecond)
		}
	})
	call(t, n, mesh.SeatController, verbs.Push, verbs.PushParams{Manifest: m}, nil)
	err := n.UntilStatus(t.Context(), lab.StepTime, func(s *hostapi.Status) error {
		r, err := lab.Resource(s, controllerKey)
		if err == nil && (r.Type != form || !lab.Up(r)) {
			err = fmt.Errorf("%s is %s (%s): %s", r.Key, r.State, r.Type, r.Reason)
		}
		if err == nil {
			err = lab.Settled(s)
		}
		return err
	})
	need(t, err, "handover to a %s", form)
	call(t, n, mesh.SeatController, verbs.Status, nil, nil)
	stop()
	asker.Wait()
	t.Logf("handover to a %s: status was answered %d times, unanswered for %.1f s at most", form, answers, gap.Seconds())
	if gap > handoverGap {
		t.Errorf("handover to a %s: status stayed unanswered for %v, at most %v are allowed", form, gap, handoverGap)
	}
	controllerFromStore(t, n, form)
}

// raiseAgain asks a raised node for what it is already.
func raiseAgain(t *testing.T, n *lab.Node) {
	t.Helper()
	before := status(t, n)
	s, err := n.Client().StartRaise(t.Context(), hostapi.RaiseRequest{Mesh: lab.MeshName})
	need(t, err, "raise a raised node again")
	if s.State != "done" {
		t.Errorf("raised again, the node says %s", lab.JSON(s))
	}
	_, err = n.Client().StartRaise(t.Context(), hostapi.RaiseRequest{Mesh: "other"})
	if !refusedWith(err, mesh.CodeConflict) || !strings.Contains(err.Error(), lab.MeshName) {
		t.Errorf("raised as another mesh, the node answers %v; wanted a conflict that names its mesh", err)
	}
	if after := status(t, n); after.Declared != before.Declared {
		t.Errorf("asking again changed the declaration from %v to %v", before.Declared, after.Declared)
	}
}

// cli runs the operator's program with a configuration folder of its own, which holds the lab's claim key.
type cli struct {
	config string
}

func newCLI(t *testing.T) *cli {
	t.Helper()
	c := &cli{t.TempDir()}
	need(t, os.MkdirAll(filepath.Join(c.config, "kingpost"), 0o700), "configuration folder")
	need(t, os.WriteFile(filepath.Join(c.config, "kingpost", "claim.key"), tlsid.MarshalPrivateKey(theLab.Operator), 0o600), "claim key")
	return c
}

// run runs it and returns what it printed, both ways, and its exit code.
func (c *cli) run(t *testing.T, args ...string) (string, int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), lab.RaiseTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, theLab.Kingpost, args...)
	cmd.Env = append(os.Environ(), "XDG_CONFIG_HOME="+c.config, "HOME="+c.config)
	out, err := cmd.CombinedOutput()
	if _, ok := err.(*exec.ExitError); err != nil && !ok {
		t.Fatalf("kingpost %s: %v", strings.Join(args, " "), err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// operatorsProgram uses a raised node by `kingpost` alone, as a person does.
func operatorsProgram(t *testing.T, n *lab.Node) {
	t.Helper()
	c := newCLI(t)
	if out, code := c.run(t, "status"); code != 1 {
		t.Errorf("kingpost status without a context: exit %d, wanted 1: %s", code, out)
	}
	for _, test := range []struct {
		args string
		want string
	}{
		{"raise " + n.Addr + " --mesh " + lab.MeshName + " --key " + n.Key, lab.MeshName}, // says that it is raised already
		{"status", "controller"},
		{"call controller status", lab.MeshName},
		{"call controller describe -o json", "module-moved"},
		{"call catalogue list", "mesh-controller"},
		{"call controller declare --probe", ""},
		{"logs controller/server", ""},
		{"node list", n.Name},
	} {
		out, code := c.run(t, strings.Fields(test.args)...)
		if code != 0 || !strings.Contains(out, test.want) {
			t.Errorf("kingpost %s: exit %d, wanted 0 and %q in: %s", test.args, code, test.want, out)
		}
	}
	if out, code := c.run(t, "raise", n.Addr, "--mesh", "other", "--key", n.Key); code != 3 {
		t.Errorf("kingpost raise as another mesh: exit %d, wanted 3: %s", code, out)
	}
}
