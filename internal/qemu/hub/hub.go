// Package hub is an Ethernet hub between virtual machines, in this process: every frame that comes in at one port goes
// out at all others. Its ports are unix sockets that QEMU's stream netdev connects to, so it needs no privilege and
// reaches no real network.
//
// A port can be cut, slowed down and made to lose frames while machines run, and everything that passes can be recorded
// for tcpdump and wireshark. It knows nothing of what is in a frame. Start with New and Hub.Port.
package hub

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"
)

const (
	// maxFrame bounds a frame, in bytes: virtio-net with segmentation offload hands over up to 64 KiB and a header.
	maxFrame = 70 << 10
	// maxQueue bounds how many frames wait to leave at a port; what comes then is lost, as on a real wire.
	maxQueue = 4096
)

// Hub connects its ports.
type Hub struct {
	dir string

	mu    sync.Mutex
	ports []*Port
	pcap  io.Writer
	wg    sync.WaitGroup
}

// New makes a hub whose sockets live in dir.
func New(dir string) *Hub { return &Hub{dir: dir} }

// Port is one socket of a hub. Counts are of frames.
type Port struct {
	name, socket string
	hub          *Hub
	listener     net.Listener
	out          chan queued
	closed       chan struct{}

	mu    sync.Mutex
	conn  net.Conn
	cut   bool
	delay time.Duration
	loss  float64
	rnd   *rand.Rand
	stats Stats
}

// Stats counts frames at a port.
type Stats struct {
	In, Out int // came from the machine, went to it
	Lost    int // by a cut, by Lose, or because too many waited
}

type queued struct {
	frame []byte
	due   time.Time
}

// Port makes a new port; a machine's network card connects to its Socket. One machine at a time, which may
// disconnect and connect again.
func (h *Hub) Port(name string) (*Port, error) {
	p := &Port{name: name, socket: filepath.Join(h.dir, name+".net"), hub: h, out: make(chan queued, maxQueue), closed: make(chan struct{})}
	var err error
	if p.listener, err = net.Listen("unix", p.socket); err != nil {
		return nil, fmt.Errorf("hub port %s: %w", name, err)
	}
	h.mu.Lock()
	h.ports = append(h.ports, p)
	h.mu.Unlock()
	h.wg.Add(2)
	go p.accept()
	go p.send()
	return p, nil
}

// Socket is the path of the unix socket.
func (p *Port) Socket() string { return p.socket }

// Cut unplugs the port's cable, or plugs it in again.
func (p *Port) Cut(cut bool) { p.set(func() { p.cut = cut }) }

// Delay holds every frame to the machine back for d.
func (p *Port) Delay(d time.Duration) { p.set(func() { p.delay = d }) }

// Lose drops a share of the frames to the machine, from 0 to 1; seed decides which.
func (p *Port) Lose(share float64, seed uint64) {
	p.set(func() { p.loss, p.rnd = share, rand.New(rand.NewPCG(seed, 0)) })
}

// Stats counts so far.
func (p *Port) Stats() (s Stats) {
	p.set(func() { s = p.stats })
	return s
}

func (p *Port) set(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

// Record writes every frame from now on to w, as a pcap file (pcap-savefile(5), Ethernet). Nil ends it. w is not closed.
func (h *Hub) Record(w io.Writer) error {
	if w != nil {
		head := make([]byte, 24)
		binary.LittleEndian.PutUint32(head, 0xa1b2c3d4)
		binary.LittleEndian.PutUint16(head[4:], 2)
		binary.LittleEndian.PutUint16(head[6:], 4)
		binary.LittleEndian.PutUint32(head[16:], maxFrame)
		binary.LittleEndian.PutUint32(head[20:], 1)
		if _, err := w.Write(head); err != nil {
			return fmt.Errorf("start recording frames: %w", err)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pcap = w
	return nil
}

// Close ends all ports and waits for them.
func (h *Hub) Close() error {
	h.mu.Lock()
	ports := h.ports
	h.ports = nil
	h.mu.Unlock()
	for _, p := range ports {
		close(p.closed)
		p.listener.Close()
		p.set(func() {
			if p.conn != nil {
				p.conn.Close()
			}
		})
	}
	h.wg.Wait()
	return nil
}

func (p *Port) accept() {
	defer p.hub.wg.Done()
	defer os.Remove(p.socket)
	for {
		conn, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.set(func() { p.conn = conn })
		select {
		case <-p.closed: // Close did not see this connection
			conn.Close()
		default:
		}
		p.receive(conn)
		p.set(func() { p.conn = nil })
		conn.Close()
	}
}

// receive takes frames from the machine until it disconnects. QEMU's stream netdev puts the length of each before it,
// 4 bytes, big endian.
func (p *Port) receive(conn net.Conn) {
	in := bufio.NewReaderSize(conn, 1<<17)
	var head [4]byte
	for {
		if _, err := io.ReadFull(in, head[:]); err != nil {
			return
		}
		n := binary.BigEndian.Uint32(head[:])
		if n > maxFrame {
			return
		}
		frame := make([]byte, n)
		if _, err := io.ReadFull(in, frame); err != nil {
			return
		}
		cut := false
		p.set(func() {
			p.stats.In++
			if cut = p.cut; cut {
				p.stats.Lost++
			}
		})
		if !cut {
			p.hub.broadcast(p, frame)
		}
	}
}

func (h *Hub) broadcast(from *Port, frame []byte) {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.pcap != nil {
		rec := make([]byte, 16, 16+len(frame))
		binary.LittleEndian.PutUint32(rec, uint32(now.Unix()))
		binary.LittleEndian.PutUint32(rec[4:], uint32(now.Nanosecond()/1000))
		binary.LittleEndian.PutUint32(rec[8:], uint32(len(frame)))
		binary.LittleEndian.PutUint32(rec[12:], uint32(len(frame)))
		if _, err := h.pcap.Write(append(rec, frame...)); err != nil {
			h.pcap = nil
		}
	}
	for _, p := range h.ports {
		if p != from {
			p.enqueue(frame, now)
		}
	}
}

func (p *Port) enqueue(frame []byte, now time.Time) {
	p.set(func() {
		if p.cut || p.loss > 0 && p.rnd.Float64() < p.loss {
			p.stats.Lost++
			return
		}
		select {
		case p.out <- queued{frame, now.Add(p.delay)}:
		default:
			p.stats.Lost++
		}
	})
}

func (p *Port) send() {
	defer p.hub.wg.Done()
	for {
		select {
		case <-p.closed:
			return
		case q := <-p.out:
			if wait := time.Until(q.due); wait > 0 {
				select {
				case <-p.closed:
					return
				case <-time.After(wait):
				}
			}
			if err := p.write(q.frame); err != nil && !errors.Is(err, net.ErrClosed) {
				p.set(func() { p.stats.Lost++ })
			}
		}
	}
}

func (p *Port) write(frame []byte) error {
	var conn net.Conn
	p.set(func() { conn = p.conn })
	if conn == nil {
		return net.ErrClosed
	}
	head := make([]byte, 4, 4+len(frame))
	binary.BigEndian.PutUint32(head, uint32(len(frame)))
	if _, err := conn.Write(append(head, frame...)); err != nil {
		return err
	}
	p.set(func() { p.stats.Out++ })
	return nil
}
