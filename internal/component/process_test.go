package component_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/registry"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
	"kingpost/internal/mesh/verbs"
)

// world is a host made of a unix socket, an artifact store in memory, and our components as real processes.
type world struct {
	t    *testing.T
	dir  string
	bin  string
	ann  mesh.Identity
	mu   sync.Mutex
	decl []mesh.Declaration
}

func newWorld(t *testing.T) *world {
	t.Helper()
	if testing.Short() {
		t.Skip("builds four programs")
	}
	// Paths of unix sockets are short; those of a test's own folder may not be.
	dir, err := os.MkdirTemp("", "kp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	w := &world{t: t, dir: dir, bin: filepath.Join(dir, "bin"), ann: mesh.Identity{Mesh: "home", Role: mesh.RoleOperator, Name: "ann"}}
	build := exec.Command("go", "build", "-o", w.bin+"/", "kingpost/cmd/mesh-controller", "kingpost/cmd/mesh-catalogue", "kingpost/cmd/mesh-builder", "kingpost/cmd/mesh-vault")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	w.serveHost()
	return w
}

// serveHost serves as much of the host's API as components use.
func (w *world) serveHost() {
	mux := http.NewServeMux()
	mux.Handle("/v2/", registry.New(registry.Logger(stdlog.New(io.Discard, "", 0))))
	answer := func(rw http.ResponseWriter, status int, v any) {
		rw.WriteHeader(status)
		json.NewEncoder(rw).Encode(v)
	}
	mux.HandleFunc("GET /v1/node", func(rw http.ResponseWriter, _ *http.Request) {
		answer(rw, 200, hostapi.Node{Name: "alpha", Addresses: []string{"192.0.2.1"}})
	})
	mux.HandleFunc("GET /v1/status", func(rw http.ResponseWriter, _ *http.Request) {
		d := w.last()
		answer(rw, 200, hostapi.Status{Declared: d.Version, Applied: d.Version, Settled: true})
	})
	mux.HandleFunc("PUT /v1/declaration", func(rw http.ResponseWriter, r *http.Request) {
		d, err := mesh.DecodeDeclaration(r.Body)
		if err != nil || d.Version.Less(w.last().Version) {
			answer(rw, 409, hostapi.Error{Status: 409, Code: mesh.CodeConflict, Message: fmt.Sprint("refused: ", err)})
			return
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.decl = append(w.decl, d)
		answer(rw, 200, struct{}{})
	})
	mux.HandleFunc("POST /v1/call/{seat}/{verb}", func(rw http.ResponseWriter, r *http.Request) {
		var req mesh.CallRequest
		json.NewDecoder(r.Body).Decode(&req)
		resp, err := w.call(r.PathValue("seat"), r.PathValue("verb"), mesh.Identity{Mesh: "home", Role: mesh.RoleComponent, Name: "controller"}, req)
		if err != nil {
			answer(rw, 503, hostapi.Error{Status: 503, Code: mesh.CodeUnavailable, Message: err.Error()})
			return
		}
		answer(rw, 200, resp)
	})
	l, err := net.Listen("unix", filepath.Join(w.dir, "host.sock"))
	if err != nil {
		w.t.Fatal(err)
	}
	srv := &http.Server{Handler: mux}
	go srv.Serve(l)
	w.t.Cleanup(func() { srv.Close() })
}

func (w *world) last() mesh.Declaration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.decl) == 0 {
		return mesh.Declaration{}
	}
	return w.decl[len(w.decl)-1]
}

func (w *world) client(socket string) *http.Client {
	return &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(w.dir, socket))
	}}}
}

// call calls a seat on its socket, as the host does.
func (w *world) call(seat, verb string, caller mesh.Identity, req mesh.CallRequest) (resp mesh.CallResponse, err error) {
	body, err := json.Marshal(req)
	if err != nil {
		return resp, err
	}
	hr, err := http.NewRequest("POST", "http://seat/verbs/"+verb, bytes.NewReader(body))
	if err != nil {
		return resp, err
	}
	hr.Header.Set(mesh.HeaderCaller, caller.String())
	r, err := w.client(seat + ".sock").Do(hr)
	if err != nil {
		return resp, err
	}
	defer r.Body.Close()
	return resp, json.NewDecoder(r.Body).Decode(&resp)
}

// must calls a verb as the operator.
func must[R any](w *world, seat, verb string, params any) R {
	w.t.Helper()
	var out R
	var req mesh.CallRequest
	var err error
	if params != nil {
		if req.Params, err = json.Marshal(params); err != nil {
			w.t.Fatal(err)
		}
	}
	resp, err := w.call(seat, verb, w.ann, req)
	if err == nil && resp.Error != nil {
		err = resp.Error
	}
	if err == nil {
		err = json.Unmarshal(resp.Result, &out)
	}
	if err != nil {
		w.t.Fatalf("%s %s: %v", seat, verb, err)
	}
	return out
}

// process is a component that runs.
type process struct {
	w    *world
	seat string
	cmd  *exec.Cmd
	log  bytes.Buffer
	done chan error
}

// start starts a component and waits until it answers ping.
func (w *world) start(seat string, epoch int) *process {
	w.t.Helper()
	p := &process{w: w, seat: seat, done: make(chan error, 1)}
	p.cmd = exec.Command(filepath.Join(w.bin, "mesh-"+seat), "serve", "--state", filepath.Join(w.dir, "state-"+seat))
	p.cmd.Env = []string{
		mesh.EnvSeatSocket + "=" + filepath.Join(w.dir, seat+".sock"), mesh.EnvHostSocket + "=" + filepath.Join(w.dir, "host.sock"),
		mesh.EnvMesh + "=home", mesh.EnvNode + "=alpha", mesh.EnvModule + "=" + seat,
	}
	if epoch > 0 {
		p.cmd.Env = append(p.cmd.Env, mesh.EnvEpoch+"="+strconv.Itoa(epoch))
	}
	p.cmd.Stderr = &p.log
	begin := time.Now()
	if err := p.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	go func() { p.done <- p.cmd.Wait() }()
	w.t.Cleanup(func() { p.cmd.Process.Kill() })
	for {
		resp, err := w.call(seat, mesh.VerbPing, w.ann, mesh.CallRequest{})
		if err == nil && resp.Error == nil {
			break
		}
		select {
		case err := <-p.done:
			w.t.Fatalf("%s ended: %v\n%s", seat, err, p.log.String())
		case <-time.After(5 * time.Millisecond):
		}
		if time.Since(begin) > 20*time.Second {
			w.t.Fatalf("%s does not answer: %v, %v", seat, err, resp.Error)
		}
	}
	w.t.Logf("%s answers after %s", seat, time.Since(begin).Round(time.Millisecond))
	return p
}

// stop ends it in order.
func (p *process) stop() {
	p.w.t.Helper()
	p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-p.done:
		if err != nil {
			p.w.t.Fatalf("%s ends badly: %v\n%s", p.seat, err, p.log.String())
		}
	case <-time.After(20 * time.Second):
		p.w.t.Fatalf("%s does not stop", p.seat)
	}
}

// resident is the memory of p that is its own, in bytes.
func (p *process) resident() int64 {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		p.w.t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); f[0] == "RssAnon:" {
			n, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				p.w.t.Fatal(err)
			}
			return n << 10
		}
	}
	p.w.t.Fatal("no RssAnon")
	return 0
}

var update = flag.Bool("update", false, "write docs/verbs.md anew")

// TestProcesses runs all four components as the host would, calls them over their sockets, kills the
// controller, and compares docs/verbs.md with what they describe.
func TestProcesses(t *testing.T) {
	w := newWorld(t)
	ps := map[string]*process{}
	for _, seat := range []string{"vault", "catalogue", "builder"} {
		ps[seat] = w.start(seat, 0)
	}
	ps["controller"] = w.start("controller", 1)

	t.Run("docs", func(t *testing.T) { compareDocs(t, w) })

	rec := must[verbs.BuildRecord](w, "builder", verbs.Build, verbs.BuildParams{Name: "mesh-controller", Version: "0.1.0", Arch: hostArch(t, w), Files: []verbs.BuildFile{
		{Path: "bin/mesh-controller", Executable: true, Content: []byte("#!/bin/not-really\n")},
	}})
	list := must[verbs.ListResult](w, "catalogue", verbs.List, nil)
	if len(list.Artifacts) != 1 || list.Artifacts[0].Digest != rec.Digest {
		t.Fatalf("the catalogue lists %+v", list)
	}

	// A push without digests: the controller asks the catalogue, through the host.
	m := mesh.Manifest{Module: "controller", Resources: []mesh.Resource{
		{ID: "server", Type: mesh.KindProcess, Bundle: "mesh-controller", Args: []string{"serve"}, Seats: []string{"controller"}, HostAPI: true},
	}}
	must[verbs.PushResult](w, "controller", verbs.Push, verbs.PushParams{Manifest: m, Hold: true})
	must[verbs.DeclareResult](w, "controller", verbs.Declare, nil)
	wait(t, "the declaration", func() bool { return w.last().Version == mesh.Version{Epoch: 1, Revision: 1} })
	if r := w.last().Resources; len(r) != 1 || r[0].Digest != rec.Digest || r[0].Source != mesh.SourceStore {
		t.Fatalf("declared is %+v", r)
	}

	// Killed, and started by a host that counts terms: it goes on where it was.
	ps["controller"].cmd.Process.Kill()
	<-ps["controller"].done
	ps["controller"] = w.start("controller", 2)
	wait(t, "the declaration of the second term", func() bool { return w.last().Version == mesh.Version{Epoch: 2, Revision: 1} })
	st := must[verbs.StatusResult](w, "controller", verbs.Status, nil)
	if !st.Settled || st.Epoch != 2 || len(st.Modules) != 1 {
		t.Fatalf("status: %+v", st)
	}
	must[verbs.PutResult](w, "vault", verbs.Put, verbs.PutParams{Name: "web/password", Value: "s3cret"})
	must[verbs.SignResult](w, "vault", verbs.Sign, verbs.SignParams{Name: "web/key", Message: []byte("hello")})

	for seat, p := range ps {
		n := p.resident()
		t.Logf("%s: %d KiB of its own", seat, n>>10)
		if n > 40<<20 {
			t.Errorf("%s has %d bytes of memory of its own", seat, n)
		}
	}
	t.Run("second instance", func(t *testing.T) { secondInstance(t, w) })
	for _, p := range ps {
		p.stop()
		if strings.Contains(p.log.String(), "s3cret") {
			t.Errorf("the log of %s has the secret", p.seat)
		}
	}
	t.Run("earlier term", func(t *testing.T) {
		cmd := exec.Command(filepath.Join(w.bin, "mesh-controller"), "serve", "--state", filepath.Join(w.dir, "state-controller"))
		cmd.Env = append(os.Environ(), mesh.EnvMesh+"=home", mesh.EnvNode+"=alpha", mesh.EnvEpoch+"=1", mesh.EnvSeatSocket+"="+w.dir+"/x.sock", mesh.EnvHostSocket+"="+w.dir+"/host.sock")
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(string(out), "epoch 1 is over") {
			t.Fatalf("%v: %s", err, out)
		}
	})
}

// secondInstance starts another vault on the same state: it must not touch it.
func secondInstance(t *testing.T, w *world) {
	cmd := exec.Command(filepath.Join(w.bin, "mesh-vault"), "serve", "--state", filepath.Join(w.dir, "state-vault"))
	cmd.Env = append(os.Environ(), mesh.EnvMesh+"=home", mesh.EnvSeatSocket+"="+w.dir+"/y.sock")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "another instance uses it") {
		t.Fatalf("%v: %s", err, out)
	}
}

// hostArch is the architecture by which the controller knows its node.
func hostArch(t *testing.T, w *world) string {
	nodes := must[[]verbs.NodeStatus](w, "controller", verbs.Nodes, nil)
	if len(nodes) != 1 || !nodes[0].Control {
		t.Fatalf("nodes: %+v", nodes)
	}
	return nodes[0].Arch
}

func wait(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 1000 {
		if ok() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("never came: " + what)
}

// compareDocs holds docs/verbs.md to what the components describe.
func compareDocs(t *testing.T, w *world) {
	var b strings.Builder
	b.WriteString(docsHead)
	for _, seat := range []string{"controller", "catalogue", "builder", "vault"} {
		fmt.Fprintf(&b, "\n## %s\n\n| verb | what it does | parameters | changes | who |\n|---|---|---|---|---|\n", seat)
		for _, v := range must[[]mesh.VerbInfo](w, seat, mesh.VerbDescribe, nil) {
			changes := ""
			if v.Changes {
				changes = "yes"
			}
			var roles []string
			for _, r := range v.Roles {
				roles = append(roles, string(r))
			}
			who := strings.Join(roles, ", ")
			if len(roles) == 4 {
				who = "everybody"
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", v.Name, v.Summary, strings.Join(v.Params, ", "), changes, who)
		}
	}
	path := filepath.Join("..", "..", "docs", "verbs.md")
	if *update {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(have), b.String()); d != "" {
		t.Errorf("docs/verbs.md is not what the components describe (- written, + described); run this test with -update:\n%s", d)
	}
}

const docsHead = `# Verbs

What the mesh's own seats answer. The tables are written by ` + "`go test ./internal/component -run TestProcesses -update`" + ` from
what the running components describe, and the same test fails when they differ.

Call a verb by ` + "`kingpost call SEAT VERB`" + `. Parameters are one JSON object; a field that a verb does not know, or that is
given twice, is refused. With ` + "`probe`" + ` a call is authorised, its parameters are decoded and checked, the state is opened, and
nothing is changed; a probe without parameters asks only whether the verb would be answered to the caller. "everybody" is
operators, viewers, nodes and components. The types are in [internal/mesh/verbs](../internal/mesh/verbs).

A refusal has a code: ` + "`unknown-verb`, `denied`, `bad-params`, `not-found`, `conflict`, `unavailable`, `failed`" + `.

- A **push** declares at once. With ` + "`hold`" + ` it waits for ` + "`declare`" + `, and so does every push before the first ` + "`declare`" + ` of a mesh.
  Another form in the manifest, process or container, is a handover. A push without ` + "`placement`" + ` stays where the module is, or goes
  to the control-node; with an empty one the module is taken off every node.
- A **remove** takes a module and its history off the mesh; the nodes stop what it ran and keep what its volumes hold, so that a push of
  the module finds it again. A module that holds a seat of the mesh's own, and the host, are refused: a push replaces those.
- A **plan** carries the revision that it was made for. Given back to ` + "`push` or `declare`" + `, they refuse when the mesh changed since.
- **Tags** in the store are never moved by the builder: a version that stands with another content is a conflict.
- **Secrets** are named MODULE/NAME. A component gets those of its own module; ` + "`mesh/` and `host/`" + ` are the mesh's own. What the vault's
  encryption protects from, and what not, is said in [internal/vault](../internal/vault/doc.go).
`
