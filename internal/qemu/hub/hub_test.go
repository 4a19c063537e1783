package hub

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func plug(t *testing.T, p *Port) net.Conn {
	t.Helper()
	c, err := net.Dial("unix", p.Socket())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	// The port has the connection when a frame of ours has arrived.
	send(t, c, "hello")
	for p.Stats().In == 0 {
		time.Sleep(time.Millisecond)
	}
	return c
}

func send(t *testing.T, c net.Conn, frame string) {
	t.Helper()
	b := binary.BigEndian.AppendUint32(nil, uint32(len(frame)))
	if _, err := c.Write(append(b, frame...)); err != nil {
		t.Fatal(err)
	}
}

// receive returns the next frame, or "" after a while.
func receive(t *testing.T, c net.Conn) string {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
	var head [4]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return ""
	}
	b := make([]byte, binary.BigEndian.Uint32(head[:]))
	if _, err := io.ReadFull(c, b); err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestHub(t *testing.T) {
	defer goleak.VerifyNone(t)
	h := New(t.TempDir())
	defer h.Close()
	pa, err := h.Port("a")
	if err != nil {
		t.Fatal(err)
	}
	pb, err := h.Port("b")
	if err != nil {
		t.Fatal(err)
	}
	b := plug(t, pb)
	a := plug(t, pa)
	if got := receive(t, b); got != "hello" {
		t.Fatalf("b got %q", got)
	}
	var pcap bytes.Buffer
	if err := h.Record(&pcap); err != nil {
		t.Fatal(err)
	}
	send(t, a, "one")
	if got := receive(t, b); got != "one" {
		t.Errorf("b got %q, wanted one", got)
	}
	if got := receive(t, a); got != "" {
		t.Errorf("a got its own frame back: %q", got)
	}
	if err := h.Record(nil); err != nil || pcap.Len() != 24+16+3 {
		t.Errorf("recorded %d bytes, %v", pcap.Len(), err)
	}
	pb.Cut(true)
	send(t, a, "two")
	if got := receive(t, b); got != "" {
		t.Errorf("b got %q over a cut cable", got)
	}
	pb.Cut(false)
	pb.Delay(50 * time.Millisecond)
	start := time.Now()
	send(t, a, "three")
	if got := receive(t, b); got != "three" || time.Since(start) < 50*time.Millisecond {
		t.Errorf("b got %q after %v", got, time.Since(start))
	}
	pb.Delay(0)
	pb.Lose(1, 1)
	send(t, a, "four")
	if got := receive(t, b); got != "" {
		t.Errorf("b got %q, wanted it lost", got)
	}
	a.Close()
	b.Close()
}
