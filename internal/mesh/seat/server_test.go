package seat

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"kingpost/internal/mesh"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type echoParams struct {
	Text  string            `json:"text"`
	Times int               `json:"times,omitempty"`
	Env   map[string]string `json:"env,omitempty"`
	Inner struct {
		Deep string `json:"deep"`
	} `json:"inner,omitzero"`
}

func testServer(t testing.TB, opt Options) (*Server, *int) {
	t.Helper()
	opt.Seat, opt.Mesh = "echo", "home"
	s := New(opt)
	effects := new(int)
	Register(s, Verb[echoParams]{
		Name: "echo", Summary: "says it again", Roles: []mesh.Role{mesh.RoleOperator, mesh.RoleComponent}, Changes: true,
		Check: func(_ context.Context, r Request, p *echoParams) error {
			if p.Text == "" {
				return errors.New("text is missing")
			}
			if r.Caller.Role == mesh.RoleComponent && p.Text == "secret" {
				return Errorf(mesh.CodeDenied, "not for you")
			}
			return nil
		},
		Run: func(_ context.Context, _ Request, p *echoParams) (any, error) {
			*effects++
			switch p.Text {
			case "panic":
				panic("with a secret inside")
			case "bug":
				return []string{}[len(p.Text)], nil
			case "fail":
				return nil, errors.New("the disk is full")
			case "missing":
				return nil, Errorf(mesh.CodeNotFound, "nothing there")
			}
			return map[string]string{"text": p.Text}, nil
		},
	})
	Register(s, Verb[None]{
		Name: "slow", Summary: "waits", Roles: Everybody(), Timeout: 20 * time.Millisecond,
		Run: func(ctx context.Context, _ Request, _ *None) (any, error) { <-ctx.Done(); return nil, ctx.Err() },
	})
	return s, effects
}

func id(role mesh.Role) mesh.Identity { return mesh.Identity{Mesh: "home", Role: role, Name: "ann"} }

func TestCall(t *testing.T) {
	tests := []struct {
		name    string
		verb    string
		caller  mesh.Identity
		req     mesh.CallRequest
		code    string // "" for none
		message string // part of it
		effects int
	}{
		{"real", "echo", id(mesh.RoleOperator), mesh.CallRequest{Params: json.RawMessage(`{"text":"hi"}`)}, "", "", 1},
		{"probe", "echo", id(mesh.RoleOperator), mesh.CallRequest{Probe: true, Params: json.RawMessage(`{"text":"hi"}`)}, "", "", 0},
		{"probe without parameters", "echo", id(mesh.RoleOperator), mesh.CallRequest{Probe: true}, "", "", 0},
		{"probe with bad parameters", "echo", id(mesh.RoleOperator), mesh.CallRequest{Probe: true, Params: json.RawMessage(`{}`)}, mesh.CodeBadParams, "text is missing", 0},
		{"probe by the wrong role", "echo", id(mesh.RoleViewer), mesh.CallRequest{Probe: true}, mesh.CodeDenied, "roles that may", 0},
		{"real without parameters", "echo", id(mesh.RoleOperator), mesh.CallRequest{}, mesh.CodeBadParams, "text is missing", 0},
		{"unknown verb", "nope", id(mesh.RoleOperator), mesh.CallRequest{}, mesh.CodeUnknownVerb, `"nope"`, 0},
		{"wrong role", "echo", id(mesh.RoleNode), mesh.CallRequest{}, mesh.CodeDenied, "", 0},
		{"other mesh", "echo", mesh.Identity{Mesh: "away", Role: mesh.RoleOperator, Name: "ann"}, mesh.CallRequest{}, mesh.CodeDenied, "not of the mesh home", 0},
		{"denied by what is asked", "echo", id(mesh.RoleComponent), mesh.CallRequest{Params: json.RawMessage(`{"text":"secret"}`)}, mesh.CodeDenied, "not for you", 0},
		{"unknown field", "echo", id(mesh.RoleOperator), mesh.CallRequest{Params: json.RawMessage(`{"text":"a","colour":1}`)}, mesh.CodeBadParams, `unknown field "colour"`, 0},
		{"unknown inner field", "echo", id(mesh.RoleOperator), mesh.CallRequest{Params: json.RawMessage(`{"text":"a","inner":{"wide":1}}`)}, mesh.CodeBadParams, "wide", 0},
		{"field in another case", "echo", id(mesh.RoleOperator), mesh.CallRequest{Params: json.RawMessage(`{"Text":"a"}`)}, mesh.CodeBadParams, `unknown field "Text"`, 0},
		{"field twice", "echo", id(mesh.RoleOperator), mesh.CallRequest{Params: json.RawMessage(`{"text":"a","text":"b"}`)}, mesh.CodeBadParams, "twice", 0},
		{"inner field twice", "echo", id(mesh.RoleOperator), mesh.CallRequest{Params: json.RawMessage(`{"text":"a","env":{"A":"1","A":"2"}}`)}, mesh.CodeBadParams, "twice", 0},
		{"same name in two objects", "echo", id(mesh.RoleOperator), mesh.CallRequest{Params: json.RawMessage(`{"text":"a","env":{"text":"1"}}`)}, "", "", 1},
		{"wrong type", "echo", id(mesh.RoleOperator), mesh.CallRequest{Params: json.RawMessage(`{"text":"a","times":"b"}`)}, mesh.CodeBadParams, "times: a text stands where", 0},
		{"an array", "echo", id(mesh.RoleOperator), mesh.CallRequest{Params: json.RawMessage(`[1]`)}, mesh.CodeBadParams, "JSON object", 0},
		{"two objects", "echo", id(mesh.RoleOperator), mesh.CallRequest{Params: json.RawMessage(`{"text":"a"}{}`)}, mesh.CodeBadParams, "", 0},
		{"cut off", "echo", id(mesh.RoleOperator), mesh.CallRequest{Params: json.RawMessage(`{"text":"a"`)}, mesh.CodeBadParams, "", 0},
		{"failure", "echo", id(mesh.RoleOperator), mesh.CallRequest{Params: json.RawMessage(`{"text":"fail"}`)}, mesh.CodeFailed, "the disk is full", 1},
		{"typed failure", "echo", id(mesh.RoleOperator), mesh.CallRequest{Params: json.RawMessage(`{"text":"missing"}`)}, mesh.CodeNotFound, "nothing there", 1},
		{"panic", "echo", id(mesh.RoleOperator), mesh.CallRequest{Params: json.RawMessage(`{"text":"panic"}`)}, mesh.CodeFailed, "broke inside", 1},
		{"index out of range", "echo", id(mesh.RoleOperator), mesh.CallRequest{Params: json.RawMessage(`{"text":"bug"}`)}, mesh.CodeFailed, "broke inside", 1},
		{"too slow", "slow", id(mesh.RoleViewer), mesh.CallRequest{}, mesh.CodeUnavailable, "too long", 0},
		{"parameters for a verb without", "ping", id(mesh.RoleViewer), mesh.CallRequest{Params: json.RawMessage(`{"x":1}`)}, mesh.CodeBadParams, "", 0},
		{"empty parameters for a verb without", "ping", id(mesh.RoleNode), mesh.CallRequest{Params: json.RawMessage(`{}`)}, "", "", 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, effects := testServer(t, Options{})
			resp := s.Call(t.Context(), tt.caller, tt.verb, tt.req)
			switch {
			case tt.code == "" && resp.Error != nil:
				t.Fatalf("refused: %v", resp.Error)
			case tt.code != "" && (resp.Error == nil || resp.Error.Code != tt.code || !strings.Contains(resp.Error.Message, tt.message)):
				t.Fatalf("got %+v, want %s with %q", resp.Error, tt.code, tt.message)
			case resp.Error != nil && strings.Contains(resp.Error.Message, "with a secret"):
				t.Fatal("the message carries what the handler panicked with")
			case tt.code == "" && !tt.req.Probe && len(resp.Result) == 0:
				t.Fatal("neither a result nor an error")
			}
			if *effects != tt.effects {
				t.Fatalf("%d effects, want %d", *effects, tt.effects)
			}
		})
	}
}

func TestOpenIsAskedForEveryCall(t *testing.T) {
	s, effects := testServer(t, Options{Open: func(context.Context) error { return errors.New("the file is gone") }})
	for _, probe := range []bool{false, true} {
		resp := s.Call(t.Context(), id(mesh.RoleOperator), "echo", mesh.CallRequest{Probe: probe, Params: json.RawMessage(`{"text":"hi"}`)})
		if resp.Error == nil || !strings.Contains(resp.Error.Message, "the file is gone") {
			t.Fatalf("probe %v: %+v", probe, resp)
		}
	}
	if *effects != 0 {
		t.Fatal("a call ran without its state")
	}
}

func TestDescribeListsExactlyWhatIsRegistered(t *testing.T) {
	s, _ := testServer(t, Options{})
	resp := s.Call(t.Context(), id(mesh.RoleViewer), "describe", mesh.CallRequest{})
	var infos []mesh.VerbInfo
	if err := json.Unmarshal(resp.Result, &infos); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, i := range infos {
		names = append(names, i.Name)
	}
	if got := strings.Join(names, " "); got != "describe echo ping slow" {
		t.Fatalf("describe lists %q", got)
	}
	if got := strings.Join(infos[1].Params, " "); got != "text times env inner" {
		t.Fatalf("echo takes %q", got)
	}
}

// TestHTTP takes the way that the host takes, stop included.
func TestHTTP(t *testing.T) {
	s, _ := testServer(t, Options{MaxBody: 1000})
	path := filepath.Join(t.TempDir(), "seat.sock")
	old, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	old.SetUnlinkOnClose(false)
	old.Close() // a socket that a killed run left
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.ListenAndServe(ctx, path) }()
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}
	client := &http.Client{Transport: tr}
	for i := 0; ; i++ {
		c, err := net.Dial("unix", path)
		if err == nil {
			c.Close()
			break
		}
		if i == 500 {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Millisecond)
	}
	tests := []struct {
		name, method, path, caller, body string
		status                           int
		code                             string
	}{
		{"call", "POST", "/verbs/echo", "kingpost://home/operator/ann", `{"params":{"text":"hi"}}`, 200, ""},
		{"empty body", "POST", "/verbs/ping", "kingpost://home/operator/ann", ``, 200, ""},
		{"no caller", "POST", "/verbs/ping", "", ``, 200, mesh.CodeDenied},
		{"forged role", "POST", "/verbs/ping", "kingpost://home/king/ann", ``, 200, mesh.CodeDenied},
		{"unknown verb", "POST", "/verbs/sing", "kingpost://home/operator/ann", ``, 200, mesh.CodeUnknownVerb},
		{"GET", "GET", "/verbs/ping", "kingpost://home/operator/ann", ``, 405, mesh.CodeBadParams},
		{"elsewhere", "POST", "/verbs/a/b", "kingpost://home/operator/ann", ``, 404, mesh.CodeNotFound},
		{"unknown field of the call", "POST", "/verbs/ping", "kingpost://home/operator/ann", `{"prob":true}`, 200, mesh.CodeBadParams},
		{"brackets", "POST", "/verbs/ping", "kingpost://home/operator/ann", `{"params":` + strings.Repeat("[", 900), 200, mesh.CodeBadParams},
		{"no JSON", "POST", "/verbs/ping", "kingpost://home/operator/ann", `hello`, 200, mesh.CodeBadParams},
		{"too large", "POST", "/verbs/ping", "kingpost://home/operator/ann", `{"params":{"a":"` + strings.Repeat("x", 2000) + `"}}`, 413, mesh.CodeBadParams},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			req, err := http.NewRequest(tt.method, "http://seat"+tt.path, strings.NewReader(tt.body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set(mesh.HeaderCaller, tt.caller)
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			var cr mesh.CallResponse
			if err := json.Unmarshal(body, &cr); err != nil {
				t.Fatalf("%v in %q", err, body)
			}
			code := ""
			if cr.Error != nil {
				code = cr.Error.Code
			}
			if resp.StatusCode != tt.status || code != tt.code {
				t.Fatalf("got %d %q (%s), want %d %q", resp.StatusCode, code, body, tt.status, tt.code)
			}
		})
	}
	tr.CloseIdleConnections()
	cancel()
	if err := <-ended; err != nil {
		t.Fatalf("stop: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	for _, s := range []string{``, `null`, `{}`, `{"text":"a"}`, `{"text":"a","text":"b"}`, `{"env":{"A":"1"}}`, `[1]`, `{"inner":{"deep":"x"}}`, `{"text":1}`, `{"a":[{"b":1},{"b":2}]}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var p echoParams
		given, err := decode(b, &p)
		if err != nil || !given {
			return
		}
		// What is accepted means the same when it is written and read again.
		out, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		var q echoParams
		if _, err := decode(out, &q); err != nil {
			t.Fatalf("%q was accepted, its own form %q is not: %v", b, out, err)
		}
	})
}
