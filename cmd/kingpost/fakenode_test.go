package main

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"

	"kingpost/internal/host/identity"
	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
	"kingpost/internal/mesh/tlsid"
	"kingpost/internal/mesh/verbs"
)

// fakeNode is a node's API with a real key, a real CA and a real registry, and with a raise that only
// counts to ten.
type fakeNode struct {
	addr string
	key  ed25519.PrivateKey
	auth *identity.Authority
	srv  *http.Server
	tls  tls.Certificate

	mu      sync.Mutex
	claim   ed25519.PublicKey
	mode    string // see bend
	status  hostapi.RaiseStatus
	change  chan struct{}
	install hostapi.InstallStatus // under mu
}

func startFakeNode(dir string) (*fakeNode, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	n := &fakeNode{key: key, change: make(chan struct{}), status: hostapi.RaiseStatus{State: "none"}}
	if n.tls, err = tlsid.SelfSigned(key, "alpha"); err != nil {
		return nil, err
	}
	if n.auth, err = identity.Open(filepath.Join(dir, ".identity"), time.Now); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	n.addr = l.Addr().String()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/node", n.getNode)
	mux.HandleFunc("GET /v1/status", n.admit(n.getStatus))
	mux.HandleFunc("POST /v1/raise", n.admit(n.postRaise))
	mux.HandleFunc("GET /v1/raise", n.admit(n.followRaise))
	mux.HandleFunc("POST /v1/call/{seat}/{verb}", n.admit(n.call))
	mux.HandleFunc("GET /v1/logs/{key...}", n.admit(n.logs))
	mux.HandleFunc("GET /v1/disks", n.admit(getDisks))
	mux.HandleFunc("POST /v1/install", n.admit(n.postInstall))
	mux.HandleFunc("GET /v1/install", n.admit(n.getInstall))
	mux.HandleFunc("POST /v1/power", n.admit(func(w http.ResponseWriter, _ *http.Request) { send(w, struct{}{}) }))
	mux.HandleFunc("POST /v1/reset", n.admit(func(w http.ResponseWriter, r *http.Request) {
		var req hostapi.ResetRequest
		if err := json.NewDecoder(r.Body).Decode(&req); err != nil || req.Name != "alpha" {
			refuse(w, http.StatusConflict, mesh.CodeConflict, "this is the node alpha")
			return
		}
		n.bend("reset")
		send(w, struct{}{})
	}))
	mux.Handle("/v2/", registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	n.srv = &http.Server{Handler: mux, ErrorLog: log.New(io.Discard, "", 0), TLSConfig: &tls.Config{
		ClientAuth: tls.RequestClientCert,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			if m, _ := n.auth.Mesh(); m == "" {
				return &n.tls, nil
			}
			c, err := n.auth.Node(context.Background(), n.key)
			if err != nil {
				return nil, err
			}
			return &c.Certificate, nil
		},
	}}
	go n.srv.ServeTLS(l, "", "")
	return n, nil
}

func (n *fakeNode) close() { n.srv.Close() }

func (n *fakeNode) fingerprint() string { return tlsid.Fingerprint(n.key.Public()) }

func (n *fakeNode) claimBy(pem []byte) error {
	key, err := tlsid.ParsePrivateKey(pem)
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.claim = key.Public().(ed25519.PublicKey)
	return nil
}

// bend makes the node "seed" (its preflight refuses), "slow" (the raise stops in step 3), "fail" (it
// gives up there), "silent" (the controller does not answer), or "mend"s it.
func (n *fakeNode) bend(mode string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mode = mode
}

func (n *fakeNode) bent() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mode
}

func send(w http.ResponseWriter, v any) { _ = json.NewEncoder(w).Encode(v) }

func refuse(w http.ResponseWriter, status int, code, format string, args ...any) {
	w.WriteHeader(status)
	send(w, hostapi.Error{Status: status, Code: code, Message: fmt.Sprintf(format, args...)})
}

// admit lets in the holder of the claim key, with or without a certificate of the mesh.
func (n *fakeNode) admit(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		n.mu.Lock()
		claim := n.claim
		n.mu.Unlock()
		if len(r.TLS.PeerCertificates) == 0 || !claim.Equal(r.TLS.PeerCertificates[0].PublicKey) {
			refuse(w, 403, mesh.CodeDenied, "denied: this node is claimed by another key")
			return
		}
		h(w, r)
	}
}

func (n *fakeNode) getNode(w http.ResponseWriter, _ *http.Request) {
	m, _ := n.auth.Mesh()
	send(w, hostapi.Node{Name: "alpha", Key: n.fingerprint(), Mesh: m, State: "claimed", Addresses: []string{"10.0.0.2"},
		Release: mesh.ReleaseInfo{Name: "node", Version: "0.1.0", Architecture: "amd64"},
		Time:    time.Date(2026, 12, 1, 0, 1, 30, 0, time.UTC), Uptime: 90, DataSize: 8 << 30, DataFree: 7 << 30})
}

func (n *fakeNode) getStatus(w http.ResponseWriter, _ *http.Request) {
	send(w, hostapi.Status{Declared: mesh.Version{Epoch: 1, Revision: 1}, Settled: true, Resources: []hostapi.ResourceStatus{
		{Key: "controller/server", Module: "controller", ID: "server", Type: mesh.KindProcess, State: "healthy", Source: mesh.SourceStore,
			Digest: "sha256:" + strings.Repeat("ab", 32), Seats: []string{"controller"}, PID: 7, Memory: 20 << 20,
			Since: time.Date(2026, 12, 1, 0, 0, 30, 0, time.UTC)},
		{Key: "controller/state", Module: "controller", ID: "state", Type: mesh.KindVolume, State: "present"},
	}})
}

func (n *fakeNode) postRaise(w http.ResponseWriter, r *http.Request) {
	var req hostapi.RaiseRequest
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
		refuse(w, 400, mesh.CodeBadParams, "%v", err)
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if m, _ := n.auth.Mesh(); m != "" && m != req.Mesh {
		refuse(w, 409, mesh.CodeConflict, "raise %s: this node belongs to the mesh %s", req.Mesh, m)
		return
	}
	if n.status.State != "done" {
		n.status = hostapi.RaiseStatus{Mesh: req.Mesh, State: "running", Step: 1}
		for i := range 10 {
			n.status.Steps = append(n.status.Steps, hostapi.RaiseStep{Number: i + 1, Name: fmt.Sprintf("step-%d", i+1), State: "pending"})
		}
		n.status.Steps[0].Warnings = []string{"clock: raised from 1970-01-01"}
		w.WriteHeader(http.StatusAccepted)
	}
	send(w, n.status)
}

// followRaise advances the raise by one step per line.
func (n *fakeNode) followRaise(w http.ResponseWriter, r *http.Request) {
	for {
		n.mu.Lock()
		n.advance()
		st := n.status
		st.Steps = append([]hostapi.RaiseStep(nil), st.Steps...)
		n.mu.Unlock()
		send(w, st)
		w.(http.Flusher).Flush()
		if st.State == "done" || st.State == "failed" {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (n *fakeNode) advance() {
	st := &n.status
	s := &st.Steps[st.Step-1]
	switch {
	case n.mode == "seed":
		st.State, s.State, s.Reason = "refused", "refused", "seed: blob sha256:abc does not match its digest"
		return
	case st.Step == 3 && n.mode == "slow":
		s.State, s.Reason = "running", "registry/server is starting"
		return
	case st.Step == 3 && n.mode == "fail":
		st.State, s.State, s.Reason = "failed", "running", "registry/server is held: it exited with 1"
		return
	case st.Step == 2:
		if err := n.auth.Create(st.Mesh, "alpha", n.key, n.claim); err != nil {
			s.Reason = err.Error()
			return
		}
		m, err := n.auth.Membership()
		if err != nil {
			s.Reason = err.Error()
			return
		}
		st.Certificate, st.CA = m.Operator, m.CA
	}
	s.State, s.Reason, s.Seconds, st.State = "done", "", 1.5, "running"
	if st.Step == 10 {
		st.State = "done"
		return
	}
	st.Step++
	st.Steps[st.Step-1].State = "running"
}

func (n *fakeNode) call(w http.ResponseWriter, r *http.Request) {
	seat, verb := r.PathValue("seat"), r.PathValue("verb")
	var req mesh.CallRequest
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
		refuse(w, 400, mesh.CodeBadParams, "%v", err)
		return
	}
	if seat != mesh.SeatController || n.bent() == "silent" {
		refuse(w, 503, mesh.CodeUnavailable, "nobody holds the seat %s", seat)
		return
	}
	if req.Probe {
		send(w, mesh.CallResponse{})
		return
	}
	var result any
	switch verb {
	case mesh.VerbDescribe:
		result = []mesh.VerbInfo{{Name: "declare", Summary: "write declarations", Roles: []mesh.Role{mesh.RoleOperator}, Changes: true}}
	case verbs.Status:
		result = verbs.StatusResult{Mesh: "home", Node: "alpha", Epoch: 2, Settled: true, Nodes: []verbs.NodeStatus{{Name: "alpha", Arch: "amd64", Control: true, Declared: mesh.Version{Epoch: 1, Revision: 1}, Delivered: true}}, Modules: []verbs.ModuleStatus{}, Seats: []verbs.SeatStatus{}}
	case verbs.Push:
		var p verbs.PushParams
		if err := json.Unmarshal(req.Params, &p); err != nil {
			send(w, mesh.CallResponse{Error: &mesh.CallError{Code: mesh.CodeBadParams, Message: err.Error()}})
			return
		}
		result = verbs.PushResult{Module: p.Manifest.Module, Version: 1, Declared: true, Changes: []verbs.Change{
			{Node: "alpha", Key: p.Manifest.Module + "/server", Action: "add", Why: "it is new", To: p.Digests["bundle/web"]["amd64"]}}}
	case verbs.Nodes:
		result = []verbs.NodeStatus{{Name: "alpha", Arch: "amd64", Control: true}}
	case verbs.Remove:
		var p verbs.RemoveParams
		if err := json.Unmarshal(req.Params, &p); err != nil || p.Module == "controller" {
			send(w, mesh.CallResponse{Error: &mesh.CallError{Code: mesh.CodeConflict, Message: "remove controller: controller/server holds the seat controller"}})
			return
		}
		result = verbs.RemoveResult{Module: p.Module, Kept: []string{p.Module + "/data on alpha"}, Changes: []verbs.Change{
			{Node: "alpha", Key: p.Module + "/server", Action: "remove", Why: "module " + p.Module + " is removed"}}}
	case verbs.Plan:
		result = verbs.PlanResult{Changes: []verbs.Change{}}
	case "echo":
		result = req.Params
	default:
		send(w, mesh.CallResponse{Error: &mesh.CallError{Code: mesh.CodeUnknownVerb, Message: "no verb " + verb}})
		return
	}
	raw, err := json.Marshal(result)
	if err != nil {
		refuse(w, 500, mesh.CodeFailed, "%v", err)
		return
	}
	send(w, mesh.CallResponse{Result: raw})
}

func (n *fakeNode) logs(w http.ResponseWriter, r *http.Request) {
	if r.PathValue("key") == "none" {
		refuse(w, 404, mesh.CodeNotFound, "there is no module none here")
		return
	}
	fmt.Fprintf(w, "log of %s since %q\n", r.PathValue("key"), r.URL.Query().Get("since"))
	if r.URL.Query().Get("follow") != "" {
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}
}

// getDisks answers by the real plan, over a machine that booted from a stick and has a disk.
func getDisks(w http.ResponseWriter, _ *http.Request) {
	d, err := fakePlan(&mesh.InstallConfig{Disk: mesh.DiskSelector{Serial: "S3Z"}})
	if err != nil {
		refuse(w, 500, mesh.CodeFailed, "%v", err)
		return
	}
	send(w, d)
}
