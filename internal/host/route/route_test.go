package route

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type builtin struct{ err error }

func (b builtin) Ping(context.Context) (any, error) {
	return map[string]string{"seat": "broker"}, b.err
}
func (b builtin) Summary() string { return "asks" }

func TestBuiltin(t *testing.T) {
	down := errors.New("connection refused")
	r := &Router{
		Socket:      func(string) (string, string, bool) { return "", "", false },
		Declaration: func() (mesh.Declaration, bool) { return mesh.Declaration{}, false },
		Status:      func() hostapi.Status { return hostapi.Status{} },
		Self:        func() mesh.Identity { return mesh.Identity{Mesh: "home", Role: mesh.RoleOperator, Name: "alpha"} },
		Builtins:    map[string]Builtin{"broker": builtin{}, "store": builtin{down}},
	}
	ctx := context.Background()
	var infos []mesh.VerbInfo
	if err := r.Call(ctx, "broker", "describe", nil, &infos); err != nil || len(infos) != 2 || infos[0].Name != "describe" || infos[1].Name != "ping" {
		t.Errorf("%+v, %v", infos, err)
	}
	for _, tc := range []struct {
		name, seat, verb string
		params           any
		probe            bool
		code             string // "" for an answer
	}{
		{"ping", "broker", "ping", nil, false, ""},
		{"probe of ping", "broker", "ping", nil, true, ""},
		{"probe of describe", "broker", "describe", struct{}{}, true, ""},
		{"parameters", "broker", "ping", map[string]int{"x": 1}, false, mesh.CodeBadParams},
		{"unknown verb", "broker", "publish", nil, false, mesh.CodeUnknownVerb},
		{"down", "store", "ping", nil, false, mesh.CodeUnavailable},
		{"down, probe", "store", "ping", nil, true, mesh.CodeUnavailable},
		{"nobody", "controller", "ping", nil, false, mesh.CodeUnavailable},
		{"bad name", "Broker", "ping", nil, false, mesh.CodeBadParams},
		{"params that are no JSON", "broker", "ping", func() {}, false, mesh.CodeBadParams},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var opts []mesh.CallOption
			if tc.probe {
				opts = append(opts, mesh.Probe())
			}
			err := r.Call(ctx, tc.seat, tc.verb, tc.params, nil, opts...)
			var ce *mesh.CallError
			if (err == nil) != (tc.code == "") || err != nil && (!errors.As(err, &ce) || ce.Code != tc.code) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// An answer that never ends is cut off, and says so.
func TestHugeAnswer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	srv := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(mesh.HeaderCaller) != "kingpost://home/component/host" {
			t.Errorf("called by %s", r.Header.Get(mesh.HeaderCaller))
		}
		io.WriteString(w, `{"result":"`)
		for {
			if _, err := io.WriteString(w, strings.Repeat("x", 1<<16)); err != nil {
				return
			}
		}
	})}}
	srv.Start()
	defer srv.Close()
	r := &Router{Socket: func(string) (string, string, bool) { return path, "m/a", true }}
	as := r.As(func() mesh.Identity { return mesh.Identity{Mesh: "home", Role: mesh.RoleComponent, Name: "host"} })
	var out json.RawMessage
	if err := as.Call(context.Background(), "big", "list", nil, &out); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("got %v", err)
	}
}
