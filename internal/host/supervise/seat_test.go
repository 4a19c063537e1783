package supervise

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
)

// A holder that puts a link where its socket should be does not make the host, which may go anywhere,
// talk to a socket that is not the holder's.
func TestPlantedLink(t *testing.T) {
	n := newNode(t)
	host, err := net.Listen("unix", n.cfg.HostSocket)
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	go func() {
		for {
			c, err := host.Accept()
			if err != nil {
				return
			}
			t.Error("the host's own socket was reached")
			c.Close()
		}
	}()
	if c, err := net.Dial("unix", filepath.Join(n.s.seatDir("m.a"), seatSocket)); err == nil {
		c.Close()
		t.Fatal("a socket is there before its holder")
	}
	d := n.process("a", "serve")
	d.Seats = []string{"demo"}
	n.declare(d)
	n.settled()
	n.said("m/a", "serving")
	dial := func() error {
		c, err := n.s.DialSeat(t.Context(), "demo")
		if err == nil {
			c.Close()
		}
		return err
	}
	for i := 0; dial() != nil; i++ {
		if i == 100 {
			t.Fatal(dial())
		}
		time.Sleep(20 * time.Millisecond)
	}
	dir := n.s.seatDir("m.a")
	sock := filepath.Join(dir, seatSocket)
	if err := os.Rename(sock, filepath.Join(dir, "own.sock")); err != nil {
		t.Fatal(err)
	}
	rel, err := filepath.Rel(dir, n.cfg.HostSocket)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		make func() error
		ok   bool
	}{
		{"nothing", func() error { return nil }, false},
		{"link to the host's socket", func() error { return os.Symlink(n.cfg.HostSocket, sock) }, false},
		{"link out of the folder", func() error { return os.Symlink(rel, sock) }, false},
		{"link by way of /proc", func() error { return os.Symlink("/proc/self/root"+n.cfg.HostSocket, sock) }, false},
		{"link to itself", func() error { return os.Symlink(seatSocket, sock) }, false},
		{"file", func() error { return os.WriteFile(sock, nil, 0o666) }, false},
		{"pipe that nobody writes", func() error { return unix.Mkfifo(sock, 0o666) }, false},
		{"folder", func() error { return os.Mkdir(sock, 0o777) }, false},
		{"link inside the folder", func() error { return os.Symlink("own.sock", sock) }, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := tc.make(); err != nil {
				t.Fatal(err)
			}
			defer os.Remove(sock)
			if err := dial(); (err == nil) != tc.ok {
				t.Errorf("got %v", err)
			}
		})
	}
	if key, ok := n.s.SeatHolder("demo"); !ok || key != "m/a" {
		t.Errorf("held by %q", key)
	}
	if _, ok := n.s.SeatHolder("other"); ok {
		t.Error("a seat that nobody holds has a holder")
	}
}

// The holder of a seat without verbs is healthy when the host's probe says so, and its socket is left alone.
func TestProbe(t *testing.T) {
	n := newNode(t)
	n.stop()
	var mu sync.Mutex
	down := errors.New("no reply to what was published")
	n.cfg.Probes = map[string]func(context.Context) error{mesh.SeatBroker: func(context.Context) error {
		mu.Lock()
		defer mu.Unlock()
		return down
	}}
	n.start()
	d := seated(n.process("a", "stubborn", "child")) // it serves nothing
	d.Seats, d.Volumes, d.Health.Start = []string{mesh.SeatBroker}, nil, mesh.Duration(20*time.Second)
	n.declare(d)
	n.until("m/a", "asked", func(r hostapi.ResourceStatus) bool { return strings.Contains(r.Reason, down.Error()) })
	mu.Lock()
	down = nil
	mu.Unlock()
	n.state("m/a", "healthy")
	n.settled()
}
