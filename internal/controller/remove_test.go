package controller

import (
	"errors"
	"strings"
	"testing"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/verbs"
)

const dataModule = `{"module":"web","resources":[{"id":"data","type":"volume"},{"id":"site","type":"container","name":"web","volumes":[{"volume":"data","path":"/data"}]}]}`

func TestRemove(t *testing.T) {
	dir, host := t.TempDir(), &fakeHost{}
	c := openTest(t, dir, 1, host)
	defer func() { closeTest(t, c) }()
	push(t, c, controllerProcess, controllerDigests(), true)
	declare(t, c)
	push(t, c, dataModule, mesh.Digests{"image/web": {"amd64": digest(9)}}, false)
	eventually(t, "web is taken", func() bool { return len(host.last().Resources) == 4 })

	res, err := c.Remove(t.Context(), &verbs.RemoveParams{Module: "web"})
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Changes) != 2 || res.Changes[0].Action != "remove" || res.Changes[0].Why != "module web is removed" {
		t.Errorf("changes: %s", toJSON(t, res.Changes))
	}
	if len(res.Kept) != 1 || res.Kept[0] != "web/data on alpha" {
		t.Errorf("kept: %v", res.Kept)
	}
	eventually(t, "web is gone from the host", func() bool { return len(host.last().Resources) == 2 })
	closeTest(t, c)
	c = openTest(t, dir, 2, host)
	st, err := c.Status(t.Context())
	if err != nil || len(st.Modules) != 1 || st.Modules[0].Module != "controller" {
		t.Errorf("the next term has %s, %v", toJSON(t, st), err)
	}
	if _, err := c.Modules(t.Context(), &verbs.ModulesParams{Module: "web"}); code(err) != mesh.CodeNotFound {
		t.Errorf("modules web: %v", err)
	}
	// It may come back, and begins anew.
	if res := push(t, c, dataModule, mesh.Digests{"image/web": {"amd64": digest(9)}}, false); res.Version != 1 || res.Same {
		t.Errorf("pushed again: %s", toJSON(t, res))
	}
}

func TestRemoveRefused(t *testing.T) {
	c := openTest(t, t.TempDir(), 1, &fakeHost{digests: map[string]string{"bundle/mesh-host amd64": digest(5)}})
	defer closeTest(t, c)
	push(t, c, controllerProcess, controllerDigests(), true)
	push(t, c, registryModuleJSON, mesh.Digests{"image/registry": {"amd64": digest(3)}}, true)
	declare(t, c)
	push(t, c, `{"module":"host","resources":[{"id":"server","type":"process","bundle":"mesh-host"}]}`, nil, false)
	before := toJSON(t, mustStatus(t, c).Modules)
	for name, want := range map[string]struct {
		p    verbs.RemoveParams
		code string
		text string
	}{
		"controller":  {verbs.RemoveParams{Module: "controller"}, mesh.CodeConflict, "holds the seat controller"},
		"store":       {verbs.RemoveParams{Module: "registry"}, mesh.CodeConflict, "holds the seat store"},
		"host":        {verbs.RemoveParams{Module: "host"}, mesh.CodeConflict, "the host of every node"},
		"not there":   {verbs.RemoveParams{Module: "nope"}, mesh.CodeNotFound, "there are: controller, host, registry"},
		"no name":     {verbs.RemoveParams{}, mesh.CodeBadParams, "a name is missing"},
		"bad name":    {verbs.RemoveParams{Module: "../x"}, mesh.CodeBadParams, "module: the name"},
		"an old plan": {verbs.RemoveParams{Module: "registry", Plan: 1}, mesh.CodeConflict, "make the plan again"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := c.Remove(t.Context(), &want.p)
			if code(err) != want.code || !strings.Contains(err.Error(), want.text) {
				t.Errorf("%v (%s), want %s: %s", err, code(err), want.code, want.text)
			}
		})
	}
	if after := toJSON(t, mustStatus(t, c).Modules); after != before {
		t.Errorf("a refusal changed the modules from %s to %s", before, after)
	}
}

// Digests for an architecture that no node has are refused by push and plan, and nothing is stored.
func TestArchitectureOfNoNode(t *testing.T) {
	c := openTest(t, t.TempDir(), 1, &fakeHost{})
	defer closeTest(t, c)
	push(t, c, controllerProcess, controllerDigests(), true)
	m, d := manifest(t, webModule), mesh.Digests{"image/web": {"amd64": digest(1), "s390x": digest(2)}}
	_, err := c.Push(t.Context(), "x", &verbs.PushParams{Manifest: m, Digests: d})
	_, planned := c.Plan(t.Context(), &verbs.PlanParams{Manifest: &m, Digests: d})
	for what, err := range map[string]error{"push": err, "plan": planned} {
		if code(err) != mesh.CodeBadParams || !strings.Contains(err.Error(), "for s390x, which no node of the mesh has; the nodes have amd64") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if n := len(mustStatus(t, c).Modules); n != 1 {
		t.Errorf("%d modules", n)
	}
}

func mustStatus(t *testing.T, c *Controller) *verbs.StatusResult {
	t.Helper()
	st, err := c.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func code(err error) string {
	var e *mesh.CallError
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}
