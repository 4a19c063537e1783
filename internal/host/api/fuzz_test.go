package api

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"kingpost/internal/host/door"
	"kingpost/internal/host/route"
	"kingpost/internal/host/supervise"
	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
)

// Whatever somebody with every right sends, the answer is JSON with a status that fits it.
func FuzzRequest(f *testing.F) {
	for _, e := range endpoints() {
		p := strings.NewReplacer("{module}", "m", "{id}", "a", "{seat}", "controller", "{verb}", "ping").Replace(e.pattern)
		f.Add(e.method, p, "", []byte(`{}`))
	}
	f.Add("PUT", "/v1/declaration", "", []byte(`{"mesh":"home","node":"alpha","epoch":1,"revision":1,"resources":[{"module":"m","id":"v","type":"volume"}]}`))
	f.Add("GET", "/v1/logs/m", "since=1s&bytes=5&follow=0", []byte{})
	f.Add("POST", "/v1/raise", "", []byte(`{"mesh":"home","manifests":[{"module":"m","resources":[]}]}`))
	f.Add("POST", "/v1/call/controller/ping", "", []byte(`{"probe":true,"params":{"a":[1,2]}}`))
	log := logrus.New()
	log.SetOutput(io.Discard)
	super := &fakeSupervisor{sockets: map[string]string{}, log: func(context.Context, string, supervise.LogOptions) (io.ReadCloser, error) {
		return io.NopCloser(strings.NewReader("line\n")), nil
	}}
	d := &door.Door{Mesh: func() (string, string) { return "home", "alpha" }, Now: time.Now}
	root := door.Caller{Identity: mesh.Identity{Mesh: "home", Role: mesh.RoleOperator, Name: "alpha"}, Local: true}
	raises := &fakeRaises{status: hostapi.RaiseStatus{State: "done"}, changed: make(chan struct{})}
	s := New(Config{
		Door: d, Supervisor: super, Raises: func() Raises { return raises },
		Router: &route.Router{Holder: super.SeatHolder, Dial: super.DialSeat, Declaration: super.Declaration, Status: super.Status, Self: func() mesh.Identity { return root.Identity }},
		Store:  http.NotFoundHandler(), Node: func() hostapi.Node { return hostapi.Node{} },
		Disks: func(context.Context) (hostapi.Disks, error) { return disksAnswer(), nil },
		Power: func(string) error { return nil }, Reset: func(hostapi.ResetRequest) error { return nil }, Log: log, Now: time.Now,
	})
	f.Fuzz(func(t *testing.T, method, path, query string, body []byte) {
		if !strings.HasPrefix(path, "/v1/") {
			path = "/v1/" + path
		}
		r := httptest.NewRequest("GET", "/", strings.NewReader(string(body)))
		r.Method, r.URL.Path, r.URL.RawQuery = method, path, query
		r = r.WithContext(context.WithValue(r.Context(), callerKey{}, func(*http.Request) door.Caller { return root }))
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, r)
		switch {
		case w.Code/100 == 3: // the path is cleaned
		case w.Code/100 == 2 && !strings.HasPrefix(path, "/v1/logs/"):
			dec := json.NewDecoder(w.Body)
			for {
				var v any
				if err := dec.Decode(&v); err == io.EOF {
					break
				} else if err != nil {
					t.Fatalf("%s %s: %d with %v", method, path, w.Code, err)
				}
			}
		case w.Code/100 != 2:
			var e hostapi.Error
			if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil || e.Status != w.Code || e.Code == "" || e.Message == "" {
				t.Fatalf("%s %s: %d %s", method, path, w.Code, w.Body)
			}
		}
	})
}
