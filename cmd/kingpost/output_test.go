package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"kingpost/internal/mesh/hostapi"
)

func TestFit(t *testing.T) {
	tests := map[string]struct {
		widths []int
		width  int
		want   []int
	}{
		"no terminal":  {[]int{100, 100}, 0, []int{100, 100}},
		"fits":         {[]int{10, 10}, 30, []int{10, 10}},
		"widest first": {[]int{5, 60, 20}, 60, []int{5, 31, 20}},
		"never below":  {[]int{9, 9, 9}, 10, []int{8, 8, 8}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			fit(test.widths, test.width)
			if diff := cmp.Diff(test.want, test.widths); diff != "" {
				t.Error(diff)
			}
		})
	}
	if got := cut("überlang", 5); got != "über…" {
		t.Errorf("cut: %q", got)
	}
}

func TestTableDropsEmptyColumns(t *testing.T) {
	tab := newTable("A", "B", "C")
	tab.add("1", "", "x")
	tab.add("22", "", "")
	var b strings.Builder
	if err := tab.write(&b); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff("A   C\n1   x\n22\n", b.String()); diff != "" {
		t.Error(diff)
	}
}

func TestRender(t *testing.T) {
	tests := map[string]struct{ in, want string }{
		"nothing": {"", ""},
		"null":    {"null", ""},
		"text":    {`"a\nb"`, "a b\n"},
		"number":  {`12345678901234567890`, "12345678901234567890\n"},
		"object":  {`{"b":1,"long":{"x":[1,2],"y":null},"ok":true}`, "b     1\nlong  x=1, 2 y=\nok    yes\n"},
		"tables":  {`{"n":1,"list":[{"a":1},{"b":"x"}],"none":[]}`, "n     1\nnone  \n\nLIST\nA  B\n1\n   x\n"},
		"list":    {`[1,[2,3]]`, "1\n2, 3\n"},
		"a list in a cell": {`[{"a":["` + strings.Repeat("x", 80) + `"]}]`,
			"A\n" + strings.Repeat("x", 59) + "…\n\nA cell that ends in … was cut; -o json shows it whole.\n"},
		"a table in a row": {`[{"n":"x","in":{"a":1,"t":[{"b":2}]}},{"n":"y","in":null}]`,
			"N\nx\ny\n\nIN of x\n  a  1\n\n  T\n  B\n  2\n"},
		"nothing but tables": {`[{"t":[{"b":2}]}]`, "\nT of 1\n  B\n  2\n"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var b strings.Builder
			if err := render(&b, json.RawMessage(test.in)); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, b.String()); diff != "" {
				t.Error(diff)
			}
		})
	}
	if err := render(io.Discard, json.RawMessage(strings.Repeat("[", 1<<20))); err == nil {
		t.Error("endless nesting was rendered")
	}
}

// TestRenderStatus has what the controller of a small mesh answers read well off a terminal.
func TestRenderStatus(t *testing.T) {
	raw, err := os.ReadFile("testdata/status.json")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := render(&b, raw); err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("testdata/status.txt")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), b.String()); diff != "" {
		t.Error(diff)
	}
}

func FuzzRender(f *testing.F) {
	f.Add([]byte(`{"a":[{"b":1},2,{"c":null}]}`))
	f.Fuzz(func(_ *testing.T, b []byte) { _ = render(io.Discard, b) })
}

func TestWords(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 59 * time.Second: "59s", 61 * time.Second: "1m1s", 25*time.Hour + time.Minute: "1d1h", 2*time.Hour + 5*time.Minute: "2h5m",
	} {
		if got := age(d); got != want {
			t.Errorf("age %v: %s, want %s", d, got, want)
		}
	}
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 5 << 30: "5.0 GiB", 1 << 50: "1024.0 TiB"} {
		if got := size(n); got != want {
			t.Errorf("size %d: %s, want %s", n, got, want)
		}
	}
	for in, want := range map[string]string{
		"10.0.0.1": "10.0.0.1:7443", "alpha": "alpha:7443", "10.0.0.1:1": "10.0.0.1:1", "fd00::1": "[fd00::1]:7443", "[fd00::1]:9": "[fd00::1]:9",
	} {
		if got, err := address(in); err != nil || got != want {
			t.Errorf("address %s: %s, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "a/b", "a:0", "a:x", "user@host", "a:b:c"} {
		if got, err := address(in); err == nil {
			t.Errorf("address %q: %s", in, got)
		}
	}
}

func TestNodeHost(t *testing.T) {
	n := &hostapi.Node{Addresses: []string{"10.0.2.15/24"}}
	for addr, want := range map[string]string{
		"192.168.1.2:7443": "192.168.1.2", "alpha:7443": "alpha", "127.0.0.1:4000": "10.0.2.15", "localhost:4000": "10.0.2.15",
	} {
		if got := nodeHost(addr, n); got != want {
			t.Errorf("%s: %s, want %s", addr, got, want)
		}
	}
}

// TestBar shows a raise on a terminal: lines above, one bar below, and it ends.
func TestBar(t *testing.T) {
	master, slave, err := pty()
	if err != nil {
		t.Skip(err)
	}
	defer master.Close()
	var screen screen
	over := make(chan struct{})
	go func() {
		defer close(over)
		_, _ = io.Copy(&screen, master) // ends with EIO when the last slave is closed
	}()
	if !isTerminal(slave) {
		t.Fatal("the pseudo terminal is none")
	}
	p := newProgress(slave)
	st := hostapi.RaiseStatus{State: "running", Step: 2, Steps: []hostapi.RaiseStep{
		{Number: 1, Name: "preflight", State: "done", Seconds: 2, Warnings: []string{"clock: odd"}},
		{Number: 2, Name: "identity", State: "running", Reason: "keys are made"}}}
	p.show(st)
	p.show(st)
	p.note("a note")
	for range 300 { // it is drawn every so often
		if strings.Contains(screen.String(), "keys are made") {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	st.State, st.Steps[1].State = "done", "done"
	p.show(st)
	p.close()
	p.close()
	slave.Close()
	<-over
	got := screen.String()
	for _, want := range []string{"[ 1/2] preflight: warning: clock: odd", "preflight: done in 2.0 s", "identity: keys are made", "a note", "identity: done"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in %q", want, got)
		}
	}
	if n := strings.Count(got, "warning"); n != 1 {
		t.Errorf("%d warnings", n)
	}
}

// screen is what a terminal was told.
type screen struct {
	mu sync.Mutex
	b  strings.Builder
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func pty() (master, slave *os.File, err error) {
	master, err = os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		return nil, nil, err
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 120})
	}
	if err != nil {
		master.Close()
	}
	return master, slave, err
}
