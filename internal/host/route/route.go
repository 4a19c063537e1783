// Package route brings a call to whoever holds the seat here: to its socket, or, for the third-party
// servers that serve no verbs (store, registry, broker), to a real request made on their behalf.
//
// It never decides who may call a verb: it tells the holder who the caller is, and the holder decides.
//
// Start with Router.Route.
package route

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
)

// Bounds of a call.
const (
	MaxRequest  = 32 << 20         // bytes of a CallRequest; the builder takes files inline
	MaxResponse = 8 << 20          // bytes of a CallResponse: one must fit into the host's memory, see cmd/mesh-host
	maxTime     = 30 * time.Minute // a build
	promptTime  = time.Minute      // ping, describe and every probe: what nobody works on
)

// Builtin answers for a seat whose holder serves no verbs.
type Builtin interface {
	// Ping makes a real request to the holder and tells what it saw.
	Ping(ctx context.Context) (any, error)
	// Summary says in describe what Ping does.
	Summary() string
}

// Router routes calls on this node.
type Router struct {
	// Holder is the key of the running resource that holds a seat, and Dial connects to its socket.
	Holder func(seat string) (key string, ok bool)
	Dial   func(ctx context.Context, seat string) (net.Conn, error)
	// Declaration and Status tell who should hold a seat that nobody answers for.
	Declaration func() (mesh.Declaration, bool)
	Status      func() hostapi.Status
	// Builtins are the seats that this host answers for.
	Builtins map[string]Builtin
	// Self is the node's own identity.
	Self func() mesh.Identity
}

// Route calls verb of seat for caller. An error is a *mesh.CallError of the route itself (unavailable, bad
// parameters); what the holder answers, a refusal too, is the response.
func (r *Router) Route(ctx context.Context, caller mesh.Identity, seat, verb string, req mesh.CallRequest) (mesh.CallResponse, error) {
	for _, n := range []string{seat, verb} {
		if err := mesh.CheckName(n); err != nil {
			return mesh.CallResponse{}, failure(mesh.CodeBadParams, "call SEAT VERB: %v", err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, limit(verb, req.Probe))
	defer cancel()
	if b, ok := r.Builtins[seat]; ok {
		return r.builtin(ctx, b, seat, verb, req)
	}
	key, ok := r.Holder(seat)
	if !ok {
		return mesh.CallResponse{}, failure(mesh.CodeUnavailable, "the seat %s does not answer: %s", seat, r.who(seat))
	}
	resp, err := r.post(ctx, caller, seat, verb, req)
	if err != nil {
		return mesh.CallResponse{}, failure(mesh.CodeUnavailable, "the seat %s does not answer: %s: %v", seat, key, err)
	}
	return resp, nil
}

// limit is how long a holder has for its answer.
func limit(verb string, probe bool) time.Duration {
	if probe || verb == mesh.VerbPing || verb == mesh.VerbDescribe {
		return promptTime
	}
	return maxTime
}

// post makes one request on a fresh connection: a kept one could lead to an instance that was replaced.
func (r *Router) post(ctx context.Context, caller mesh.Identity, seat, verb string, req mesh.CallRequest) (mesh.CallResponse, error) {
	body, err := json.Marshal(req)
	if err != nil {
		return mesh.CallResponse{}, err
	}
	tr := &http.Transport{
		DisableKeepAlives:      true,
		DisableCompression:     true, // an answer is as large as what is read
		MaxResponseHeaderBytes: 64 << 10,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			return r.Dial(ctx, seat)
		},
	}
	defer tr.CloseIdleConnections()
	hr, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://seat/verbs/"+verb, bytes.NewReader(body))
	if err != nil {
		return mesh.CallResponse{}, err
	}
	hr.Header.Set("Content-Type", "application/json")
	hr.Header.Set(mesh.HeaderCaller, caller.String())
	resp, err := tr.RoundTrip(hr)
	if err != nil {
		return mesh.CallResponse{}, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, MaxResponse+1))
	if err != nil {
		return mesh.CallResponse{}, fmt.Errorf("read its answer: %w", err)
	}
	if len(b) > MaxResponse {
		return mesh.CallResponse{}, fmt.Errorf("its answer is larger than %d bytes", MaxResponse)
	}
	var out mesh.CallResponse
	if err := json.Unmarshal(b, &out); err != nil {
		return mesh.CallResponse{}, fmt.Errorf("its answer (%s) is no call response: %w", resp.Status, err)
	}
	if resp.StatusCode/100 != 2 && out.Error == nil {
		return mesh.CallResponse{}, fmt.Errorf("it answers %s", resp.Status)
	}
	return out, nil
}

// builtin answers ping and describe; there are no other verbs.
func (r *Router) builtin(ctx context.Context, b Builtin, seat, verb string, req mesh.CallRequest) (mesh.CallResponse, error) {
	if p := bytes.TrimSpace(req.Params); len(p) > 0 && !bytes.Equal(p, []byte("null")) && !bytes.Equal(p, []byte("{}")) {
		return answer(nil, failure(mesh.CodeBadParams, "%s of %s takes no parameters", verb, seat))
	}
	roles := []mesh.Role{mesh.RoleOperator, mesh.RoleViewer, mesh.RoleNode, mesh.RoleComponent}
	switch verb {
	case mesh.VerbDescribe:
		if req.Probe {
			return answer(nil, nil)
		}
		return answer([]mesh.VerbInfo{
			{Name: mesh.VerbDescribe, Summary: "lists the verbs that are answered", Roles: roles},
			{Name: mesh.VerbPing, Summary: b.Summary(), Roles: roles},
		}, nil)
	case mesh.VerbPing:
		// A probe of it makes the same request: nothing is changed by that.
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		res, err := b.Ping(ctx)
		if err != nil {
			return mesh.CallResponse{}, failure(mesh.CodeUnavailable, "the seat %s does not answer: %s: %v", seat, r.who(seat), err)
		}
		if req.Probe {
			return answer(nil, nil)
		}
		return answer(res, nil)
	}
	return answer(nil, failure(mesh.CodeUnknownVerb, "seat %s has no verb %s; describe lists what it has", seat, verb))
}

func answer(result any, refusal *mesh.CallError) (mesh.CallResponse, error) {
	if refusal != nil || result == nil {
		return mesh.CallResponse{Error: refusal}, nil
	}
	b, err := json.Marshal(result)
	if err != nil {
		return mesh.CallResponse{}, failure(mesh.CodeFailed, "write the answer: %v", err)
	}
	return mesh.CallResponse{Result: b}, nil
}

// who says who should hold a seat here and how that one stands.
func (r *Router) who(seat string) string {
	d, ok := r.Declaration()
	if !ok {
		return "nothing is declared on this node yet"
	}
	var states []string
	byKey := map[string]hostapi.ResourceStatus{}
	for _, s := range r.Status().Resources {
		byKey[s.Key] = s
	}
	for _, res := range d.Resources {
		for _, s := range res.Seats {
			if s != seat {
				continue
			}
			text := res.Key() + " should hold it"
			if st, ok := byKey[res.Key()]; ok {
				text += " and is " + st.State
				if st.Reason != "" {
					text += " (" + st.Reason + ")"
				}
			}
			states = append(states, text)
		}
	}
	if len(states) == 0 {
		return "nothing that is declared on this node holds it"
	}
	return strings.Join(states, "; ")
}

func failure(code, format string, args ...any) *mesh.CallError {
	return &mesh.CallError{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Call implements mesh.Caller as the node itself.
func (r *Router) Call(ctx context.Context, seat, verb string, params, result any, opts ...mesh.CallOption) error {
	return r.call(ctx, r.Self(), seat, verb, params, result, opts)
}

// As is a caller with the identity that id gives at each call.
func (r *Router) As(id func() mesh.Identity) mesh.Caller { return caller{r, id} }

type caller struct {
	r  *Router
	id func() mesh.Identity
}

func (c caller) Call(ctx context.Context, seat, verb string, params, result any, opts ...mesh.CallOption) error {
	return c.r.call(ctx, c.id(), seat, verb, params, result, opts)
}

func (r *Router) call(ctx context.Context, as mesh.Identity, seat, verb string, params, result any, opts []mesh.CallOption) error {
	var req mesh.CallRequest
	for _, o := range opts {
		o(&req)
	}
	if params != nil {
		b, err := json.Marshal(params)
		if err != nil {
			return failure(mesh.CodeBadParams, "call %s %s: write the parameters: %v", seat, verb, err)
		}
		req.Params = b
	}
	resp, err := r.Route(ctx, as, seat, verb, req)
	if err != nil {
		return err
	}
	if resp.Error != nil {
		return resp.Error
	}
	if result == nil || len(resp.Result) == 0 {
		return nil
	}
	if err := json.Unmarshal(resp.Result, result); err != nil {
		return failure(mesh.CodeFailed, "call %s %s: read the result: %v", seat, verb, err)
	}
	return nil
}

var _ mesh.Caller = (*Router)(nil)
