package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
	"kingpost/internal/mesh/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeHost is a host that takes declarations as the real one does.
type fakeHost struct {
	mu       sync.Mutex
	taken    []mesh.Declaration
	away     error
	digests  map[string]string // "bundle/x arch" -> digest, what the catalogue resolves
	resolved int
	status   hostapi.Status
}

func (f *fakeHost) Node(context.Context) (*hostapi.Node, error) {
	return &hostapi.Node{Name: "alpha", Addresses: []string{"192.0.2.1", "2001:db8::1"}}, nil
}

func (f *fakeHost) Status(context.Context) (*hostapi.Status, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.away != nil {
		return nil, f.away
	}
	st := f.status
	return &st, nil
}

func (f *fakeHost) Declare(_ context.Context, d *mesh.Declaration) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.away != nil {
		return f.away
	}
	if n := len(f.taken); n > 0 && d.Version.Less(f.taken[n-1].Version) {
		return &hostapi.Error{Status: 409, Code: mesh.CodeConflict, Message: "the version is too low"}
	}
	f.taken = append(f.taken, *d)
	f.status = hostapi.Status{Declared: d.Version, Applied: d.Version, Settled: true}
	for _, r := range d.Resources {
		f.status.Resources = append(f.status.Resources, hostapi.ResourceStatus{Key: r.Key(), Module: r.Module, ID: r.ID, State: "healthy"})
	}
	return nil
}

func (f *fakeHost) Call(_ context.Context, seat, verb string, params, result any, _ ...mesh.CallOption) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.resolved++
	p := params.(verbs.ResolveParams)
	d := f.digests[fmt.Sprintf("%s/%s %s", p.Kind, p.Name, p.Arch)]
	if seat != mesh.SeatCatalogue || verb != verbs.Resolve || d == "" {
		return &mesh.CallError{Code: mesh.CodeNotFound, Message: p.Name + " is not in the store"}
	}
	*result.(*verbs.ResolveResult) = verbs.ResolveResult{Digest: d}
	return nil
}

func (f *fakeHost) last() mesh.Declaration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.taken) == 0 {
		return mesh.Declaration{}
	}
	return f.taken[len(f.taken)-1]
}

func (f *fakeHost) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.taken)
}

func (f *fakeHost) setAway(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.away = err
}

var start = time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC)

func openTest(t testing.TB, dir string, epoch uint64, host Host, change ...func(*Options)) *Controller {
	t.Helper()
	opt := Options{
		Dir: dir, Mesh: "home", Node: "alpha", Arch: "amd64", Epoch: epoch, Program: "one", Host: host,
		Now: func() time.Time { return start },
	}
	for _, f := range change {
		f(&opt)
	}
	c, err := Open(opt)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func closeTest(t testing.TB, c *Controller) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// digest makes a digest that is told apart by n.
func digest(n int) string { return fmt.Sprintf("sha256:%064x", n) }

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for range 1000 {
		if ok() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatal("never: " + what)
}

// manifest parses a module.json as a caller sends it.
func manifest(t testing.TB, text string) mesh.Manifest {
	t.Helper()
	m, err := mesh.DecodeManifest(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

const controllerProcess = `{"module":"controller","version":"0.1.0","resources":[
 {"id":"state","type":"volume"},
 {"id":"server","type":"process","bundle":"mesh-controller","args":["serve"],"seats":["controller"],"hostAPI":true,"identity":true,
  "volumes":[{"volume":"state","path":"/var/lib/controller"}],"health":{"seat":true},"critical":true}]}`

const controllerContainer = `{"module":"controller","version":"0.1.0","resources":[
 {"id":"state","type":"volume"},
 {"id":"server","type":"container","name":"mesh-controller","network":"host","args":["serve"],"seats":["controller"],"hostAPI":true,"identity":true,
  "volumes":[{"volume":"state","path":"/var/lib/controller"}],"health":{"seat":true},"critical":true}]}`

const registryModuleJSON = `{"module":"registry","resources":[{"id":"server","type":"container","name":"registry","network":"host","seats":["store","registry"]}]}`

const webModule = `{"module":"web","resources":[{"id":"site","type":"container","name":"web","ports":[{"host":8080,"container":80}]}]}`

func controllerDigests() mesh.Digests {
	return mesh.Digests{"bundle/mesh-controller": {"amd64": digest(1)}, "image/mesh-controller": {"amd64": digest(2)}}
}

func push(t testing.TB, c *Controller, text string, d mesh.Digests, hold bool) *verbs.PushResult {
	t.Helper()
	res, err := c.Push(t.Context(), "kingpost://home/operator/ann", &verbs.PushParams{Manifest: manifest(t, text), Digests: d, Hold: hold})
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func declare(t testing.TB, c *Controller) *verbs.DeclareResult {
	t.Helper()
	res, err := c.Declare(t.Context(), &verbs.DeclareParams{})
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func toJSON(t testing.TB, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
