package ports

import (
	"net"
	"os"
	"strings"
	"testing"
)

func TestListeners(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0", ":0"} {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Logf("no %s here: %v", addr, err)
			continue
		}
		port := l.Addr().(*net.TCPAddr).Port
		got, err := Listeners("/proc", port)
		if err != nil || len(got) != 1 || got[0].PID != os.Getpid() || got[0].Name == "" || got[0].Port != port {
			t.Errorf("%s: %+v, %v", addr, got, err)
		}
		l.Close()
		if got, err := Listeners("/proc", port); err != nil || len(got) != 0 {
			t.Errorf("%s closed: %+v, %v", addr, got, err)
		}
	}
}

func TestReceivers(t *testing.T) {
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := c.LocalAddr().(*net.UDPAddr).Port
	got, err := Receivers("/proc", port)
	if err != nil || len(got) != 1 || got[0].PID != os.Getpid() || !strings.Contains(got[0].String(), got[0].Name) {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := Listeners("/proc", port); err != nil || len(got) != 0 {
		t.Errorf("as TCP: %+v, %v", got, err)
	}
	c.Close()
	if got, err := Receivers("/proc", port); err != nil || len(got) != 0 {
		t.Errorf("closed: %+v, %v", got, err)
	}
}

func FuzzListening(f *testing.F) {
	f.Add("  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"+
		"   0: 0100007F:1388 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12345 1 0 100 0 0 10 0\n", 5000)
	f.Fuzz(func(t *testing.T, s string, port int) {
		got, _ := listening(strings.NewReader(s), []int{port}, stateListen)
		for i := range got {
			if !strings.Contains(s, i) {
				t.Fatalf("inode %q is made up", i)
			}
		}
	})
}
