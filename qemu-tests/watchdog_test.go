package qemutests

import (
	"fmt"
	"strings"
	"testing"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
	"kingpost/internal/mesh/verbs"
	"kingpost/qemu-tests/lab"
)

// TestStuck makes stand still what a node cannot do without, and takes all its memory: what is stuck is ended by whoever
// it is stuck for, and what matters stays.
func TestStuck(t *testing.T) {
	if !*long {
		t.Skip("an emulated machine without memory stands still for minutes: make test-long runs it")
	}
	n, err := theLab.StartRaised(t.Context(), "", quick("-device", "i6300esb", "-action", "watchdog=reset"))
	if n != nil {
		watch(t, n)
	}
	need(t, err, "start a raised node")
	need(t, n.WaitUp(t.Context(), 0), "boot a raised node")
	need(t, n.UntilStatus(t.Context(), lab.StepTime, lab.Settled), "the node to settle")

	t.Run("out of memory", func(t *testing.T) { outOfMemory(t, n) })
	t.Run("host", func(t *testing.T) { hostStopped(t, n) })
	t.Run("pid 1", func(t *testing.T) { firstProcessFrozen(t, n) })
}

// TestSoftwareWatchdog is the same for PID 1 of a machine without a watchdog of its own.
func TestSoftwareWatchdog(t *testing.T) {
	if !*long {
		t.Skip("TestStuck shows the same with a watchdog of the machine; run by -long")
	}
	n := raised(t)
	need(t, n.UntilStatus(t.Context(), lab.StepTime, lab.Settled), "the node to settle")
	firstProcessFrozen(t, n)
}

// outOfMemory has a process take all memory: it dies and says why; the host and all that is critical run on untouched.
func outOfMemory(t *testing.T, n *lab.Node) {
	before, critical := running(t, n), map[string]bool{}
	for _, r := range status(t, n).Resources {
		critical[r.Key] = r.Critical && r.PID != 0
	}
	host, err := n.Client().Node(t.Context())
	need(t, err, "node")
	digest := buildGuest(t, n)
	const key = "greedy/eater"
	m := mesh.Manifest{Module: "greedy", Resources: []mesh.Resource{{ID: "eater", Type: mesh.KindProcess, Bundle: "guest", Args: []string{"devour"}}}}
	call(t, n, mesh.SeatController, verbs.Push, verbs.PushParams{Manifest: m, Digests: mesh.Digests{"bundle/guest": {"amd64": digest}}}, nil)
	need(t, n.UntilStatus(t.Context(), lab.StepTime, func(s *hostapi.Status) error {
		r, err := lab.Resource(s, key)
		if err == nil && (r.Exit == nil || *r.Exit != 137 || !strings.Contains(r.Reason, "the node ran out of memory")) {
			err = fmt.Errorf("the eater is %s: %s", r.State, lab.JSON(r))
		}
		return err
	}), "the eater to be killed and to say why")
	call(t, n, mesh.SeatController, verbs.Push, verbs.PushParams{Manifest: m, Placement: &[]string{}}, nil)
	need(t, n.UntilStatus(t.Context(), lab.StepTime, func(s *hostapi.Status) error {
		if _, err := lab.Resource(s, key); err == nil {
			return fmt.Errorf("%s is there still", key)
		}
		return nil
	}), "the eater to be gone")
	after, err := n.Client().Node(t.Context())
	need(t, err, "node")
	if after.Host.PID != host.Host.PID {
		t.Errorf("the host was process %d and is %d", host.Host.PID, after.Host.PID)
	}
	now, some := running(t, n), 0
	for key, was := range before {
		if critical[key] {
			some++
			if now[key] != was {
				t.Errorf("%s, which is critical, was %s, and is %s", key, was, now[key])
			}
		}
	}
	if some == 0 {
		t.Error("nothing that runs is critical: there is nothing to be proved")
	}
}

// hostStopped stops the host by a signal while it works: the launcher finds it silent and starts it again, and nothing
// else is touched.
func hostStopped(t *testing.T, n *lab.Node) {
	need(t, n.UntilStatus(t.Context(), lab.StepTime, lab.Settled), "what ran out of memory to be gone, and all else to be as declared")
	before := running(t, n)
	host, err := n.Client().Node(t.Context())
	need(t, err, "node")
	m := n.Serial.Now()
	signalInside(t, n, "stop", host.Host.PID)
	waitConsole(t, n, m, `kingpost: error host baked-in failed, 1 of 5: stuck: it has said nothing for 25s`)
	waitNode(t, n, func(now *hostapi.Node) error {
		if now.Host.PID == host.Host.PID {
			return fmt.Errorf("process %d still runs", now.Host.PID)
		}
		return nil
	})
	need(t, n.UntilStatus(t.Context(), lab.StepTime, lab.Settled), "the next host to have taken over")
	now := running(t, n)
	for key, was := range before {
		if now := now[key]; now != was {
			t.Errorf("%s was %s, and is %s", key, was, now)
		}
	}
}

// firstProcessFrozen holds PID 1 still: the watchdog resets the machine, and the node is up again.
func firstProcessFrozen(t *testing.T, n *lab.Node) {
	m := n.Serial.Now()
	signalInside(t, n, "freeze", 1)
	waitConsole(t, n, m, `kingpost: booted in `)
	need(t, n.WaitUp(t.Context(), m), "boot after the reset")
	if text := n.Serial.Since(m); strings.Contains(text, "rebooting") || strings.Contains(text, "panic") {
		t.Errorf("it was no reset by the watchdog:\n%.2000s", text)
	}
}
