package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
	"golang.org/x/sys/unix"
)

// Each question is asked so often, and each time waited for so long.
const (
	askTimes = 2
	askTime  = 2 * time.Second
)

// discover gets a lease from whoever offers one: DISCOVER, OFFER, REQUEST, ACK.
func (m *Manager) discover(ctx context.Context, name string) (*dhcpv4.DHCPv4, error) {
	c, err := broadcasting(name)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	lease, err := c.Request(ctx, m.asks()...)
	var nak *nclient4.ErrNak
	if errors.As(err, &nak) {
		return nil, fmt.Errorf("%w: %w", errRefused, err)
	}
	if err != nil {
		return nil, fmt.Errorf("ask for a lease on %s: %w", name, err)
	}
	return lease.ACK, nil
}

// reboot asks whether an address that the node had is right on the network that it is on now (INIT-REBOOT).
func (m *Manager) reboot(ctx context.Context, name string, old *dhcpv4.DHCPv4) (*dhcpv4.DHCPv4, error) {
	c, err := broadcasting(name)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return m.request(ctx, c, nclient4.DefaultServers, old, append(m.asks(),
		dhcpv4.WithHwAddr(c.InterfaceAddr()), dhcpv4.WithBroadcast(true), dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(old.YourIPAddr))))
}

// rebind asks any server to renew.
func (m *Manager) rebind(ctx context.Context, name string, old *dhcpv4.DHCPv4) (*dhcpv4.DHCPv4, error) {
	c, err := broadcasting(name)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return m.request(ctx, c, nclient4.DefaultServers, old, append(m.asks(),
		dhcpv4.WithHwAddr(c.InterfaceAddr()), dhcpv4.WithClientIP(old.YourIPAddr)))
}

// renewWithServer asks the server that gave a lease to renew it, from the address that it gave. A server that did not
// say who it is cannot be asked alone.
func (m *Manager) renewWithServer(ctx context.Context, name string, old *dhcpv4.DHCPv4) (*dhcpv4.DHCPv4, error) {
	server := serverOf(old)
	if server == nil {
		return m.rebind(ctx, name, old)
	}
	nif, err := net.InterfaceByName(name)
	if err != nil {
		return nil, fmt.Errorf("renew the lease on %s: %w", name, err)
	}
	lc := net.ListenConfig{Control: func(_, _ string, rc syscall.RawConn) (err error) {
		cerr := rc.Control(func(fd uintptr) {
			err = errors.Join(unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), unix.BindToDevice(int(fd), name))
		})
		return errors.Join(cerr, err)
	}}
	// Not on the address itself: a refusal is broadcast (RFC 2131, section 4.1) and would not be heard.
	conn, err := lc.ListenPacket(ctx, "udp4", fmt.Sprintf("0.0.0.0:%d", nclient4.ClientPort))
	if err != nil {
		return nil, fmt.Errorf("renew the lease on %s: %w", name, err)
	}
	c, err := nclient4.NewWithConn(conn, nif.HardwareAddr, nclient4.WithTimeout(askTime), nclient4.WithRetry(askTimes))
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("renew the lease on %s: %w", name, err)
	}
	defer c.Close()
	return m.request(ctx, c, &net.UDPAddr{IP: server, Port: nclient4.ServerPort}, old, append(m.asks(),
		dhcpv4.WithHwAddr(nif.HardwareAddr), dhcpv4.WithClientIP(old.YourIPAddr)))
}

// request sends a REQUEST and waits for what is said to it.
func (m *Manager) request(ctx context.Context, c *nclient4.Client, to *net.UDPAddr, old *dhcpv4.DHCPv4, mods []dhcpv4.Modifier) (*dhcpv4.DHCPv4, error) {
	req, err := dhcpv4.New(append([]dhcpv4.Modifier{dhcpv4.WithMessageType(dhcpv4.MessageTypeRequest)}, mods...)...)
	if err != nil {
		return nil, fmt.Errorf("make a DHCP request: %w", err)
	}
	ack, err := c.SendAndRead(ctx, to, req, nclient4.IsMessageType(dhcpv4.MessageTypeAck, dhcpv4.MessageTypeNak))
	if err != nil {
		return nil, fmt.Errorf("ask %s for the lease of %s: %w", to.IP, old.YourIPAddr, err)
	}
	if ack.MessageType() == dhcpv4.MessageTypeNak {
		return nil, fmt.Errorf("%w: %s", errRefused, ack.Message())
	}
	return merge(ack, old), nil
}

// broadcasting opens a client on a raw socket. It lives only as long as one question, since it wakes for every packet on
// the link.
func broadcasting(name string) (*nclient4.Client, error) {
	c, err := nclient4.New(name, nclient4.WithTimeout(askTime), nclient4.WithRetry(askTimes))
	if err != nil {
		return nil, fmt.Errorf("open a DHCP client on %s: %w", name, err)
	}
	return c, nil
}

// asks is what every message of ours has.
func (m *Manager) asks() []dhcpv4.Modifier {
	mods := []dhcpv4.Modifier{
		dhcpv4.WithOption(dhcpv4.OptMaxMessageSize(nclient4.MaxMessageSize)),
		dhcpv4.WithRequestedOptions(
			dhcpv4.OptionSubnetMask, dhcpv4.OptionRouter, dhcpv4.OptionDomainNameServer, dhcpv4.OptionDomainName,
			dhcpv4.OptionClasslessStaticRoute, dhcpv4.OptionNTPServers, dhcpv4.OptionRenewTimeValue, dhcpv4.OptionRebindingTimeValue),
	}
	if h := m.cfg.Hostname(); h != "" {
		mods = append(mods, dhcpv4.WithOption(dhcpv4.OptHostName(h)))
	}
	return mods
}
