package seat

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"kingpost/internal/mesh"
)

// Limits of a server.
const (
	DefaultMaxBody = 8 << 20 // bytes of one call
	maxCalls       = 32      // calls at once; more wait for their turn as long as their caller does
	graceful       = 10 * time.Second
)

// Options says which seat is served, and how.
type Options struct {
	Seat string
	// Mesh is the mesh's name; a caller of another mesh is denied. Empty accepts any.
	Mesh string
	// Open opens the state that verbs work on, without changing it. It runs before every call, probes
	// included, so that none says yes for a component whose state is lost. Nil: there is no state.
	Open func(ctx context.Context) error
	// About is what `ping` answers beside the seat's name; nil for nothing.
	About func() map[string]any
	// MaxBody bounds a call in bytes; 0 is DefaultMaxBody.
	MaxBody int64
	Log     logrus.FieldLogger
}

// Server answers the verbs of one seat. Register all verbs before it serves.
type Server struct {
	opt   Options
	verbs map[string]*verb
	slots chan struct{}
}

// New makes a server that answers ping and describe.
func New(opt Options) *Server {
	if opt.MaxBody == 0 {
		opt.MaxBody = DefaultMaxBody
	}
	if opt.Log == nil {
		l := logrus.New()
		l.SetOutput(io.Discard)
		opt.Log = l
	}
	s := &Server{opt: opt, verbs: map[string]*verb{}, slots: make(chan struct{}, maxCalls)}
	Register(s, Verb[None]{
		Name: mesh.VerbPing, Summary: "says that the seat is held and its state opens", Roles: Everybody(),
		Run: func(context.Context, Request, *None) (any, error) {
			about := map[string]any{}
			if opt.About != nil {
				about = opt.About()
			}
			about["seat"] = opt.Seat
			return about, nil
		},
	})
	Register(s, Verb[None]{
		Name: mesh.VerbDescribe, Summary: "lists the verbs that are answered", Roles: Everybody(),
		Run: func(context.Context, Request, *None) (any, error) { return s.Describe(), nil },
	})
	return s
}

// Describe lists the registered verbs, sorted by name.
func (s *Server) Describe() []mesh.VerbInfo {
	infos := make([]mesh.VerbInfo, 0, len(s.verbs))
	for _, v := range s.verbs {
		infos = append(infos, v.info)
	}
	slices.SortFunc(infos, func(a, b mesh.VerbInfo) int { return strings.Compare(a.Name, b.Name) })
	return infos
}

// Call answers one call in this process. ServeHTTP is a thin form of it; tests use it directly.
func (s *Server) Call(ctx context.Context, caller mesh.Identity, name string, req mesh.CallRequest) mesh.CallResponse {
	start := time.Now()
	result, err := s.answer(ctx, caller, name, req)
	log := s.opt.Log.WithFields(logrus.Fields{
		"verb": name, "caller": caller.String(), "probe": req.Probe, "took": time.Since(start).Round(time.Millisecond).String(),
	})
	if err != nil {
		ce := callError(name, err)
		log.WithFields(logrus.Fields{"code": ce.Code, "error": ce.Message}).Warn("call refused or failed")
		return mesh.CallResponse{Error: ce}
	}
	if v := s.verbs[name]; v.info.Changes && !req.Probe {
		log.Info("call done")
	} else {
		log.Debug("call done")
	}
	if result == nil {
		return mesh.CallResponse{}
	}
	body, err := json.Marshal(result)
	if err != nil {
		log.WithError(err).Error("the result cannot be written as JSON")
		return mesh.CallResponse{Error: Errorf(mesh.CodeFailed, "%s: its result cannot be written as JSON", name)}
	}
	return mesh.CallResponse{Result: body}
}

// answer is the one path of every call: verb, authority, parameters, state, effect.
func (s *Server) answer(ctx context.Context, caller mesh.Identity, name string, req mesh.CallRequest) (result any, err error) {
	v := s.verbs[name]
	if v == nil {
		return nil, Errorf(mesh.CodeUnknownVerb, "seat %s has no verb %.64q; describe lists what it has", s.opt.Seat, name)
	}
	if s.opt.Mesh != "" && caller.Mesh != s.opt.Mesh {
		return nil, Errorf(mesh.CodeDenied, "%s is not of the mesh %s", caller, s.opt.Mesh)
	}
	if !slices.Contains(v.info.Roles, caller.Role) {
		return nil, Errorf(mesh.CodeDenied, "%s may not call %s %s; roles that may: %v", caller, s.opt.Seat, name, v.info.Roles)
	}
	ctx, cancel := context.WithTimeout(ctx, v.timeout)
	defer cancel()
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return nil, Errorf(mesh.CodeUnavailable, "seat %s is busy with %d calls; try again", s.opt.Seat, maxCalls)
	}
	defer func() {
		if p := recover(); p != nil {
			s.logPanic(name, p)
			result, err = nil, Errorf(mesh.CodeFailed, "%s %s broke inside; the log of the component has the stack", s.opt.Seat, name)
		}
	}()
	r := Request{Caller: caller, Verb: name, Probe: req.Probe}
	if s.opt.Open != nil {
		if err := s.opt.Open(ctx); err != nil {
			return nil, fmt.Errorf("open the state of %s: %w", s.opt.Seat, err)
		}
	}
	run, err := v.prepare(ctx, r, req.Params)
	if err != nil {
		return nil, err
	}
	if req.Probe {
		return nil, nil
	}
	result, err = run(ctx)
	if err == nil && result == nil {
		result = struct{}{}
	}
	return result, err
}

// logPanic logs the stack. The value itself is logged only when the runtime made it: any other could hold
// a secret that a handler was working on.
func (s *Server) logPanic(name string, p any) {
	msg := fmt.Sprintf("a %T", p)
	if re, ok := p.(runtime.Error); ok {
		msg = re.Error()
	}
	s.opt.Log.WithFields(logrus.Fields{"verb": name, "panic": msg, "stack": string(debug.Stack())}).Error("a verb panicked")
}

func callError(name string, err error) *mesh.CallError {
	var ce *mesh.CallError
	switch {
	case errors.As(err, &ce):
		return &mesh.CallError{Code: ce.Code, Message: err.Error()}
	case errors.Is(err, context.DeadlineExceeded):
		return Errorf(mesh.CodeUnavailable, "%s took too long: %v", name, err)
	}
	return Errorf(mesh.CodeFailed, "%s: %v", name, err)
}

// ServeHTTP answers "POST /verbs/VERB". Every answer is a mesh.CallResponse; a verb's refusal is 200 with
// Error set, other statuses are for what is no call at all.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name, ok := strings.CutPrefix(r.URL.Path, "/verbs/")
	if !ok || name == "" || strings.Contains(name, "/") {
		reply(w, http.StatusNotFound, refusal(mesh.CodeNotFound, "there is nothing at %.100q; calls go to /verbs/VERB", r.URL.Path))
		return
	}
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		reply(w, http.StatusMethodNotAllowed, refusal(mesh.CodeBadParams, "calls are POST, not %.16q", r.Method))
		return
	}
	caller, err := mesh.ParseIdentity(r.Header.Get(mesh.HeaderCaller))
	if err != nil {
		reply(w, http.StatusOK, refusal(mesh.CodeDenied, "%s: %v", mesh.HeaderCaller, err))
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, s.opt.MaxBody))
	if err != nil {
		var tooBig *http.MaxBytesError
		if errors.As(err, &tooBig) {
			reply(w, http.StatusRequestEntityTooLarge, refusal(mesh.CodeBadParams, "the call is larger than %d bytes", s.opt.MaxBody))
			return
		}
		reply(w, http.StatusBadRequest, refusal(mesh.CodeBadParams, "read the call: %v", err))
		return
	}
	var req mesh.CallRequest
	if len(body) > 0 {
		if _, err := decode(body, &req); err != nil {
			reply(w, http.StatusOK, refusal(mesh.CodeBadParams, "the call: %v", err))
			return
		}
	}
	reply(w, http.StatusOK, s.Call(r.Context(), caller, name, req))
}

func refusal(code, format string, args ...any) mesh.CallResponse {
	return mesh.CallResponse{Error: Errorf(code, format, args...)}
}

func reply(w http.ResponseWriter, status int, resp mesh.CallResponse) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(resp) // the caller may be gone; there is nobody to tell
}

// ListenAndServe serves on the unix socket at path until ctx ends, then lets running calls finish for up
// to ten seconds. A socket left by an earlier run is replaced. It returns nil after an orderly stop.
func (s *Server) ListenAndServe(ctx context.Context, path string) error {
	if path == "" {
		return fmt.Errorf("seat %s: %s is not set: a component is started by the host, which sets it for a resource with seats", s.opt.Seat, mesh.EnvSeatSocket)
	}
	if fi, err := os.Lstat(path); err == nil && fi.Mode()&fs.ModeSocket != 0 {
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("seat %s: remove the old socket: %w", s.opt.Seat, err)
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return fmt.Errorf("seat %s: listen on its socket: %w", s.opt.Seat, err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return fmt.Errorf("seat %s: close its socket to others: %w", s.opt.Seat, err)
	}
	return s.Serve(ctx, l)
}

// Serve is ListenAndServe on a listener, which it closes.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	// Calls must survive the stop signal long enough to finish, so their context is not ctx.
	calls, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	srv := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       2 * time.Minute,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		BaseContext:       func(net.Listener) context.Context { return calls },
	}
	s.opt.Log.WithFields(logrus.Fields{"seat": s.opt.Seat, "verbs": len(s.verbs)}).Info("serving")
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(l) }()
	select {
	case err := <-failed:
		return fmt.Errorf("seat %s: serve: %w", s.opt.Seat, err)
	case <-ctx.Done():
	}
	stop, done := context.WithTimeout(calls, graceful)
	defer done()
	if err := srv.Shutdown(stop); err != nil {
		cancel()
		srv.Close()
		s.opt.Log.WithError(err).Warn("calls were cut off while stopping")
	}
	<-failed
	return nil
}
