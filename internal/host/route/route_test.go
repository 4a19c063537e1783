package route

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

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
		Holder:      func(string) (string, bool) { return "", false },
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

// A holder may be anybody's program: whatever it answers, the caller gets an answer in time and the host
// keeps its memory.
func TestHolder(t *testing.T) {
	endless := func(w io.Writer, start string) {
		io.WriteString(w, start)
		for {
			if _, err := io.WriteString(w, strings.Repeat("x", 1<<16)); err != nil {
				return
			}
		}
	}
	for _, tc := range []struct {
		name  string
		serve func(c net.Conn, r *http.Request)
		want  string // part of the error, "" for none
	}{
		{"answers", func(c net.Conn, r *http.Request) {
			if as := r.Header.Get(mesh.HeaderCaller); as != "kingpost://home/component/host" || r.URL.Path != "/verbs/list" {
				t.Errorf("%s is called by %s", r.URL, as)
			}
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n{\"result\":[]}")
		}, ""},
		{"never answers", func(c net.Conn, _ *http.Request) { io.Copy(io.Discard, c) }, "deadline exceeded"},
		{"hangs up", func(net.Conn, *http.Request) {}, "EOF"},
		{"answers half", func(c net.Conn, _ *http.Request) {
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n{\"res")
		}, "unexpected EOF"},
		{"drips", func(c net.Conn, _ *http.Request) {
			io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
			for {
				if _, err := io.WriteString(c, " "); err != nil {
					return
				}
				time.Sleep(time.Millisecond)
			}
		}, "deadline exceeded"},
		{"speaks something else", func(c net.Conn, _ *http.Request) { io.WriteString(c, "SSH-2.0-OpenSSH_9.2\r\n") }, "malformed HTTP"},
		{"garbage for JSON", func(c net.Conn, _ *http.Request) { io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n<html>") }, "no call response"},
		{"refuses without saying why", func(c net.Conn, _ *http.Request) { io.WriteString(c, "HTTP/1.1 500 Oops\r\n\r\n{}") }, "500"},
		{"leads elsewhere", func(c net.Conn, _ *http.Request) {
			io.WriteString(c, "HTTP/1.1 307 Go\r\nLocation: http://seat/v1/power\r\n\r\n{}")
		}, "307"},
		{"never ends", func(c net.Conn, _ *http.Request) { endless(c, "HTTP/1.1 200 OK\r\n\r\n{\"result\":\"") }, "larger than"},
		{"headers never end", func(c net.Conn, _ *http.Request) { endless(c, "HTTP/1.1 200 OK\r\nX: ") }, "exceeded 65536 bytes"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			var holder sync.WaitGroup
			defer holder.Wait()
			holder.Go(func() {
				c, err := l.Accept()
				if err != nil {
					t.Error(err)
					return
				}
				defer c.Close()
				r, err := http.ReadRequest(bufio.NewReader(c))
				if err != nil {
					t.Error(err)
					return
				}
				tc.serve(c, r)
			})
			r := &Router{
				Holder: func(string) (string, bool) { return "m/a", true },
				Dial: func(ctx context.Context, _ string) (net.Conn, error) {
					return new(net.Dialer).DialContext(ctx, "unix", l.Addr().String())
				},
			}
			as := r.As(func() mesh.Identity { return mesh.Identity{Mesh: "home", Role: mesh.RoleComponent, Name: "host"} })
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			var out json.RawMessage
			err = as.Call(ctx, "big", "list", nil, &out)
			var ce *mesh.CallError
			if (err == nil) != (tc.want == "") || err != nil && (!errors.As(err, &ce) || ce.Code != mesh.CodeUnavailable || !strings.Contains(ce.Message, tc.want)) {
				t.Errorf("got %v, want %q in it", err, tc.want)
			}
		})
	}
}

// What every holder answers at once has a bound of its own, even for a caller who would wait.
func TestPrompt(t *testing.T) {
	for _, tc := range []struct {
		verb  string
		probe bool
		want  time.Duration
	}{{"ping", false, promptTime}, {"describe", false, promptTime}, {"build", true, promptTime}, {"build", false, maxTime}} {
		r := &Router{
			Holder: func(string) (string, bool) { return "m/a", true },
			Dial: func(ctx context.Context, _ string) (net.Conn, error) {
				return nil, errors.New("refused")
			},
		}
		if got := limit(tc.verb, tc.probe); got != tc.want {
			t.Errorf("%s, probe %t: %s", tc.verb, tc.probe, got)
		}
		if _, err := r.Route(t.Context(), mesh.Identity{}, "builder", tc.verb, mesh.CallRequest{Probe: tc.probe}); err == nil || !strings.Contains(err.Error(), "m/a: refused") {
			t.Errorf("got %v", err)
		}
	}
}
