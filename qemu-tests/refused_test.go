package qemutests

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
	"kingpost/internal/mesh/tlsid"
	"kingpost/internal/nodevm"
	"kingpost/internal/qemu"
	"kingpost/internal/release"
	"kingpost/qemu-tests/lab"
)

// TestRaiseRefused has each reason for which preflight stops: it is named, it is the only one, nothing was changed, and the
// raise goes on when the cause is gone.
func TestRaiseRefused(t *testing.T) {
	t.Run("seed", refusedSeed)
	t.Run("disk", refusedDisk)
	t.Run("port", refusedPort)
	t.Run("claim", refusedClaim)
	t.Run("clock", acceptedClock)
}

// refused starts a raise and waits until preflight says no. It checks that nothing was changed, and returns the reason.
func refused(t *testing.T, n *lab.Node) string {
	t.Helper()
	before, err := n.Client().Declaration(t.Context())
	need(t, err, "declaration")
	_, err = n.Client().StartRaise(t.Context(), hostapi.RaiseRequest{Mesh: lab.MeshName})
	need(t, err, "start the raise")
	var s *hostapi.RaiseStatus
	need(t, lab.Until(t.Context(), lab.StepTime, func(ctx context.Context) error {
		var err error
		if s, err = n.Client().Raise(ctx); err == nil && s.State != "refused" {
			err = fmt.Errorf("the raise is %s at %s", s.State, lab.Step(*s))
		}
		return err
	}), "preflight to refuse")
	if s.Step != 1 || s.Steps[0].Reason == "" || s.Steps[0].State != "refused" {
		t.Errorf("refused, but not by preflight with a reason: %s", lab.JSON(s))
	}
	after, err := n.Client().Declaration(t.Context())
	need(t, err, "declaration")
	if lab.JSON(before) != lab.JSON(after) {
		t.Errorf("a refused raise changed the declaration from %s to %s", lab.JSON(before), lab.JSON(after))
	}
	if node, err := n.Client().Node(t.Context()); err != nil || node.Mesh != "" {
		t.Errorf("a refused raise left a mesh: %s %v", lab.JSON(node), err)
	}
	if s.Certificate != "" || s.CA != "" {
		t.Error("a refused raise made certificates")
	}
	t.Logf("refused: %s", s.Steps[0].Reason)
	return s.Steps[0].Reason
}

// mentions checks that a reason names its cause and no other one.
func mentions(t *testing.T, reason, cause string) {
	t.Helper()
	if !strings.Contains(strings.ToLower(reason), cause) {
		t.Errorf("the reason %q does not name its cause, %s", reason, cause)
	}
}

// continues checks that the raise gets past what refused it: to a store that runs.
func continues(t *testing.T, n *lab.Node) {
	t.Helper()
	need(t, lab.Until(t.Context(), lab.RaiseTime, func(ctx context.Context) error {
		s, err := n.Client().Raise(ctx)
		switch {
		case err != nil:
			return err
		case s.Certificate != "":
			n.SetCredentials(s.Certificate, s.CA)
		}
		if s.Step < 4 && s.State != "done" {
			return fmt.Errorf("the raise is %s at %s", s.State, lab.Step(*s))
		}
		return nil
	}), "the raise to go on")
}

func newDisk(t *testing.T, s lab.Spec) string {
	t.Helper()
	disk := filepath.Join(t.TempDir(), "disk.img")
	need(t, theLab.NewDisk(t.Context(), disk, s), "make a disk")
	return disk
}

func refusedSeed(t *testing.T) {
	disk := newDisk(t, lab.Spec{Name: "alpha"})
	bad, digest, err := theLab.FlipSeedByte(t.Context(), disk)
	need(t, err, "flip a byte of the seed")
	n := boot(t, lab.Spec{Disk: disk, Boot: &bad})
	reason := refused(t, n)
	mentions(t, reason, "seed")
	mentions(t, reason, strings.TrimPrefix(digest, "sha256:")[:12])
	need(t, n.PowerOff(t.Context()), "power off")
	n.Discard()

	need(t, lab.CopyPartition(disk, theLab.Image, release.PartRootA), "bring back the root image")
	continues(t, boot(t, lab.Spec{Disk: disk}))
}

func refusedDisk(t *testing.T) {
	// The image as it is: its data partition cannot grow.
	disk := newDisk(t, lab.Spec{Name: "alpha", DiskSize: 1})
	n := boot(t, lab.Spec{Disk: disk})
	mentions(t, refused(t, n), "data partition")
	need(t, n.PowerOff(t.Context()), "power off")
	n.Discard()

	need(t, os.Truncate(disk, 4<<30), "enlarge the disk")
	continues(t, boot(t, lab.Spec{Disk: disk}))
}

func refusedPort(t *testing.T) {
	n := boot(t, lab.Spec{})
	digests, err := theLab.Digests()
	need(t, err, "the seed's digests")
	declare := func(revision uint64, resources ...mesh.Declared) {
		t.Helper()
		need(t, n.Client().Declare(t.Context(), &mesh.Declaration{Mesh: lab.MeshName, Node: n.Name, Version: mesh.Version{Revision: revision}, Writer: "operator", Resources: resources}), "declare")
	}
	squatter := mesh.Declared{Module: "squatter", Resource: mesh.Resource{
		ID: "server", Type: mesh.KindContainer, Name: "nats-server", Digest: digests[brokerImage(t)]["amd64"], Source: mesh.SourceSeed,
		Network: "host", Args: []string{"-a", "0.0.0.0", "-p", fmt.Sprint(mesh.PortStore)},
	}}
	declare(1, squatter)
	need(t, n.UntilStatus(t.Context(), lab.StepTime, func(s *hostapi.Status) error {
		r, err := lab.Resource(s, "squatter/server")
		if err == nil && !lab.Up(r) {
			err = fmt.Errorf("%s is %s: %s", r.Key, r.State, r.Reason)
		}
		return err
	}), "something else on the store's port")
	time.Sleep(5 * time.Second) // it runs; a moment later it listens
	reason := refused(t, n)
	mentions(t, reason, fmt.Sprint(mesh.PortStore))
	declare(2)
	continues(t, n)
}

// brokerImage is the seed's name of the broker's image, from its manifest.
func brokerImage(t *testing.T) string {
	t.Helper()
	m, err := theLab.Manifest("broker")
	need(t, err, "the broker's manifest")
	for i := range m.Resources {
		if m.Resources[i].Type == mesh.KindContainer {
			return m.Resources[i].Artifact().String()
		}
	}
	t.Fatal("the broker's module has no container")
	return ""
}

func refusedClaim(t *testing.T) {
	_, other, err := ed25519.GenerateKey(nil)
	need(t, err, "another key")
	theirs := tlsid.FormatPublicKey(other.Public().(ed25519.PublicKey))
	disk := newDisk(t, lab.Spec{Config: &mesh.NodeConfig{Hostname: "alpha", Claim: theirs}})
	n := boot(t, lab.Spec{Disk: disk})
	_, err = n.Client().StartRaise(t.Context(), hostapi.RaiseRequest{Mesh: lab.MeshName})
	if err == nil {
		t.Fatal("a node that is claimed by another key takes our raise")
	}
	mentions(t, err.Error(), "claim")
	t.Logf("refused: %v", err)

	// Its owner is let in, but not with our key as the operator's.
	cert, err := tlsid.SelfSigned(other, "owner")
	need(t, err, "the owner's certificate")
	owner, err := n.ClientWith(cert)
	need(t, err, "the owner's client")
	defer owner.Close()
	_, err = owner.StartRaise(t.Context(), hostapi.RaiseRequest{Mesh: lab.MeshName, Operator: theLab.Claim})
	need(t, err, "the owner's raise for us")
	need(t, lab.Until(t.Context(), lab.StepTime, func(ctx context.Context) error {
		s, err := owner.Raise(ctx)
		if err == nil && s.State != "refused" {
			err = fmt.Errorf("the raise is %s at %s", s.State, lab.Step(*s))
		}
		if err == nil {
			mentions(t, s.Steps[0].Reason, "claim")
		}
		return err
	}), "preflight to refuse another operator's key")
	if d, err := owner.Declaration(t.Context()); err != nil || d != nil {
		t.Errorf("a refused raise left a declaration: %s %v", lab.JSON(d), err)
	}
	need(t, owner.Power(t.Context(), "poweroff"), "power off")
	need(t, n.Wait(t.Context()), "power off")
	n.Discard()

	need(t, nodevm.Configure(disk, []byte("hostname: alpha\nclaim: "+theLab.Claim+"\n"), time.Now()), "claim it by our key")
	n = boot(t, lab.Spec{Disk: disk})
	_, err = n.Client().StartRaise(t.Context(), hostapi.RaiseRequest{Mesh: lab.MeshName, Operator: theLab.Claim})
	need(t, err, "start the raise")
	continues(t, n)
}

// acceptedClock is no refusal: a machine without battery and network takes its release's date.
func acceptedClock(t *testing.T) {
	n := boot(t, lab.Spec{RTC: "1970-01-01T00:00:00"})
	s := raise(t, n, hostapi.RaiseRequest{})
	node, err := n.Client().Node(t.Context())
	need(t, err, "node")
	date, err := time.Parse(time.DateOnly, node.Release.Date)
	need(t, err, "the release's date")
	if node.Time.Before(date) {
		t.Errorf("the node's clock is %v, before its release's date %v", node.Time, date)
	}
	if node.Boot.Clock == "" || !strings.Contains(strings.Join(s.Steps[0].Warnings, "\n"), "1970") {
		t.Errorf("nobody was warned of the clock: boot says %q, preflight %q", node.Boot.Clock, s.Steps[0].Warnings)
	}
	if !strings.Contains(n.Serial.Since(0), "1970") {
		t.Error("the console does not warn of the clock")
	}
	controllerFromStore(t, n, mesh.KindProcess)
}

// TestRaiseTwice asks for a raise twice at once: it is one raise.
func TestRaiseTwice(t *testing.T) {
	n := boot(t, lab.Spec{})
	done := make(chan error, 2)
	for range 2 {
		go func() {
			_, err := n.Client().StartRaise(t.Context(), hostapi.RaiseRequest{Mesh: lab.MeshName})
			done <- err
		}()
	}
	for range 2 {
		if err := <-done; err != nil {
			t.Errorf("one of two raises at once: %v", err)
		}
	}
	// However far the first one is, it is not turned into another.
	if _, err := n.Client().StartRaise(t.Context(), hostapi.RaiseRequest{Mesh: "other"}); !refusedWith(err, mesh.CodeConflict) {
		t.Errorf("a raise as another mesh at the same time: %v, wanted a conflict", err)
	}
	_, err := n.Client().StartRaise(t.Context(), hostapi.RaiseRequest{Mesh: lab.MeshName})
	if err != nil {
		t.Fatalf("ask again: %v", err)
	}
	s, err := n.FollowRaise(t.Context(), nil)
	logSteps(t, s)
	need(t, err, "raise")
	if s.Mesh != lab.MeshName {
		t.Errorf("raised is %s", s.Mesh)
	}
	controllerFromStore(t, n, mesh.KindProcess)
}

// TestRootTampered changes one byte of root-A on the disk: it is never mounted as root, and the console says what failed.
func TestRootTampered(t *testing.T) {
	for name, uefi := range map[string]bool{"uefi": true, "direct": false} {
		t.Run(name, func(t *testing.T) {
			disk := newDisk(t, lab.Spec{Name: "alpha"})
			const block = 1000
			need(t, lab.FlipByte(disk, release.PartRootA, block*4096+17), "flip a byte")
			n := start(t, lab.Spec{Disk: disk, UEFI: uefi})
			match := waitConsole(t, n, 0, `(?i)root-a[^\n]*block 1000\b`)
			t.Logf("the console says: %s", match[0])
			// It stays up in rescue for whoever comes, without a host: nothing of that root runs.
			time.Sleep(10 * time.Second)
			if text := n.Serial.Since(0); strings.Contains(text, "kingpost: node ") {
				t.Errorf("a node came up from a root with a flipped byte:\n%s", qemu.Tail(text, 30))
			}
		})
	}
}
