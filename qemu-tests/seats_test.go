package qemutests

import (
	"bytes"
	"crypto/ed25519"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
	"kingpost/internal/mesh/tlsid"
	"kingpost/internal/mesh/verbs"
	"kingpost/qemu-tests/lab"
)

const controllerKey = "controller/server"

// seatVerbs is what each of our seats must answer, no more and no less.
var seatVerbs = map[string][]string{
	mesh.SeatController: {"declare", "describe", "module-moved", "modules", "nodes", "ping", "plan", "push", "remove", "status", "token"},
	mesh.SeatCatalogue:  {"describe", "list", "ping", "resolve", "show"},
	mesh.SeatBuilder:    {"build", "describe", "list", "ping"},
	mesh.SeatVault:      {"describe", "get", "list", "ping", "put", "sign"},
}

// described checks a seat's describe against seatVerbs and probes every verb.
func described(t *testing.T, n *lab.Node, seat string) {
	t.Helper()
	var infos []mesh.VerbInfo
	call(t, n, seat, mesh.VerbDescribe, nil, &infos)
	var names []string
	for _, v := range infos {
		names = append(names, v.Name)
		if v.Summary == "" || len(v.Roles) == 0 {
			t.Errorf("%s describes %s without a summary or roles: %+v", seat, v.Name, v)
		}
		if err := n.Client().Call(t.Context(), seat, v.Name, nil, nil, mesh.Probe()); err != nil {
			t.Errorf("probe of %s %s: %v", seat, v.Name, err)
		}
	}
	slices.Sort(names)
	if d := cmp.Diff(seatVerbs[seat], names); d != "" {
		t.Errorf("verbs that %s describes (- wanted, + found):\n%s", seat, d)
	}
	if err := n.Client().Call(t.Context(), seat, "no-such-verb", nil, nil); !refusedWith(err, mesh.CodeUnknownVerb) {
		t.Errorf("%s: a verb that is not there answers %v", seat, err)
	}
}

// allSeatsAnswer calls every verb of every seat of ours, by probe and for real.
func allSeatsAnswer(t *testing.T, n *lab.Node) {
	t.Helper()
	for seat := range seatVerbs {
		described(t, n, seat)
		call(t, n, seat, mesh.VerbPing, nil, nil)
	}
	controllerAnswers(t, n)
	othersAnswer(t, n)
}

// controllerAnswers calls each verb of the controller's seat for real, and takes back what it changed.
func controllerAnswers(t *testing.T, n *lab.Node) {
	t.Helper()
	const name = "answers"
	before := resource(t, n, controllerKey)
	manifest := mesh.Manifest{Module: name, Version: "1", Resources: []mesh.Resource{{ID: "note", Type: mesh.KindFile, Content: "here\n"}}}
	var status verbs.StatusResult
	call(t, n, mesh.SeatController, verbs.Status, nil, &status)
	if status.Mesh != lab.MeshName || !status.Declaring || status.Epoch != before.Epoch {
		t.Errorf("the controller's status: %s", lab.JSON(status))
	}
	call(t, n, mesh.SeatController, verbs.Nodes, nil, nil)
	call(t, n, mesh.SeatController, verbs.Modules, nil, nil)
	var plan verbs.PlanResult
	call(t, n, mesh.SeatController, verbs.Plan, verbs.PlanParams{Manifest: &manifest}, &plan)
	if len(plan.Changes) != 1 || plan.Changes[0].Key != name+"/note" || plan.Changes[0].Action != "add" {
		t.Errorf("the plan of a new file: %s", lab.JSON(plan))
	}
	var pushed verbs.PushResult
	call(t, n, mesh.SeatController, verbs.Push, verbs.PushParams{Manifest: manifest, Plan: plan.Revision}, &pushed)
	if !pushed.Declared || pushed.Same || pushed.Version == 0 {
		t.Errorf("the push of a new file: %s", lab.JSON(pushed))
	}
	need(t, n.UntilStatus(t.Context(), lab.StepTime, func(s *hostapi.Status) error {
		r, err := lab.Resource(s, name+"/note")
		if err == nil && r.State != "present" {
			err = fmt.Errorf("%s is %s: %s", r.Key, r.State, r.Reason)
		}
		return err
	}), "the pushed file")
	call(t, n, mesh.SeatController, verbs.Declare, verbs.DeclareParams{}, nil)
	move := verbs.ModuleMovedParams{Module: name, From: n.Name, To: n.Name, Operation: fmt.Sprintf("test-%d", pushed.Version)}
	var moved verbs.ModuleMovedResult
	call(t, n, mesh.SeatController, verbs.ModuleMoved, move, &moved)
	call(t, n, mesh.SeatController, verbs.ModuleMoved, move, &moved)
	if !moved.Again || !slices.Equal(moved.Placement, []string{n.Name}) {
		t.Errorf("the same move twice: %s", lab.JSON(moved))
	}
	var token verbs.TokenResult
	call(t, n, mesh.SeatController, verbs.Token, verbs.TokenParams{Node: "beta"}, &token)
	if token.Token == "" || token.Node != "beta" {
		t.Error("the token is empty or for another node")
	}
	call(t, n, mesh.SeatController, verbs.Push, verbs.PushParams{Manifest: manifest, Placement: &[]string{}}, nil)
	call(t, n, mesh.SeatController, verbs.Remove, verbs.RemoveParams{Module: name}, nil)
	need(t, n.UntilStatus(t.Context(), lab.StepTime, func(s *hostapi.Status) error {
		if _, err := lab.Resource(s, name+"/note"); err == nil {
			return fmt.Errorf("%s/note is still there", name)
		}
		return nil
	}), "the file that was taken off")
	if after := resource(t, n, controllerKey); after.PID != before.PID {
		t.Errorf("the controller was restarted by being asked: pid %d, then %d", before.PID, after.PID)
	}
}

// othersAnswer calls each verb of catalogue, builder and vault for real.
func othersAnswer(t *testing.T, n *lab.Node) {
	t.Helper()
	var list verbs.ListResult
	call(t, n, mesh.SeatCatalogue, verbs.List, verbs.ListParams{}, &list)
	var resolved verbs.ResolveResult
	call(t, n, mesh.SeatCatalogue, verbs.Resolve, verbs.ResolveParams{Kind: mesh.ArtifactBundle, Name: "mesh-controller", Arch: "amd64"}, &resolved)
	digests, err := theLab.Digests()
	need(t, err, "the seed's digests")
	if want := digests["bundle/mesh-controller"]["amd64"]; resolved.Digest != want {
		t.Errorf("the catalogue resolves mesh-controller to %s, the seed has %s", resolved.Digest, want)
	}
	seedArtifacts, listed := 0, 0
	for _, arches := range digests {
		seedArtifacts += len(arches)
	}
	for _, a := range list.Artifacts {
		arch := a.Arch
		if d := digests[a.Repository()][arch]; d == a.Digest {
			listed++
		}
	}
	if listed < seedArtifacts {
		t.Errorf("the catalogue lists %d of the seed's %d artifacts:\n%s", listed, seedArtifacts, lab.JSON(list))
	}
	call(t, n, mesh.SeatCatalogue, verbs.Show, verbs.ShowParams{Kind: mesh.ArtifactBundle, Name: "mesh-controller", Digest: resolved.Digest}, nil)

	build := verbs.BuildParams{Name: "hello", Version: "1", Arch: "amd64", Files: []verbs.BuildFile{{Path: "bin/hello", Executable: true, Content: []byte("#!/bin/false\n")}}}
	var record verbs.BuildRecord
	call(t, n, mesh.SeatBuilder, verbs.Build, build, &record)
	call(t, n, mesh.SeatCatalogue, verbs.Resolve, verbs.ResolveParams{Kind: mesh.ArtifactBundle, Name: "hello", Arch: "amd64"}, &resolved)
	if resolved.Digest != record.Digest {
		t.Errorf("what was built is %s, the catalogue says %s", record.Digest, resolved.Digest)
	}
	call(t, n, mesh.SeatBuilder, verbs.List, nil, nil)

	var got verbs.GetResult
	call(t, n, mesh.SeatVault, verbs.Put, verbs.PutParams{Name: "hello/secret", Value: "s3cret"}, nil)
	call(t, n, mesh.SeatVault, verbs.Get, verbs.GetParams{Name: "hello/secret"}, &got)
	if got.Value != "s3cret" {
		t.Error("the vault gives back another secret than it was given")
	}
	call(t, n, mesh.SeatVault, verbs.List, nil, nil)
	var signed verbs.SignResult
	message := []byte("signed on " + n.Name)
	call(t, n, mesh.SeatVault, verbs.Sign, verbs.SignParams{Name: "hello/key", Message: message}, &signed)
	if public, err := tlsid.ParsePublicKey(signed.Public); err != nil || !ed25519.Verify(public, message, signed.Signature) {
		t.Errorf("the vault's signature does not verify (%v)", err)
	}
}

// controllerFromStore checks that the controller runs in a form, that its bytes are what the store holds by that digest, and
// that nothing else of a controller is there.
func controllerFromStore(t *testing.T, n *lab.Node, form mesh.Kind) {
	t.Helper()
	s := status(t, n)
	r, err := lab.Resource(s, controllerKey)
	need(t, err, "the controller")
	ref := map[mesh.Kind]string{mesh.KindProcess: "bundle/mesh-controller", mesh.KindContainer: "image/mesh-controller"}[form]
	digests, err := theLab.Digests()
	need(t, err, "the seed's digests")
	if want := digests[ref]["amd64"]; r.Type != form || r.Digest != want || r.Source != mesh.SourceStore || !lab.Up(r) {
		t.Errorf("the controller is %s, wanted a running %s of %s from the store", lab.JSON(r), form, want)
	}
	d, err := n.Client().Declaration(t.Context())
	need(t, err, "declaration")
	for _, q := range d.Resources {
		if q.Key() == controllerKey && (q.Digest != r.Digest || q.Source != mesh.SourceStore || q.Type != form) {
			t.Errorf("declared is another controller than runs: %s", lab.JSON(q))
		}
	}
	for _, q := range s.Resources {
		if q.Module == "controller" && q.Key != controllerKey && (q.Type == mesh.KindProcess || q.Type == mesh.KindContainer) {
			t.Errorf("there is a second controller: %s", lab.JSON(q))
		}
	}
	inStore(t, n, ref, r.Digest)
}

// inStore checks that the store serves a manifest by its digest, through the host's front.
func inStore(t *testing.T, n *lab.Node, repository, digest string) {
	t.Helper()
	c := n.Client()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.BaseURL()+"/v2/"+repository+"/manifests/"+digest, nil)
	need(t, err, "ask the store")
	req.Header.Set("Accept", "application/vnd.oci.image.manifest.v1+json")
	resp, err := c.HTTP().Do(req)
	need(t, err, "ask the store for %s@%s", repository, digest)
	defer resp.Body.Close()
	var body bytes.Buffer
	body.ReadFrom(resp.Body)
	if resp.StatusCode != http.StatusOK || !strings.Contains(body.String(), "schemaVersion") {
		t.Errorf("the store answers %s for %s@%s: %.300s", resp.Status, repository, digest, body.String())
	}
}

// refusedWith says whether err is a refusal with this code.
func refusedWith(err error, code string) bool {
	switch e := err.(type) {
	case *mesh.CallError:
		return e.Code == code
	case *hostapi.Error:
		return e.Code == code
	}
	return false
}
