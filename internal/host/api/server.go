package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"kingpost/internal/host/door"
	"kingpost/internal/host/route"
	"kingpost/internal/host/supervise"
	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
)

// Raises is the raise of this node; installer/raise implements it.
type Raises interface {
	Start(ctx context.Context, req hostapi.RaiseRequest) (hostapi.RaiseStatus, error)
	Status() hostapi.RaiseStatus
	// Watch sends the status now and at every change until it has ended or ctx is done.
	Watch(ctx context.Context) <-chan hostapi.RaiseStatus
}

// Installs is the installation from this node onto another disk; installer/install implements it.
type Installs interface {
	Start(ctx context.Context, req hostapi.InstallRequest) (hostapi.InstallStatus, error)
	Status() hostapi.InstallStatus
	// Watch sends the status now and at every change until it is over or ctx is done.
	Watch(ctx context.Context) <-chan hostapi.InstallStatus
}

// Config is what a Server passes things on to.
type Config struct {
	Door       *door.Door
	Supervisor supervise.API
	Router     *route.Router
	// Raises is asked for at each request, since it may come after the server; nil means not yet.
	Raises func() Raises
	// Installs is nil where a host cannot install.
	Installs Installs
	// Store is the artifact store's front.
	Store http.Handler
	Node  func() hostapi.Node
	// Disks looks at the machine's disks, one caller at a time; see hostapi.Disks.
	Disks func(context.Context) (hostapi.Disks, error)
	// Power begins to stop the node and returns.
	Power func(action string) error
	// Reset marks the node to be wiped, begins to reboot it and returns.
	Reset func(hostapi.ResetRequest) error
	Log   logrus.FieldLogger
	Now   func() time.Time
}

// Server is the API.
type Server struct {
	cfg       Config
	mux       *http.ServeMux
	contracts map[string]contract
}

// New makes a Server.
func New(cfg Config) *Server {
	s := &Server{cfg: cfg, mux: http.NewServeMux(), contracts: contracts()}
	byPattern := map[string][]endpoint{}
	for _, e := range endpoints() {
		byPattern[e.pattern] = append(byPattern[e.pattern], e)
	}
	for pattern, es := range byPattern {
		s.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { s.dispatch(w, r, es) })
	}
	s.mux.Handle("/v2/", cfg.Store)
	s.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeError(w, refusal(http.StatusNotFound, mesh.CodeNotFound, "there is nothing at %.100q; this is the host's API, version 1", r.URL.Path))
	})
	return s
}

// dispatch chooses by method, asks the door and answers errors.
func (s *Server) dispatch(w http.ResponseWriter, r *http.Request, es []endpoint) {
	var allowed []string
	for _, e := range es {
		if r.Method != e.method && !(r.Method == http.MethodHead && e.method == http.MethodGet) {
			allowed = append(allowed, e.method)
			continue
		}
		c := CallerOf(r)
		err := s.cfg.Door.Check(c, e.rule)
		if err == nil {
			bounded, cancel := s.contracts[e.method+" "+e.pattern].bounded(r)
			err = e.handle(s, w, bounded, c)
			cancel()
		}
		if err != nil && r.Context().Err() == nil {
			s.report(r, c, err)
			writeError(w, err)
		}
		return
	}
	w.Header().Set("Allow", strings.Join(allowed, ", "))
	writeError(w, refusal(http.StatusMethodNotAllowed, mesh.CodeBadParams, "%s takes %s, not %.16q", r.URL.Path, strings.Join(allowed, " or "), r.Method))
}

func (s *Server) report(r *http.Request, c door.Caller, err error) {
	e := asError(err)
	l := s.cfg.Log.WithFields(logrus.Fields{"caller": c.String(), "method": r.Method, "path": r.URL.Path, "status": e.Status})
	if !c.Local {
		l = l.WithField("remote", r.RemoteAddr)
	}
	l.WithError(err).Info("api: refused or failed")
}

// Handler is the API with its guard against those who stall.
func (s *Server) Handler() http.Handler { return Guard(s.mux) }

type callerKey struct{}

// CallerOf is who made a request that a server of this package took in.
func CallerOf(r *http.Request) door.Caller {
	if f, ok := r.Context().Value(callerKey{}).(func(*http.Request) door.Caller); ok {
		return f(r)
	}
	return door.Caller{Denied: "the connection has no known origin"}
}

// Serve serves handler on l until ctx is done, then lets requests end for up to two seconds. identify
// finds the caller of a request on a connection, which is looked at once.
func Serve(ctx context.Context, l net.Listener, handler http.Handler, identify func(net.Conn) func(*http.Request) door.Caller) error {
	srv := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       30 * time.Second,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          log.New(io.Discard, "", 0), // failed handshakes of strangers
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, callerKey{}, identify(c))
		},
	}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	select {
	case err := <-done:
		return fmt.Errorf("serve on %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	wait, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if err := srv.Shutdown(wait); err != nil {
		srv.Close()
	}
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve on %s: %w", l.Addr(), err)
	}
	return nil
}

func refusal(status int, code, format string, args ...any) error {
	return &hostapi.Error{Status: status, Code: code, Message: fmt.Sprintf(format, args...)}
}

// statusOf is the HTTP status of a code.
func statusOf(code string) int {
	switch code {
	case mesh.CodeBadParams:
		return http.StatusBadRequest
	case mesh.CodeDenied:
		return http.StatusForbidden
	case mesh.CodeNotFound, mesh.CodeUnknownVerb:
		return http.StatusNotFound
	case mesh.CodeConflict:
		return http.StatusConflict
	case mesh.CodeUnavailable:
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

// asError gives any error the form of the API.
func asError(err error) *hostapi.Error {
	var he *hostapi.Error
	var ce *mesh.CallError
	var dr *door.Refusal
	switch {
	case errors.As(err, &he):
		return he
	case errors.As(err, &ce):
		return &hostapi.Error{Status: statusOf(ce.Code), Code: ce.Code, Message: err.Error()}
	case errors.As(err, &dr):
		status := http.StatusUnauthorized
		if dr.Known {
			status = http.StatusForbidden
		}
		return &hostapi.Error{Status: status, Code: mesh.CodeDenied, Message: dr.Message}
	}
	return &hostapi.Error{Status: http.StatusInternalServerError, Code: mesh.CodeFailed, Message: err.Error()}
}

func writeError(w http.ResponseWriter, err error) {
	e := asError(err)
	writeJSON(w, e.Status, e)
}

func writeJSON(w http.ResponseWriter, status int, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	w.Write(append(b, '\n')) // the client may be gone; there is nobody to tell
	return nil
}
