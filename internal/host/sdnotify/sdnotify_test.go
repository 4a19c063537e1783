package sdnotify

import (
	"net"
	"path/filepath"
	"testing"
)

func TestSend(t *testing.T) {
	path := filepath.Join(t.TempDir(), "n")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := (Notifier{path}).Send(Ready, Status("a\nb")); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 100)
	n, err := c.Read(buf)
	if err != nil || string(buf[:n]) != "READY=1\nSTATUS=a b" {
		t.Errorf("%q, %v", buf[:n], err)
	}
	if err := (Notifier{}).Send(Ready); err != nil {
		t.Error(err)
	}
	if err := (Notifier{path + "x"}).Send(Ready); err == nil {
		t.Error("a launcher that is not there was told")
	}
}
