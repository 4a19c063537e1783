package probe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/nats-io/nats.go"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/tlsid"
)

// Broker is the broker at an address, asked with the node's own certificate.
type Broker struct {
	// Address is where it listens: "127.0.0.1:4222".
	Address string
	// Identity gives the node's credentials.
	Identity tlsid.Source
	// Expect is the identity that the broker must show; nil: the component "broker".
	Expect func(mesh.Identity) error
	Now    func() time.Time
}

// Trip is what a round trip found.
type Trip struct {
	Seat    string  `json:"seat"`
	Server  string  `json:"server"`  // its name
	Version string  `json:"version"` // its version
	Millis  float64 `json:"millis"`  // publish to reply
	Streams int     `json:"streams"` // of JetStream
	Storage uint64  `json:"storage"` // bytes that JetStream keeps on disk
}

// Summary implements route.Builtin.
func (b *Broker) Summary() string {
	return "publishes a message on the broker and takes the reply, then asks JetStream for its state"
}

// Ping implements route.Builtin.
func (b *Broker) Ping(ctx context.Context) (any, error) { return b.Trip(ctx) }

// Trip connects, publishes a message, answers it, waits for the reply, and asks JetStream. The connection
// is closed after it: an idle node holds none for this.
func (b *Broker) Trip(ctx context.Context) (*Trip, error) {
	expect := b.Expect
	if expect == nil {
		expect = tlsid.Expect(mesh.RoleComponent, mesh.SeatBroker)
	}
	timeout := 10 * time.Second
	if d, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(d))
	}
	d := &dialer{net.Dialer{Timeout: timeout}, nil}
	nc, err := nats.Connect("tls://"+b.Address,
		nats.Name("mesh-host"), nats.Timeout(timeout), nats.NoReconnect(), nats.SetCustomDialer(d),
		nats.Secure(tlsid.ClientConfig(b.Identity, expect, b.Now)))
	if err != nil {
		if d.err != nil {
			err = d.err
		}
		return nil, fmt.Errorf("connect to the broker at %s: %w", b.Address, err)
	}
	defer nc.Close()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()

	subject := nats.NewInbox()
	sub, err := nc.Subscribe(subject, func(m *nats.Msg) { m.Respond(m.Data) })
	if err != nil {
		return nil, fmt.Errorf("subscribe on the broker: %w", err)
	}
	defer sub.Unsubscribe()
	start := b.Now()
	reply, err := nc.RequestWithContext(ctx, subject, []byte(subject))
	if err != nil {
		return nil, fmt.Errorf("publish on the broker and wait for the reply: %w", err)
	}
	if string(reply.Data) != subject {
		return nil, errors.New("the broker brought back another message than was published")
	}
	t := &Trip{
		Seat: mesh.SeatBroker, Server: nc.ConnectedServerName(), Version: nc.ConnectedServerVersion(),
		Millis: float64(b.Now().Sub(start).Microseconds()) / 1000,
	}
	return t, jetStream(ctx, nc, t)
}

// dialer remembers why a connection could not be made; the client library only says that no server is
// available.
type dialer struct {
	net.Dialer
	err error
}

func (d *dialer) Dial(network, address string) (net.Conn, error) {
	c, err := d.Dialer.Dial(network, address)
	d.err = err
	return c, err
}

// jetStream asks for the account's state with the request that every JetStream client makes first. The
// client library's own package for it would add two megabytes to the host for one question.
func jetStream(ctx context.Context, nc *nats.Conn, t *Trip) error {
	msg, err := nc.RequestWithContext(ctx, "$JS.API.INFO", nil)
	if errors.Is(err, nats.ErrNoResponders) {
		return errors.New("the broker runs without JetStream")
	}
	if err != nil {
		return fmt.Errorf("ask JetStream for its state: %w", err)
	}
	var info struct {
		Streams int    `json:"streams"`
		Storage uint64 `json:"storage"`
		Error   *struct {
			Description string `json:"description"`
		} `json:"error"`
	}
	if err := json.Unmarshal(msg.Data, &info); err != nil {
		return fmt.Errorf("ask JetStream for its state: %w", err)
	}
	if info.Error != nil {
		return fmt.Errorf("JetStream: %s", info.Error.Description)
	}
	t.Streams, t.Storage = info.Streams, info.Storage
	return nil
}
