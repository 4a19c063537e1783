package controller

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
	"kingpost/internal/mesh/verbs"
)

// TestRaise walks the calls of a raise: an empty controller declares nothing, what is pushed is held, the
// first declare writes (1,1), and the next term says the same again as (2,1).
func TestRaise(t *testing.T) {
	dir, host := t.TempDir(), &fakeHost{}
	c := openTest(t, dir, 1, host)
	push(t, c, registryModuleJSON, mesh.Digests{"image/registry": {"amd64": digest(3)}}, true)
	res := push(t, c, controllerProcess, controllerDigests(), true)
	if res.Declared || res.Reason == "" {
		t.Fatalf("a held push says %+v", res)
	}
	if host.count() != 0 {
		t.Fatal("something was declared before the first declare")
	}
	d := declare(t, c)
	if len(d.Declarations) != 1 || d.Declarations[0].Version != (mesh.Version{Epoch: 1, Revision: 1}) || !d.Declarations[0].Changed {
		t.Fatalf("declare says %+v", d)
	}
	eventually(t, "the declaration is delivered", func() bool { return host.count() == 1 })
	got := host.last()
	if err := got.Validate(); err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, r := range got.Resources {
		keys = append(keys, r.Key()+" "+string(r.Source)+" "+r.Digest)
	}
	want := "controller/server store " + digest(1) + "\ncontroller/state  \nregistry/server seed " + digest(3)
	if strings.Join(keys, "\n") != want {
		t.Fatalf("declared:\n%s\nwant:\n%s", strings.Join(keys, "\n"), want)
	}
	if again := declare(t, c); again.Declarations[0].Changed || again.Declarations[0].Version != (mesh.Version{Epoch: 1, Revision: 1}) {
		t.Fatalf("declaring the same again says %+v", again)
	}
	closeTest(t, c)

	c = openTest(t, dir, 2, host)
	defer closeTest(t, c)
	eventually(t, "the next term declares anew", func() bool { return host.last().Version == mesh.Version{Epoch: 2, Revision: 1} })
	if toJSON(t, host.last().Resources) != toJSON(t, got.Resources) {
		t.Fatal("the next term declares something else")
	}
	st, err := c.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !st.Settled || len(st.Held) != 0 || len(st.Seats) != 3 || st.Nodes[0].Declared.Epoch != 2 {
		t.Fatalf("status: %s", toJSON(t, st))
	}
}

// TestChangeOfForm is the handover by push, there and back.
func TestChangeOfForm(t *testing.T) {
	host := &fakeHost{}
	c := openTest(t, t.TempDir(), 1, host)
	defer closeTest(t, c)
	push(t, c, controllerContainer, controllerDigests(), true)
	declare(t, c)
	plan, err := c.Plan(t.Context(), &verbs.PlanParams{Manifest: new(manifest(t, controllerProcess)), Digests: controllerDigests()})
	if err != nil {
		t.Fatal(err)
	}
	if len(plan.Changes) != 1 || plan.Changes[0].Action != "handover" || plan.Changes[0].Why != "the container becomes a process" {
		t.Fatalf("plan: %s", toJSON(t, plan))
	}
	res := push(t, c, controllerProcess, controllerDigests(), false)
	if !res.Declared || toJSON(t, res.Changes) != toJSON(t, plan.Changes) {
		t.Fatalf("push did %s, planned was %s", toJSON(t, res), toJSON(t, plan.Changes))
	}
	eventually(t, "(1,2) is delivered", func() bool { return host.last().Version == mesh.Version{Epoch: 1, Revision: 2} })
	if r := host.last().Resources[0]; r.Type != mesh.KindProcess || r.Digest != digest(1) {
		t.Fatalf("declared is %+v", r)
	}
	if res := push(t, c, controllerContainer, controllerDigests(), false); res.Version != 3 || res.Same {
		t.Fatalf("and back: %+v", res)
	}
	if res := push(t, c, controllerContainer, controllerDigests(), false); !res.Same || res.Version != 3 {
		t.Fatalf("the same again: %+v", res)
	}
}

func TestPushRefused(t *testing.T) {
	host := &fakeHost{digests: map[string]string{"image/web amd64": digest(7)}}
	c := openTest(t, t.TempDir(), 1, host)
	defer closeTest(t, c)
	push(t, c, controllerProcess, controllerDigests(), true)
	declare(t, c)
	rev := declare(t, c).Revision
	other := strings.Replace(controllerProcess, `"module":"controller"`, `"module":"usurper"`, 1)
	tests := []struct {
		name   string
		params verbs.PushParams
		code   string
		says   []string
	}{
		{"two holders", verbs.PushParams{Manifest: manifest(t, other), Digests: controllerDigests()}, mesh.CodeConflict, []string{"controller/server", "usurper/server", "seat controller"}},
		{"two holders, held", verbs.PushParams{Manifest: manifest(t, other), Digests: controllerDigests(), Hold: true}, mesh.CodeConflict, []string{"controller/server", "usurper/server"}},
		{"unknown node", verbs.PushParams{Manifest: manifest(t, webModule), Placement: &[]string{"beta"}}, mesh.CodeNotFound, []string{`"beta"`, "alpha"}},
		{"unresolved", verbs.PushParams{Manifest: manifest(t, strings.ReplaceAll(webModule, "web", "wab"))}, mesh.CodeNotFound, []string{"image/wab", "amd64"}},
		{"bad digest", verbs.PushParams{Manifest: manifest(t, webModule), Digests: mesh.Digests{"image/web": {"amd64": "sha256:12"}}}, mesh.CodeBadParams, []string{"image/web"}},
		{"bad reference", verbs.PushParams{Manifest: manifest(t, webModule), Digests: mesh.Digests{"web": {}}}, mesh.CodeBadParams, []string{`"web"`}},
		{"invalid manifest", verbs.PushParams{Manifest: mesh.Manifest{Module: "a b"}}, mesh.CodeBadParams, []string{"a b"}},
		{"stale plan", verbs.PushParams{Manifest: manifest(t, webModule), Plan: rev + 1}, mesh.CodeConflict, []string{"make the plan again"}},
		{"controller off its node", verbs.PushParams{Manifest: manifest(t, controllerProcess), Digests: controllerDigests(), Placement: &[]string{}}, mesh.CodeConflict, []string{"controller seat"}},
		{"controller without its seat", verbs.PushParams{Manifest: manifest(t, strings.Replace(strings.Replace(controllerProcess, `"seats":["controller"],`, "", 1), `"health":{"seat":true},`, "", 1)), Digests: controllerDigests()}, mesh.CodeConflict, []string{"controller seat"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := dump(t, c)
			_, err := c.Push(t.Context(), "x", &tt.params)
			var ce *mesh.CallError
			if !errors.As(err, &ce) || ce.Code != tt.code {
				t.Fatalf("got %v, want %s", err, tt.code)
			}
			for _, s := range tt.says {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("%q does not say %q", err, s)
				}
			}
			if dump(t, c) != before {
				t.Error("a refused push changed the state")
			}
		})
	}
	res, err := c.Push(t.Context(), "x", &verbs.PushParams{Manifest: manifest(t, webModule), Plan: rev})
	if err != nil || !res.Declared {
		t.Fatalf("with a fresh plan: %+v, %v", res, err)
	}
	if host.resolved == 0 {
		t.Fatal("the catalogue was never asked")
	}
}

// dump is the whole content of the database as text.
func dump(t testing.TB, c *Controller) string {
	t.Helper()
	var b strings.Builder
	err := c.db.bolt.View(func(tx *bolt.Tx) error {
		var walk func(path string, bu *bolt.Bucket) error
		walk = func(path string, bu *bolt.Bucket) error {
			return bu.ForEach(func(k, v []byte) error {
				if v == nil {
					return walk(path+"/"+string(k), bu.Bucket(k))
				}
				b.WriteString(path + "/" + string(k) + "=" + string(v) + "\n")
				return nil
			})
		}
		return tx.ForEach(func(name []byte, bu *bolt.Bucket) error { return walk(string(name), bu) })
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestFence(t *testing.T) {
	dir, host := t.TempDir(), &fakeHost{}
	c := openTest(t, dir, 5, host)
	push(t, c, controllerProcess, controllerDigests(), true)

	// A later term takes the state while this one still has it open, as on a file system whose locks do not hold.
	err := c.db.bolt.Update(func(tx *bolt.Tx) error {
		b := tx.Bucket(bucketMeta)
		var m meta
		if err := unmarshal(b.Get(keyMeta), &m); err != nil {
			return err
		}
		m.Epoch = 6
		return put(b, keyMeta, &m)
	})
	if err != nil {
		t.Fatal(err)
	}
	before := dump(t, c)
	_, err = c.Push(t.Context(), "x", &verbs.PushParams{Manifest: manifest(t, controllerContainer), Digests: controllerDigests()})
	var fenced *FencedError
	if !errors.As(err, &fenced) || fenced.Mine != 5 || fenced.Stored != 6 {
		t.Fatalf("a write of the old term: %v", err)
	}
	if _, err := c.Declare(t.Context(), &verbs.DeclareParams{}); !errors.As(err, &fenced) {
		t.Fatalf("a declare of the old term: %v", err)
	}
	if err := c.Check(t.Context()); !errors.As(err, &fenced) {
		t.Fatalf("a probe of the old term: %v", err)
	}
	if dump(t, c) != before || host.count() != 0 {
		t.Fatal("the old term changed something")
	}
	select {
	case <-c.Fenced():
	default:
		t.Fatal("the old term does not know that it is over")
	}
	closeTest(t, c)

	for _, epoch := range []uint64{1, 5} {
		if _, err := Open(Options{Dir: dir, Mesh: "home", Node: "alpha", Arch: "amd64", Epoch: epoch, Program: "one", Host: host}); !errors.As(err, &fenced) {
			t.Fatalf("epoch %d opens: %v", epoch, err)
		}
	}
	for name, change := range map[string]func(*Options){
		"another mesh":         func(o *Options) { o.Mesh = "away" },
		"another control-node": func(o *Options) { o.Node = "beta" },
		"no epoch":             func(o *Options) { o.Epoch = 0 },
	} {
		opt := Options{Dir: dir, Mesh: "home", Node: "alpha", Arch: "amd64", Epoch: 9, Program: "one", Host: host}
		change(&opt)
		if _, err := Open(opt); err == nil {
			t.Errorf("%s opens", name)
		}
	}
	c = openTest(t, dir, 6, host)
	closeTest(t, c)
}

func TestSnapshotBeforeANewVersion(t *testing.T) {
	dir, host := t.TempDir(), &fakeHost{}
	snaps := func() []string {
		names, err := filepath.Glob(filepath.Join(dir, snapshotDir, "*"))
		if err != nil {
			t.Fatal(err)
		}
		return names
	}
	c := openTest(t, dir, 1, host)
	push(t, c, controllerProcess, controllerDigests(), true)
	closeTest(t, c)
	closeTest(t, openTest(t, dir, 2, host))
	if n := snaps(); len(n) != 0 {
		t.Fatalf("the same program made %v", n)
	}
	for i, program := range []string{"two", "three", "four", "five", "six"} {
		now := start.AddDate(0, 0, i)
		closeTest(t, openTest(t, dir, uint64(3+i), host, func(o *Options) { o.Program, o.Now = program, fixed(now) }))
	}
	names := snaps()
	if len(names) != keepSnaps {
		t.Fatalf("%d snapshots are kept: %v", len(names), names)
	}
	// A snapshot is a database: restored, it opens and has what was pushed.
	data, err := os.ReadFile(names[0])
	if err != nil {
		t.Fatal(err)
	}
	restored := t.TempDir()
	if err := os.WriteFile(filepath.Join(restored, databaseFile), data, 0o600); err != nil {
		t.Fatal(err)
	}
	c = openTest(t, restored, 20, host)
	defer closeTest(t, c)
	res, err := c.Modules(t.Context(), &verbs.ModulesParams{Module: "controller"})
	if err != nil || len(res.Modules) != 1 || res.Modules[0].History[0].Manifest == nil {
		t.Fatalf("%s, %v", toJSON(t, res), err)
	}
}

func TestDeliveryGoesOn(t *testing.T) {
	host := &fakeHost{away: errors.New("connection refused")}
	c := openTest(t, t.TempDir(), 1, host)
	defer closeTest(t, c)
	push(t, c, controllerProcess, controllerDigests(), true)
	declare(t, c)
	eventually(t, "a reason is shown", func() bool {
		st, err := c.Status(t.Context())
		return err == nil && len(st.Held) == 1 && strings.Contains(st.Held[0].Why, "connection refused")
	})
	host.setAway(nil)
	eventually(t, "it is delivered once the host is back", func() bool { return host.count() == 1 })
	eventually(t, "nothing is held", func() bool {
		st, err := c.Status(t.Context())
		return err == nil && st.Settled && len(st.Held) == 0
	})
}

// A host that has lost what it took, with its disk or by going back to an older program, gets it again.
func TestLostDeclarationIsDeliveredAgain(t *testing.T) {
	host := &fakeHost{}
	c := openTest(t, t.TempDir(), 1, host, func(o *Options) { o.LookAgain = 10 * time.Millisecond })
	defer closeTest(t, c)
	push(t, c, controllerProcess, controllerDigests(), true)
	declare(t, c)
	eventually(t, "it is delivered", func() bool { return host.count() == 1 })
	time.Sleep(50 * time.Millisecond)
	if n := host.count(); n != 1 {
		t.Fatalf("a host that has it was given it %d times", n)
	}
	host.mu.Lock()
	host.status = hostapi.Status{}
	host.mu.Unlock()
	eventually(t, "it is delivered again", func() bool { return host.count() == 2 })
}

// The host itself goes to every node unless somebody says where.
func TestHostIsPlacedEverywhere(t *testing.T) {
	c := openTest(t, t.TempDir(), 1, &fakeHost{})
	defer closeTest(t, c)
	push(t, c, controllerProcess, controllerDigests(), true)
	declare(t, c)
	if err := c.db.update(func(t *txn) error {
		return t.put(bucketNodes, "beta", nodeRecord{Name: "beta", Arch: "arm64"})
	}); err != nil {
		t.Fatal(err)
	}
	m := `{"module":"host","resources":[{"id":"server","type":"process","bundle":"mesh-host"}]}`
	digests := mesh.Digests{"bundle/mesh-host": {"amd64": digest(1), "arm64": digest(2)}}
	push(t, c, m, digests, false)
	for node, want := range map[string]string{"alpha": digest(1), "beta": digest(2)} {
		var d mesh.Declaration
		if err := c.db.view(func(t *txn) (err error) { d, _, err = get[mesh.Declaration](t, bucketDeclared, node); return err }); err != nil {
			t.Fatal(err)
		}
		if h := d.Host(); h == nil || h.Digest != want || h.Source != mesh.SourceStore {
			t.Errorf("%s is declared %+v", node, h)
		}
	}
}

func TestModuleMoved(t *testing.T) {
	host := &fakeHost{digests: map[string]string{"image/web arm64": digest(9)}}
	c := openTest(t, t.TempDir(), 1, host)
	defer closeTest(t, c)
	err := c.db.update(func(tx *txn) error { return tx.put(bucketNodes, "beta", nodeRecord{Name: "beta", Arch: "arm64"}) })
	if err != nil {
		t.Fatal(err)
	}
	push(t, c, controllerProcess, controllerDigests(), true)
	push(t, c, webModule, mesh.Digests{"image/web": {"amd64": digest(8)}}, true)
	declare(t, c)
	move := verbs.ModuleMovedParams{Module: "web", From: "alpha", To: "beta", Operation: "op-1"}
	res, err := c.ModuleMoved(t.Context(), &move)
	if err != nil || res.Again || strings.Join(res.Placement, " ") != "beta" {
		t.Fatalf("%+v, %v", res, err)
	}
	again, err := c.ModuleMoved(t.Context(), &move)
	if err != nil || !again.Again || again.Revision != res.Revision {
		t.Fatalf("again: %+v, %v", again, err)
	}
	eventually(t, "alpha is declared without it", func() bool { return host.last().Version == mesh.Version{Epoch: 1, Revision: 2} })
	d, err := c.Declare(t.Context(), &verbs.DeclareParams{Node: "beta"})
	if err != nil || d.Declarations[0].Changed || d.Declarations[0].Resources != 1 {
		t.Fatalf("beta was declared by the move: %+v, %v", d, err)
	}
	st, err := c.Status(t.Context())
	if err != nil || len(st.Held) != 1 || !strings.Contains(st.Held[0].Why, "has not joined") {
		t.Fatalf("status: %s, %v", toJSON(t, st), err)
	}
	for name, p := range map[string]verbs.ModuleMovedParams{
		"another move by the same name": {Module: "web", From: "beta", To: "alpha", Operation: "op-1"},
		"not there":                     {Module: "web", From: "alpha", To: "beta", Operation: "op-2"},
		"unknown module":                {Module: "wob", From: "alpha", To: "beta", Operation: "op-3"},
		"unknown node":                  {Module: "web", From: "beta", To: "gamma", Operation: "op-4"},
		"no operation":                  {Module: "web", From: "beta", To: "alpha"},
		"controller":                    {Module: "controller", From: "alpha", To: "beta", Operation: "op-5"},
	} {
		before := dump(t, c)
		if res, err := c.ModuleMoved(t.Context(), &p); err == nil {
			t.Errorf("%s: %+v", name, res)
		}
		if dump(t, c) != before {
			t.Errorf("%s: a refused move changed the state", name)
		}
	}
}

func TestHistoryIsBounded(t *testing.T) {
	c := openTest(t, t.TempDir(), 1, &fakeHost{})
	defer closeTest(t, c)
	push(t, c, webModule, mesh.Digests{"image/web": {"amd64": digest(0)}}, false)
	for i := range 3 * keepVersions {
		push(t, c, webModule, mesh.Digests{"image/web": {"amd64": digest(100 + i)}}, true)
	}
	res, err := c.Modules(t.Context(), &verbs.ModulesParams{Module: "web"})
	if err != nil {
		t.Fatal(err)
	}
	h := res.Modules[0].History
	// The current version stays beside the newest ones.
	if len(h) > keepVersions+1 || h[0].Number != 3*keepVersions+1 || h[len(h)-1].Number != 1 {
		t.Fatalf("%d versions, %d to %d", len(h), h[len(h)-1].Number, h[0].Number)
	}
}

// TestProbes probes every verb that describe lists, with and without parameters, and compares the bytes of
// the database.
func TestProbes(t *testing.T) {
	dir, host := t.TempDir(), &fakeHost{}
	c := openTest(t, dir, 1, host, func(o *Options) { o.CA = writeCA(t) })
	defer closeTest(t, c)
	push(t, c, controllerProcess, controllerDigests(), true)
	srv := c.Server(nil)
	good := map[string]string{
		verbs.Plan:        toJSON(t, verbs.PlanParams{Manifest: new(manifest(t, controllerContainer)), Digests: controllerDigests()}),
		verbs.Push:        toJSON(t, verbs.PushParams{Manifest: manifest(t, controllerContainer), Digests: controllerDigests()}),
		verbs.Declare:     `{"node":"alpha"}`,
		verbs.Modules:     `{"module":"controller"}`,
		verbs.ModuleMoved: `{"module":"controller","from":"alpha","to":"alpha","operation":"o"}`,
		verbs.Remove:      `{"module":"gone"}`,
		verbs.Token:       `{"ttl":"5m","node":"beta"}`,
	}
	ann := mesh.Identity{Mesh: "home", Role: mesh.RoleOperator, Name: "ann"}
	before := databaseBytes(t, dir)
	var names []string
	for _, v := range srv.Describe() {
		names = append(names, v.Name)
		for _, params := range []string{"", good[v.Name]} {
			resp := srv.Call(t.Context(), ann, v.Name, mesh.CallRequest{Probe: true, Params: json.RawMessage(params)})
			if resp.Error != nil {
				t.Errorf("probe of %s with %q: %v", v.Name, params, resp.Error)
			}
		}
		// Whoever may not call it may not probe it.
		resp := srv.Call(t.Context(), mesh.Identity{Mesh: "home", Role: mesh.RoleViewer, Name: "vic"}, v.Name, mesh.CallRequest{Probe: true})
		if denied := resp.Error != nil && resp.Error.Code == mesh.CodeDenied; denied != v.Changes {
			t.Errorf("%s: changes %v, a viewer is denied %v", v.Name, v.Changes, denied)
		}
		resp = srv.Call(t.Context(), ann, v.Name, mesh.CallRequest{Probe: true, Params: json.RawMessage(`{"nonsense":1}`)})
		if resp.Error == nil || resp.Error.Code != mesh.CodeBadParams {
			t.Errorf("%s takes nonsense: %+v", v.Name, resp)
		}
	}
	if got := strings.Join(names, " "); got != "declare describe module-moved modules nodes ping plan push remove status token" {
		t.Errorf("verbs: %s", got)
	}
	if string(databaseBytes(t, dir)) != string(before) || host.count() != 0 {
		t.Error("a probe changed something")
	}
	push(t, c, `{"module":"gone","resources":[]}`, nil, true)
	// And by a real call each of them answers.
	for _, name := range []string{verbs.Push, verbs.Declare, verbs.ModuleMoved, verbs.Remove, verbs.Token, verbs.Plan, verbs.Modules, verbs.Status, verbs.Nodes, "ping", "describe"} {
		if resp := srv.Call(t.Context(), ann, name, mesh.CallRequest{Params: json.RawMessage(good[name])}); resp.Error != nil {
			t.Errorf("%s: %v", name, resp.Error)
		}
	}
}

func databaseBytes(t testing.TB, dir string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, databaseFile))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestPlanChangesNothing(t *testing.T) {
	dir := t.TempDir()
	c := openTest(t, dir, 1, &fakeHost{})
	defer closeTest(t, c)
	push(t, c, controllerProcess, controllerDigests(), true)
	before := databaseBytes(t, dir)
	plan, err := c.Plan(context.Background(), &verbs.PlanParams{})
	if err != nil {
		t.Fatal(err)
	}
	if len(plan.Changes) != 2 || plan.Changes[0].Action != "add" {
		t.Fatalf("plan: %s", toJSON(t, plan))
	}
	if string(databaseBytes(t, dir)) != string(before) {
		t.Fatal("planning changed the database")
	}
	if _, err := c.Declare(t.Context(), &verbs.DeclareParams{Plan: plan.Revision}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Declare(t.Context(), &verbs.DeclareParams{Plan: plan.Revision}); err == nil {
		t.Fatal("a plan was used twice, with the mesh changed in between")
	}
}
