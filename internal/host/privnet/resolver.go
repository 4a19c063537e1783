package privnet

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	namePort = 53
	// maxMessage is the largest message, in bytes: over TCP it carries its length in 16 bits.
	maxMessage = 1<<16 - 1
	// Questions and connections at once; more are let wait, and asked again by those who have time.
	maxQuestions   = 256
	maxConnections = 64
	// idle is how long a connection may say nothing.
	idle = 10 * time.Second
)

// ResolvConf is what a container finds in /etc/resolv.conf. Questions are asked again for ten seconds: the host may be
// restarting, and then nobody answers for a moment.
func (n *Network) ResolvConf() string {
	text := "nameserver " + Gateway().String() + "\n"
	if n.hasIPv6() {
		text += "nameserver " + Gateway6().String() + "\n"
	}
	return text + "options timeout:1 attempts:5\n"
}

// serveNames answers at both addresses of the node in the private network, by UDP and TCP, until ctx ends.
func (n *Network) serveNames(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	up := &upstream{resolvConf: n.cfg.ResolvConf}
	addrs := []netip.Addr{Gateway()}
	if n.hasIPv6() {
		addrs = append(addrs, Gateway6())
	}
	slots := make(chan struct{}, maxQuestions)
	for _, a := range addrs {
		at := net.JoinHostPort(a.String(), strconv.Itoa(namePort))
		wg.Go(func() {
			n.again(ctx, "answer names at "+at+"/udp", func() error { return n.servePackets(ctx, at, up, slots) })
		})
		wg.Go(func() {
			n.again(ctx, "answer names at "+at+"/tcp", func() error { return n.serveStreams(ctx, at, up) })
		})
	}
	return nil
}

// again does what may fail until ctx ends.
func (n *Network) again(ctx context.Context, what string, do func() error) {
	for ctx.Err() == nil {
		err := do()
		if ctx.Err() != nil {
			return
		}
		n.cfg.Log.WithError(err).Warnf("%s; tried again", what)
		select {
		case <-ctx.Done():
		case <-time.After(retryAfter):
		}
	}
}

func (n *Network) servePackets(ctx context.Context, at string, up *upstream, slots chan struct{}) error {
	c, err := (&net.ListenConfig{}).ListenPacket(ctx, "udp", at)
	if err != nil {
		return err
	}
	defer c.Close()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	buf := make([]byte, maxMessage)
	for {
		size, from, err := c.ReadFrom(buf)
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return err
			}
			continue // an error of one sender, told by ICMP
		}
		msg := append([]byte(nil), buf[:size]...)
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if answer := n.answer(ctx, msg, up, "udp"); answer != nil {
				_, _ = c.WriteTo(answer, from)
			}
		})
	}
}

func (n *Network) serveStreams(ctx context.Context, at string, up *upstream) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", at)
	if err != nil {
		return err
	}
	defer l.Close()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	slots := make(chan struct{}, maxConnections)
	for {
		slots <- struct{}{}
		c, err := l.Accept()
		if err != nil {
			<-slots
			return err
		}
		wg.Go(func() {
			defer func() { <-slots }()
			defer c.Close()
			defer context.AfterFunc(ctx, func() { c.Close() })()
			n.serveStream(ctx, c, up)
		})
	}
}

// serveStream answers the questions of one connection, in their order (RFC 7766).
func (n *Network) serveStream(ctx context.Context, c net.Conn, up *upstream) {
	for {
		_ = c.SetDeadline(time.Now().Add(idle))
		msg, err := readStream(c)
		if err != nil {
			return
		}
		answer := n.answer(ctx, msg, up, "tcp")
		if answer == nil || writeStream(c, answer) != nil {
			return
		}
	}
}

func readStream(r io.Reader) ([]byte, error) {
	var size [2]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	msg := make([]byte, binary.BigEndian.Uint16(size[:]))
	_, err := io.ReadFull(r, msg)
	return msg, err
}

func writeStream(w io.Writer, msg []byte) error {
	if len(msg) > maxMessage {
		return fmt.Errorf("a message of %d bytes is too long", len(msg))
	}
	_, err := w.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(msg))), msg...))
	return err
}

// answer is what is said to a message; nil is nothing.
func (n *Network) answer(ctx context.Context, msg []byte, up *upstream, network string) []byte {
	a, code, ok := parse(msg)
	if !ok {
		return nil
	}
	if code != dnsmessage.RCodeSuccess {
		return reply(a, code)
	}
	if answer, done := n.local(a); done {
		return answer
	}
	answer, err := up.ask(ctx, msg, network)
	if err != nil {
		n.cfg.Log.WithError(err).WithField("name", a.name).Debug("a name of elsewhere was not answered")
		return reply(a, dnsmessage.RCodeServerFailure)
	}
	return answer
}
