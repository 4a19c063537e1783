package console

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

type sinkBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *sinkBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}
func (s *sinkBuffer) Close() error { return nil }

const nodeJSON = `{"name":"alpha","id":"00","key":"SHA256:abc","release":{"name":"vm","version":"0.1.0"},"boot":{"slot":"a"},
 "state":"raising","mesh":"home","addresses":["10.0.2.15/24","fe80::1"],"warnings":["the clock was raised\nfrom 1970"]}`

const raiseJSON = `{"state":"running","step":3,"steps":[{"number":1,"name":"preflight","state":"done"},{"number":2,"name":"identity","state":"done"},
 {"number":3,"name":"store","state":"running","reason":"it does not answer yet"}]}`

const statusJSON = `{"resources":[{"key":"vault/server","module":"vault","state":"held","reason":"exit status 1"},
 {"key":"vault/data","module":"vault","state":"present"},{"key":"broker/server","module":"broker","state":"healthy"}]}`

func TestLines(t *testing.T) {
	got, _, state, err := answers{[]byte(nodeJSON), []byte(raiseJSON), []byte(statusJSON)}.view()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"node alpha key SHA256:abc",
		"release vm 0.1.0 slot a",
		"api https://10.0.2.15:7443",
		"api https://[fe80::1]:7443",
		"mesh home",
		"state raising",
		"raise step 3/3 store running: it does not answer yet",
		"warning the clock was raised\nfrom 1970",
		"held vault/server: exit status 1",
	}
	if d := cmp.Diff(want, got); d != "" || state != "raising" {
		t.Errorf("%s state %s", d, state)
	}
}

func TestSerialGetsOnlyWhatIsNew(t *testing.T) {
	defer goleak.VerifyNone(t)
	c := &Console{}
	serial, screen := &sinkBuffer{}, &sinkBuffer{}
	c.Add(serial, false)
	c.Add(screen, true)
	c.Show([]string{"node alpha key K", "state claimed"})
	c.Show([]string{"node alpha key K", "state claimed"})
	c.Show([]string{"node alpha key K", "state raised"})
	c.Line("error %s", "two\nlines \x1b[2J")
	c.Flush(nil)
	want := "kingpost: node alpha key K\nkingpost: state claimed\nkingpost: state raised\nkingpost: error two lines [2J\n"
	if d := cmp.Diff(want, serial.b.String()); d != "" {
		t.Error(d)
	}
	if s := screen.b.String(); strings.Count(s, "\x1b[H") != 3 || strings.Contains(s, "\x1b[2J") || !strings.Contains(s, "error two lines [2J") {
		t.Errorf("the screen got %q", s)
	}
}

type stuck struct{ c chan struct{} }

func (s stuck) Write(p []byte) (int, error) { <-s.c; return len(p), nil }
func (s stuck) Close() error                { return nil }

func TestStuckConsoleBlocksNobody(t *testing.T) {
	defer goleak.VerifyNone(t)
	c := &Console{}
	s := stuck{make(chan struct{})}
	c.Add(s, false)
	done := make(chan struct{})
	go func() {
		for i := range 10 * queued {
			c.Line("%d", i)
		}
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("a stuck console blocks")
	}
	close(s.c)
	c.Flush(nil)
}

func TestIsScreen(t *testing.T) {
	for name, want := range map[string]bool{"tty0": true, "tty12": true, "ttyS0": false, "ttyAMA0": false, "hvc0": false, "tty": false} {
		if isScreen(name) != want {
			t.Errorf("isScreen(%s) = %t", name, !want)
		}
	}
}

func TestGetterAgainstARealServer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "host.sock")
	get := Host(path, 5*time.Second)
	if _, err := get("/v1/node"); err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("without a host: %v", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	bodies := make(chan string, 1)
	srv := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/node":
			// Long enough that a server would like to answer in chunks.
			fmt.Fprint(w, strings.Replace(nodeJSON, "alpha", strings.Repeat("a", 100_000), 1))
		case "/v1/power":
			var b bytes.Buffer
			_, _ = b.ReadFrom(r.Body)
			bodies <- r.Method + " " + b.String()
		default:
			http.Error(w, "no", http.StatusNotFound)
		}
	})}}
	srv.Start()
	defer srv.Close()
	b, err := get("/v1/node")
	if err != nil || !bytes.Contains(b, bytes.Repeat([]byte("a"), 100_000)) {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	if _, err := get("/v1/raise"); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("got %v", err)
	}
	if err := Post(path, "/v1/power", `{"action":"reboot"}`, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	if got := <-bodies; got != `POST {"action":"reboot"}` {
		t.Errorf("posted %q", got)
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add([]byte("HTTP/1.0 200 OK\r\nA: b\r\n\r\n" + nodeJSON))
	f.Fuzz(func(t *testing.T, b []byte) {
		body, err := parseAnswer("/v1/node", b)
		if err != nil {
			return
		}
		out, screen, _, err := answers{body, body, body}.view()
		if err != nil {
			return
		}
		for _, l := range out {
			if strings.ContainsAny(clean(l), "\n\r\x1b") {
				t.Errorf("%q moves the cursor", l)
			}
		}
		for _, size := range [][2]int{{80, 25}, {160, 50}, {1, 1}} {
			checkScreen(t, screen.draw(cleaned(out), size[0], size[1]), max(size[0], leastCols), max(size[1], leastRows))
		}
	})
}
