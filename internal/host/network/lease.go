package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/sirupsen/logrus"
)

// Pauses between attempts to get a first lease.
const (
	firstPause = time.Second
	mostPause  = 30 * time.Second
)

// minLease is the shortest lease that is taken: a shorter one would keep a node busy with nothing but renewing it.
const minLease = 10 * time.Second

// Bounds of the pause between renewals of one lease (RFC 2131, section 4.4.5, which has a minute; shorter leases than
// its authors thought of need a shorter one).
const (
	leastRetry = time.Second
	mostRetry  = time.Minute
)

// errRefused is what a server's DHCPNAK becomes: the lease is over.
var errRefused = errors.New("the DHCP server takes the lease back")

// keepLease gets a lease on one link and renews it, until ctx is done.
func (m *Manager) keepLease(ctx context.Context, l *link) {
	log := m.cfg.Log.WithField("link", l.name)
	pause := firstPause
	told := false
	wait(ctx, l.kick, 3*firstPause) // for the carrier; some drivers do not report it
	for ctx.Err() == nil {
		start := m.cfg.Now()
		ack, err := m.discover(ctx, l.name)
		if err == nil {
			pause, told = firstPause, false
			if err = m.holdLease(ctx, l, ack, start, log); err == nil {
				continue
			}
			told = true // why is in the log already
		}
		if ctx.Err() != nil {
			return
		}
		if !told {
			log.WithError(err).Info("network: no DHCP server gives a lease yet; the node works without")
			told = true
		}
		if wait(ctx, l.kick, pause) {
			pause = firstPause
		} else {
			pause = min(2*pause, mostPause)
		}
	}
}

// holdLease applies a lease and renews it until it has ended, which is no error, or ctx is done. A lease that cannot be
// used is one.
//
// It asks first the server that gave it (renewing), then any (rebinding), and after the cable was plugged in again, which
// may be another network, whether the address is still right there (RFC 2131, INIT-REBOOT).
func (m *Manager) holdLease(ctx context.Context, l *link, ack *dhcpv4.DHCPv4, start time.Time, log *logrus.Entry) error {
	for {
		t := timesOf(ack)
		if t.expiry < minLease {
			err := fmt.Errorf("the DHCP server gives a lease of %s; the least that a node takes is %s", t.expiry, minLease)
			log.WithError(err).Warn("network: the lease cannot be used")
			m.withdraw(l)
			return err
		}
		got, err := m.apply(l, ack, t.expiry-m.cfg.Now().Sub(start))
		if err != nil {
			log.WithError(err).Warn("network: the lease cannot be used")
			m.withdraw(l)
			return err
		}
		log.WithFields(logrus.Fields{"address": got.String(), "lease": t.expiry.String()}).Info("network: address")
		fresh, at, err := m.renew(ctx, l, ack, t, start, log)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			log.WithError(err).Warn("network: the lease has ended")
			m.withdraw(l)
			return nil
		case !fresh.YourIPAddr.Equal(ack.YourIPAddr):
			log.WithField("address", fresh.YourIPAddr.String()).Warn("network: the address changes")
			m.withdraw(l)
		}
		ack, start = fresh, at
	}
}

// renew waits until the lease is to be renewed and does it. It returns the new lease and when it was asked for, or why
// the old one is over.
func (m *Manager) renew(ctx context.Context, l *link, ack *dhcpv4.DHCPv4, t times, start time.Time, log *logrus.Entry) (*dhcpv4.DHCPv4, time.Time, error) {
	next := t.renew - m.cfg.Now().Sub(start)
	told := false
	for {
		moved := wait(ctx, l.kick, max(next, 0))
		if ctx.Err() != nil {
			return nil, time.Time{}, ctx.Err()
		}
		now := m.cfg.Now()
		age := now.Sub(start)
		if age >= t.expiry {
			return nil, time.Time{}, fmt.Errorf("no DHCP server renewed it within its %s", t.expiry)
		}
		until, rebind := t.rebind, age >= t.rebind
		if rebind || moved {
			until = t.expiry
		}
		bounded, cancel := context.WithTimeout(ctx, until-age)
		fresh, err := m.again(bounded, l.name, ack, moved, rebind)
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil, time.Time{}, ctx.Err()
		case err == nil:
			return fresh, now, nil
		case errors.Is(err, errRefused):
			return nil, time.Time{}, err
		}
		if !told {
			log.WithError(err).Info("network: the lease is not renewed yet")
			told = true
		}
		age = m.cfg.Now().Sub(start)
		next = t.retry(age)
	}
}

// again asks for the same address: of its server, of any, or after the link has moved.
func (m *Manager) again(ctx context.Context, name string, ack *dhcpv4.DHCPv4, moved, rebind bool) (*dhcpv4.DHCPv4, error) {
	switch {
	case moved:
		fresh, err := m.reboot(ctx, name, ack)
		if err == nil || errors.Is(err, errRefused) || ctx.Err() != nil {
			return fresh, err
		}
		// Nobody here knows the address. That is another network, or one whose server is away: if somebody offers
		// another address it is the former.
		return m.discover(ctx, name)
	case rebind:
		return m.rebind(ctx, name, ack)
	}
	return m.renewWithServer(ctx, name, ack)
}

// times are the ages at which a lease is renewed, rebound and ends.
type times struct {
	renew, rebind, expiry time.Duration
}

// retry is how long after an attempt at that age the next one is made: half of what is left until the next thing happens.
func (t times) retry(age time.Duration) time.Duration {
	until := t.expiry
	if age < t.rebind {
		until = t.rebind
	}
	least := min(max(t.expiry/20, leastRetry), mostRetry)
	left := until - age
	return min(max(left/2, least), max(left, leastRetry))
}

// timesOf reads T1, T2 and the lease time; what is missing or cannot be gets RFC 2131's defaults.
func timesOf(ack *dhcpv4.DHCPv4) times {
	t := times{expiry: ack.IPAddressLeaseTime(time.Hour)}
	if t.expiry <= 0 {
		return t
	}
	t.renew, t.rebind = ack.IPAddressRenewalTime(t.expiry/2), ack.IPAddressRebindingTime(t.expiry/8*7)
	if t.rebind <= 0 || t.rebind >= t.expiry {
		t.rebind = t.expiry / 8 * 7
	}
	if t.renew <= 0 || t.renew >= t.rebind {
		t.renew = min(t.expiry/2, t.rebind/2)
	}
	t.renew = max(t.renew, leastRetry)
	return t
}

// merge gives a renewal the options that its server left out because the first lease had them.
func merge(fresh, old *dhcpv4.DHCPv4) *dhcpv4.DHCPv4 {
	for _, code := range []dhcpv4.OptionCode{
		dhcpv4.OptionSubnetMask, dhcpv4.OptionRouter, dhcpv4.OptionDomainNameServer, dhcpv4.OptionDomainName,
		dhcpv4.OptionClasslessStaticRoute, dhcpv4.OptionNTPServers, dhcpv4.OptionServerIdentifier,
	} {
		if v := old.Options.Get(code); v != nil && !fresh.Options.Has(code) && fresh.YourIPAddr.Equal(old.YourIPAddr) {
			fresh.UpdateOption(dhcpv4.OptGeneric(code, v))
		}
	}
	return fresh
}

// serverOf is the address of the server that gave a lease, nil where it did not say.
func serverOf(ack *dhcpv4.DHCPv4) net.IP {
	ip := ack.ServerIdentifier().To4()
	if ip == nil || !ip.IsGlobalUnicast() || ip.Equal(net.IPv4bcast) {
		return nil
	}
	return ip
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
