package controller

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/verbs"
)

// model is the controller as a person would explain it: what is the newest of each module, what of it may
// be declared, and what the host was last told.
type model struct {
	declaring       bool
	latest, current map[string]string // module -> variant
	declared        map[string]string // as the newest declaration has it; nil before the first
	version         mesh.Version
	epoch           uint64
}

// variants of a module differ by their argument, and one of them by its form.
func variantManifest(module, variant string) mesh.Manifest {
	r := mesh.Resource{ID: "server", Type: mesh.KindProcess, Bundle: "prog", Args: []string{variant}}
	if variant == "c" {
		r = mesh.Resource{ID: "server", Type: mesh.KindContainer, Name: "prog", Args: []string{variant}}
	}
	if module == "controller" {
		r.Seats = []string{mesh.SeatController}
	}
	return mesh.Manifest{Module: module, Resources: []mesh.Resource{r}}
}

func TestModel(t *testing.T) {
	digests := mesh.Digests{"bundle/prog": {"amd64": digest(1)}, "image/prog": {"amd64": digest(2)}}
	root := t.TempDir()
	runs := 0
	rapid.Check(t, func(rt *rapid.T) {
		runs++
		dir := fmt.Sprintf("%s/%d", root, runs)
		host := &fakeHost{}
		m := &model{latest: map[string]string{}, current: map[string]string{}, epoch: 1}
		c := openUnsynced(t, dir, m.epoch, host)
		defer func() {
			closeTest(t, c)
			os.RemoveAll(dir)
		}()
		rt.Repeat(map[string]func(*rapid.T){
			"push": func(rt *rapid.T) {
				module := rapid.SampledFrom([]string{"controller", "one", "two"}).Draw(rt, "module")
				variant := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "variant")
				hold := rapid.Bool().Draw(rt, "hold")
				res, err := c.Push(t.Context(), "x", &verbs.PushParams{Manifest: variantManifest(module, variant), Digests: digests, Hold: hold})
				if err != nil {
					rt.Fatal(err)
				}
				if res.Same != (m.latest[module] == variant) {
					rt.Fatalf("same is %v for %s after %s", res.Same, variant, m.latest[module])
				}
				m.latest[module] = variant
				if !hold {
					m.current[module] = variant
				}
				if m.declaring && (!hold || m.current[module] == variant) {
					m.declare()
				}
			},
			"declare": func(rt *rapid.T) {
				plan, err := c.Plan(t.Context(), &verbs.PlanParams{})
				if err != nil {
					rt.Fatal(err)
				}
				res, err := c.Declare(t.Context(), &verbs.DeclareParams{Plan: plan.Revision})
				if m.latest["controller"] == "" {
					var ce *mesh.CallError
					if !errors.As(err, &ce) || ce.Code != mesh.CodeConflict || plan.Refused == "" {
						rt.Fatalf("declared without a controller: %+v, %v", res, err)
					}
					return
				}
				if err != nil {
					rt.Fatal(err)
				}
				if toJSON(t, res.Changes) != toJSON(t, plan.Changes) && len(res.Changes)+len(plan.Changes) > 0 {
					rt.Fatalf("planned %s, did %s", toJSON(t, plan.Changes), toJSON(t, res.Changes))
				}
				m.declaring, m.current = true, maps.Clone(m.latest)
				m.declare()
			},
			"next term": func(rt *rapid.T) {
				closeTest(t, c)
				m.epoch += uint64(rapid.IntRange(1, 3).Draw(rt, "step"))
				c = openUnsynced(t, dir, m.epoch, host)
				if m.declared != nil {
					m.version = mesh.Version{Epoch: m.epoch, Revision: 1}
				}
			},
			"host goes":  func(*rapid.T) { host.setAway(errors.New("gone")) },
			"host comes": func(*rapid.T) { host.setAway(nil) },
			"": func(rt *rapid.T) {
				st, err := c.Status(t.Context())
				if err != nil {
					rt.Fatal(err)
				}
				if st.Nodes[0].Declared != m.version || st.Declaring != m.declaring {
					rt.Fatalf("declared %v, the model says %v", st.Nodes[0].Declared, m.version)
				}
				var d mesh.Declaration
				err = c.db.view(func(t *txn) (err error) {
					d, _, err = get[mesh.Declaration](t, bucketDeclared, "alpha")
					return err
				})
				if err != nil {
					rt.Fatal(err)
				}
				if got := variantsOf(d); !maps.Equal(got, m.declared) {
					rt.Fatalf("declared %v, the model says %v", got, m.declared)
				}
				m.checkTaken(rt, host)
			},
		})
		if m.declared == nil {
			return
		}
		host.setAway(nil)
		c.deliver([]string{"alpha"})
		eventually(t, "the host has what is declared", func() bool { return host.last().Version == m.version })
		if got := variantsOf(host.last()); !maps.Equal(got, m.declared) {
			rt.Fatalf("the host runs %v, declared is %v", got, m.declared)
		}
	})
}

// openUnsynced is for tests that make many changes: nobody cuts their power.
func openUnsynced(t testing.TB, dir string, epoch uint64, host Host, change ...func(*Options)) *Controller {
	c := openTest(t, dir, epoch, host, change...)
	c.db.bolt.NoSync = true
	return c
}

// declare is what a change of the model does to the declaration: nothing when it says the same.
func (m *model) declare() {
	if m.declared != nil && maps.Equal(m.declared, m.current) {
		return
	}
	m.declared = maps.Clone(m.current)
	if m.version.Epoch != m.epoch {
		m.version = mesh.Version{Epoch: m.epoch}
	}
	m.version.Revision++
}

// checkTaken looks at all that the host was ever told: versions grow, and one version is one content.
func (m *model) checkTaken(rt *rapid.T, host *fakeHost) {
	host.mu.Lock()
	defer host.mu.Unlock()
	for i := 1; i < len(host.taken); i++ {
		a, b := host.taken[i-1], host.taken[i]
		if !a.Version.Less(b.Version) {
			rt.Fatalf("%v was delivered after %v", b.Version, a.Version)
		}
		// A courier that was slow leaves out what is no longer the newest.
		if a.Epoch == b.Epoch && a.Revision+1 == b.Revision && maps.Equal(variantsOf(a), variantsOf(b)) {
			rt.Fatalf("%v says the same as %v", b.Version, a.Version)
		}
		if !slices.IsSortedFunc(b.Resources, func(x, y mesh.Declared) int { return strings.Compare(x.Key(), y.Key()) }) {
			rt.Fatal("a declaration is not sorted")
		}
	}
}

func variantsOf(d mesh.Declaration) map[string]string {
	if d.Resources == nil {
		return nil
	}
	out := map[string]string{}
	for _, r := range d.Resources {
		out[r.Module] = r.Args[0]
	}
	return out
}

// FuzzCall gives every verb whatever bytes; none may break, and a refusal has one of the known codes.
func FuzzCall(f *testing.F) {
	for _, s := range []string{
		`{}`, `{"manifest":{"module":"a","resources":[]}}`, `{"module":"a","from":"b","to":"c","operation":"d"}`, `{"ttl":"-1s"}`, `{"plan":1}`,
		`{"manifest":` + controllerProcess + `,"digests":{"bundle/mesh-controller":{"amd64":"sha256:00"}},"placement":[],"hold":true}`,
		`{"manifest":null,"placement":null}`, `{"node":"alpha","plan":18446744073709551615}`,
	} {
		for _, v := range []string{verbs.Push, verbs.Plan, verbs.Declare, verbs.ModuleMoved, verbs.Token, verbs.Modules, verbs.Status} {
			f.Add(v, []byte(s))
		}
	}
	c := openUnsynced(f, f.TempDir(), 1, &fakeHost{}, func(o *Options) { o.CA = writeCA(f) })
	f.Cleanup(func() { closeTest(f, c) })
	srv := c.Server(nil)
	ann := mesh.Identity{Mesh: "home", Role: mesh.RoleOperator, Name: "ann"}
	f.Fuzz(func(t *testing.T, verb string, params []byte) {
		resp := srv.Call(t.Context(), ann, verb, mesh.CallRequest{Params: json.RawMessage(params)})
		if (resp.Error == nil) == (resp.Result == nil) {
			t.Fatalf("%s: %+v", verb, resp)
		}
		if resp.Error == nil {
			return
		}
		if strings.Contains(resp.Error.Message, "broke inside") {
			t.Fatalf("%s panicked on %q", verb, params)
		}
		switch resp.Error.Code {
		case mesh.CodeBadParams, mesh.CodeConflict, mesh.CodeNotFound, mesh.CodeUnavailable, mesh.CodeUnknownVerb:
		default:
			t.Fatalf("%s on %q: %+v", verb, params, resp.Error)
		}
	})
}
