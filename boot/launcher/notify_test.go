package launcher

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestParseMessage(t *testing.T) {
	hex := strings.Repeat("ab", 32)
	for name, tt := range map[string]struct {
		text string
		want Message
		err  bool
	}{
		"ready":             {"READY=1", Message{Ready: true}, false},
		"ready with status": {"STATUS=up\nREADY=1\n", Message{Ready: true, Status: "up"}, false},
		"not ready":         {"READY=0", Message{}, false},
		"unknown":           {"MAINPID=7\nFDSTORE=1", Message{}, false},
		"empty":             {"", Message{}, false},
		"successor": {"KINGPOST_SUCCESSOR=sha256:" + hex + " " + hex + " /var/a b", Message{
			Successor: &Host{Digest: "sha256:" + hex, SHA256: hex, Path: "/var/a b"}}, false},
		"successor without a path":   {"KINGPOST_SUCCESSOR=sha256:" + hex + " " + hex, Message{}, true},
		"successor with a bad path":  {"KINGPOST_SUCCESSOR=sha256:" + hex + " " + hex + " /var/../x", Message{}, true},
		"successor is the baked-in":  {"KINGPOST_SUCCESSOR=baked-in " + hex + " /x", Message{}, true},
		"longer than the socket has": {strings.Repeat("x", maxMessage+1), Message{}, true},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := ParseMessage([]byte(tt.text))
			if (err != nil) != tt.err {
				t.Fatalf("got %v", err)
			}
			if err != nil {
				return
			}
			if m.Ready != tt.want.Ready || m.Status != tt.want.Status || m.Stopping != tt.want.Stopping {
				t.Errorf("got %+v", m)
			}
			if (m.Successor == nil) != (tt.want.Successor == nil) || m.Successor != nil && *m.Successor != *tt.want.Successor {
				t.Errorf("successor is %+v", m.Successor)
			}
		})
	}
}

func FuzzParseMessage(f *testing.F) {
	f.Add([]byte("READY=1\nKINGPOST_SUCCESSOR=a b c"))
	f.Fuzz(func(t *testing.T, b []byte) { _, _ = ParseMessage(b) })
}

func TestNotifyKnowsTheSender(t *testing.T) {
	n, err := ListenNotify(filepath.Join(t.TempDir(), "notify.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(n.fd)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Sendto(fd, []byte("READY=1"), 0, &unix.SockaddrUnix{Name: n.Path}); err != nil {
		t.Fatal(err)
	}
	m, pid, err := n.Next()
	if err != nil || !m.Ready || pid != os.Getpid() {
		t.Errorf("got %+v from %d, %v", m, pid, err)
	}
}

func TestHeldFIFOKeepsWhatIsInIt(t *testing.T) {
	dir := t.TempDir()
	p := filepath.Join(dir, "controller.server.fifo")
	if err := unix.Mkfifo(p, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "no-fifo"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	// A workload, while the host that read it is gone.
	w, err := unix.Open(p, unix.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Write(w, []byte("last words")); err != nil {
		t.Fatal(err)
	}
	n, release := HoldFIFOs(dir)
	if n != 1 {
		t.Errorf("%d FIFOs are held", n)
	}
	unix.Close(w) // it ends
	r, err := unix.Open(p, unix.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(r)
	release()
	buf := make([]byte, 100)
	got, err := unix.Read(r, buf)
	if err != nil || string(buf[:got]) != "last words" {
		t.Errorf("read %q, %v", buf[:max(got, 0)], err)
	}
}
