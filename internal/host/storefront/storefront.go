// Package storefront stands before the artifact store, which knows no roles: it decides who may pull and
// who may push, and passes the rest through to the store's socket as it is.
//
// It never reads a blob, never changes one, and never authenticates: the caller has been told apart by
// package door. Start with Front.ServeHTTP.
package storefront

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"path"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"kingpost/internal/host/door"
	"kingpost/internal/mesh"
)

// MaxBody bounds one request to the store, in bytes.
const MaxBody = 16 << 30

// Front is the store's front.
type Front struct {
	door *door.Door
	// caller finds who made a request.
	caller func(*http.Request) door.Caller
	log    logrus.FieldLogger
	proxy  *httputil.ReverseProxy
}

// Config is what a Front is made of.
type Config struct {
	Door   *door.Door
	Caller func(*http.Request) door.Caller
	// Dial connects to the running store.
	Dial func(context.Context) (net.Conn, error)
	Log  logrus.FieldLogger
}

// New makes a Front.
func New(c Config) *Front {
	f := &Front{door: c.Door, caller: c.Caller, log: c.Log}
	f.proxy = &httputil.ReverseProxy{
		Rewrite: func(pr *httputil.ProxyRequest) {
			pr.Out.URL.Scheme, pr.Out.URL.Host = "http", "store"
			// The store makes absolute locations from these, so the client comes back the way that it came.
			pr.Out.Host = pr.In.Host
			pr.SetXForwarded()
			pr.Out.Header.Del("Authorization")
		},
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
				defer cancel()
				return c.Dial(ctx)
			},
			DisableCompression:    true,
			MaxIdleConnsPerHost:   2,
			IdleConnTimeout:       10 * time.Second,
			ResponseHeaderTimeout: 5 * time.Minute,
		},
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0), // ErrorHandler says it
		ErrorHandler:  f.failed,
	}
	return f
}

// Rules: whose push, whose pull.
var (
	everybody = []mesh.Role{mesh.RoleOperator, mesh.RoleViewer, mesh.RoleNode, mesh.RoleComponent}
)

func pull() door.Rule { return door.Rule{Claim: true, Roles: everybody} }

func push() door.Rule {
	return door.Rule{
		Claim:   true,
		Roles:   []mesh.Role{mesh.RoleOperator, mesh.RoleNode, mesh.RoleComponent},
		Modules: []string{mesh.SeatController, mesh.SeatBuilder, mesh.SeatCatalogue},
	}
}

// ServeHTTP lets a caller through by role, and writes one line for each request that changes something.
func (f *Front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := f.caller(r)
	rule, writes := pull(), true
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		writes = false
	case http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
		rule = push()
	default:
		refuse(w, http.StatusMethodNotAllowed, "UNSUPPORTED", "the store knows no method "+r.Method)
		return
	}
	// What the rule is for must be what the store will see.
	if p := r.URL.Path; !strings.HasPrefix(p, "/v2/") || path.Clean(p) != strings.TrimSuffix(p, "/") {
		refuse(w, http.StatusNotFound, "NAME_INVALID", "the path is not below /v2/, or not in its plain form")
		return
	}
	if err := f.door.Check(c, rule); err != nil {
		var refusal *door.Refusal
		status, code := http.StatusForbidden, "DENIED"
		if errors.As(err, &refusal) && !refusal.Known {
			status, code = http.StatusUnauthorized, "UNAUTHORIZED"
		}
		if writes {
			f.audit(c, r).WithField("status", status).Warn("store: write refused")
		}
		refuse(w, status, code, err.Error())
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, MaxBody)
	if !writes {
		f.proxy.ServeHTTP(w, r)
		return
	}
	sw := &statusWriter{ResponseWriter: w}
	f.proxy.ServeHTTP(sw, r)
	f.audit(c, r).WithField("status", sw.status).Info("store: write")
}

func (f *Front) audit(c door.Caller, r *http.Request) *logrus.Entry {
	return f.log.WithFields(logrus.Fields{"caller": c.String(), "method": r.Method, "path": r.URL.Path, "remote": r.RemoteAddr})
}

func (f *Front) failed(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, context.Canceled) {
		return // the client is gone
	}
	refuse(w, http.StatusServiceUnavailable, "UNAVAILABLE", "the artifact store does not answer: "+err.Error())
}

// refuse answers in the error form of the OCI distribution specification.
func refuse(w http.ResponseWriter, status int, code, message string) {
	type item struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Docker-Distribution-API-Version", "registry/2.0")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(map[string][]item{"errors": {{code, message}}}) // the client may be gone
}

// statusWriter remembers the status for the audit line.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (s *statusWriter) WriteHeader(code int) {
	s.status = code
	s.ResponseWriter.WriteHeader(code)
}

// Unwrap lets http.ResponseController reach the connection.
func (s *statusWriter) Unwrap() http.ResponseWriter { return s.ResponseWriter }
