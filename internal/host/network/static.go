package network

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// protocolStatic marks the routes of node.yaml (RTPROT_STATIC of rtnetlink).
const protocolStatic = unix.RTPROT_STATIC

// static gives a link the addresses and routes that are written for it. Done again it changes nothing. The caller holds
// the lock.
func (m *Manager) static(l *link) {
	e := l.role.entry
	if e == nil {
		return
	}
	nl, err := netlink.LinkByIndex(l.index)
	if err != nil {
		return // its end is reported by the watch
	}
	for _, p := range e.addrs {
		m.outcome(l, "address "+p.String(), netlink.AddrReplace(nl, &netlink.Addr{IPNet: ipNet(p)}))
	}
	for _, r := range e.routes {
		m.outcome(l, fmt.Sprintf("route %s by %s", r.to, r.via), netlink.RouteReplace(kernelRoute(l.index, r, e.addrs)))
	}
}

// outcome keeps or forgets what could not be done.
func (m *Manager) outcome(l *link, what string, err error) {
	key := l.name + " " + what
	if err == nil {
		delete(m.made, key)
		return
	}
	if m.made[key] == "" {
		m.cfg.Log.WithError(err).WithField("link", l.name).Warn("network: " + what)
	}
	m.made[key] = fmt.Sprintf("network: %s on %s: %v", what, l.name, err)
}

func kernelRoute(index int, r route, addrs []netip.Prefix) *netlink.Route {
	out := &netlink.Route{LinkIndex: index, Dst: ipNet(r.to), Protocol: protocolStatic, Priority: r.metric}
	if !r.via.IsValid() {
		out.Scope = netlink.SCOPE_LINK
		if r.to.Addr().Is6() {
			out.Scope = netlink.SCOPE_UNIVERSE
		}
		return out
	}
	out.Gw = r.via.AsSlice()
	onLink := r.via.IsLinkLocalUnicast()
	for _, p := range addrs {
		onLink = onLink || p.Contains(r.via)
	}
	if !onLink {
		out.Flags = int(netlink.FLAG_ONLINK) // a host's own prefix, as clouds give
	}
	return out
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
