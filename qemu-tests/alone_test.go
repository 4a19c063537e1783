package qemutests

import (
	"fmt"
	"slices"
	"testing"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
	"kingpost/qemu-tests/lab"
)

// TestNodeAlone takes controller, store and broker away from a raised node, keeping their data, and cuts its power: every
// other declared process is up again, from what the node itself has on disk.
func TestNodeAlone(t *testing.T) {
	t.Parallel()
	n := raised(t)
	need(t, n.UntilStatus(t.Context(), lab.StepTime, lab.Settled), "the node to settle")
	d, err := n.Client().Declaration(t.Context())
	need(t, err, "declaration")
	gone := []string{"controller", "registry", "broker"}
	d.Revision++
	d.Writer = "operator"
	var rest []string
	d.Resources = slices.DeleteFunc(d.Resources, func(r mesh.Declared) bool {
		runs := r.Type == mesh.KindProcess || r.Type == mesh.KindContainer
		if runs && !slices.Contains(gone, r.Module) {
			rest = append(rest, r.Key())
		}
		return runs && slices.Contains(gone, r.Module) // their volumes stay declared
	})
	if len(rest) < 3 {
		t.Fatalf("only %v would be left, there is nothing to test", rest)
	}
	need(t, n.Client().Declare(t.Context(), d), "declare the node without them")
	alone := func(s *hostapi.Status) error {
		for _, r := range s.Resources {
			if slices.Contains(gone, r.Module) && r.PID != 0 {
				return fmt.Errorf("%s still runs", r.Key)
			}
		}
		for _, key := range rest {
			r, err := lab.Resource(s, key)
			if err != nil {
				return err
			}
			if !lab.Up(r) || r.PID == 0 {
				return fmt.Errorf("%s is %s: %s", key, r.State, r.Reason)
			}
		}
		if s.Declared != d.Version {
			return fmt.Errorf("declared is %v, wanted %v", s.Declared, d.Version)
		}
		return nil
	}
	need(t, n.UntilStatus(t.Context(), lab.StepTime, alone), "the node without controller, store and broker")

	disk, creds := n.Path, n // the overlay goes on to be its disk
	n.Kill()
	again := start(t, lab.Spec{Name: "alpha", Disk: disk, Format: "qcow2"})
	need(t, again.WaitUp(t.Context(), 0), "boot after the power cut")
	again.ActAs(creds)
	need(t, again.UntilStatus(t.Context(), lab.StepTime, alone), "the node alone after a power cut")
	for _, seat := range []string{mesh.SeatCatalogue, mesh.SeatBuilder, mesh.SeatVault} {
		call(t, again, seat, mesh.VerbPing, nil, nil)
	}
	if err := again.Client().Call(t.Context(), mesh.SeatController, mesh.VerbPing, nil, nil); !refusedWith(err, mesh.CodeUnavailable) {
		t.Errorf("the seat that nobody holds answers %v", err)
	}
}
