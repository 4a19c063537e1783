package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
	"github.com/sirupsen/logrus"
)

// Pauses between attempts.
const (
	firstPause = time.Second
	mostPause  = 30 * time.Second
	// minLease keeps a server that gives leases of a second from keeping the node busy.
	minLease = time.Minute
	// minRetry is the least pause between renewals (RFC 2131, section 4.4.5).
	minRetry = time.Minute
)

// keepLease gets a lease on one link and renews it, until ctx is done.
func (m *Manager) keepLease(ctx context.Context, l *link, hw net.HardwareAddr) {
	log := m.cfg.Log.WithField("link", l.name)
	pause := firstPause
	told := false
	wait(ctx, l.kick, 3*firstPause) // for the carrier; some drivers do not report it
	for ctx.Err() == nil {
		lease, err := m.request(ctx, l.name, nil)
		if err != nil {
			if ctx.Err() != nil {
				return
			}
			if !told {
				log.WithError(err).Info("network: no DHCP server answers yet; the node works without")
				told = true
			}
			if wait(ctx, l.kick, pause) {
				pause = firstPause
			} else {
				pause = min(2*pause, mostPause)
			}
			continue
		}
		pause, told = firstPause, false
		if m.holdLease(ctx, l, lease, log) {
			return
		}
	}
}

// holdLease applies a lease and renews it until it has ended; true when ctx is done.
func (m *Manager) holdLease(ctx context.Context, l *link, lease *nclient4.Lease, log *logrus.Entry) bool {
	for {
		t := timesOf(lease.ACK)
		got, err := m.apply(l, lease.ACK, t.expiry)
		if err != nil {
			log.WithError(err).Warn("network: the lease cannot be used")
			wait(ctx, l.kick, mostPause)
			return ctx.Err() != nil
		}
		log.WithFields(logrus.Fields{"address": got.String(), "lease": t.expiry.String()}).Info("network: address")
		start := m.cfg.Now()
		next := t.renew
		for {
			wait(ctx, l.kick, next)
			if ctx.Err() != nil {
				return true
			}
			fresh, err := m.request(ctx, l.name, lease)
			if ctx.Err() != nil {
				return true
			}
			if err == nil {
				if !fresh.ACK.YourIPAddr.Equal(lease.ACK.YourIPAddr) {
					m.withdraw(l)
				}
				lease = fresh
				break
			}
			left := t.expiry - m.cfg.Now().Sub(start)
			var nak *nclient4.ErrNak
			if errors.As(err, &nak) || left <= 0 {
				log.WithError(err).Warn("network: the lease has ended")
				m.withdraw(l)
				return false
			}
			log.WithError(err).Info("network: the lease is not renewed yet")
			next = min(max(left/2, minRetry), left)
		}
	}
}

// request gets a lease, or renews old. The raw socket lives only as long as that, since it wakes for
// every packet on the link.
func (m *Manager) request(ctx context.Context, name string, old *nclient4.Lease) (*nclient4.Lease, error) {
	c, err := nclient4.New(name, nclient4.WithTimeout(2*time.Second), nclient4.WithRetry(2))
	if err != nil {
		return nil, fmt.Errorf("open a DHCP client on %s: %w", name, err)
	}
	defer c.Close()
	var mods []dhcpv4.Modifier
	if h := m.cfg.Hostname(); h != "" {
		mods = append(mods, dhcpv4.WithOption(dhcpv4.OptHostName(h)))
	}
	mods = append(mods, dhcpv4.WithRequestedOptions(
		dhcpv4.OptionSubnetMask, dhcpv4.OptionRouter, dhcpv4.OptionDomainNameServer, dhcpv4.OptionDomainName,
		dhcpv4.OptionClasslessStaticRoute, dhcpv4.OptionRenewTimeValue, dhcpv4.OptionRebindingTimeValue))
	if old != nil {
		return c.Renew(ctx, old, mods...)
	}
	return c.Request(ctx, mods...)
}

// times are the ages at which a lease is renewed and ends.
type times struct {
	renew, expiry time.Duration
}

// timesOf reads T1 and the lease time; what is missing or cannot be gets RFC 2131's defaults.
func timesOf(ack *dhcpv4.DHCPv4) times {
	t := times{expiry: max(ack.IPAddressLeaseTime(time.Hour), minLease)}
	t.renew = ack.IPAddressRenewalTime(t.expiry / 2)
	if t.renew <= 0 || t.renew >= t.expiry {
		t.renew = t.expiry / 2
	}
	t.renew = max(t.renew, minLease/2)
	return t
}

// wait waits for d, a kick (then it returns true) or the end of ctx.
func wait(ctx context.Context, kick <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-kick:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}
