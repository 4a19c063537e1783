package network

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"kingpost/internal/atomicfile"
	"kingpost/internal/mesh"
)

// protocolDHCP marks the routes that are ours (RTPROT_DHCP of rtnetlink).
const protocolDHCP = 16

// apply puts the address, the routes and the name servers of a lease into use. The address ends with the
// lease in the kernel itself, so a host that is gone leaves none behind that is given to somebody else.
func (m *Manager) apply(l *link, ack *dhcpv4.DHCPv4, life time.Duration) (*net.IPNet, error) {
	n, err := addressOf(ack)
	if err != nil {
		return nil, err
	}
	nl, err := netlink.LinkByIndex(l.index)
	if err != nil {
		return nil, fmt.Errorf("find the link %s: %w", l.name, err)
	}
	secs := int(min(life.Seconds(), 1<<31-2))
	if err := netlink.AddrReplace(nl, &netlink.Addr{IPNet: n, ValidLft: secs, PreferedLft: secs}); err != nil {
		return nil, fmt.Errorf("give %s to %s: %w", n, l.name, err)
	}
	// One of an earlier lease is somebody else's by now, or soon: a host before this one may have left it.
	m.removeLeased(nl, n.IP)
	var errs []error
	for _, r := range routesOf(ack) {
		r.LinkIndex, r.Src, r.Protocol, r.Priority = l.index, n.IP, protocolDHCP, 100+l.index
		if r.Gw == nil {
			r.Scope = netlink.SCOPE_LINK
		} else if !n.Contains(r.Gw) {
			r.Flags = int(netlink.FLAG_ONLINK) // a /32 lease, as clouds give
		}
		if err := netlink.RouteReplace(&r); err != nil {
			errs = append(errs, fmt.Errorf("route to %v by %v: %w", r.Dst, r.Gw, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		m.cfg.Log.WithError(err).WithField("link", l.name).Warn("network: not every route of the lease can be used")
	}
	return n, m.offers(l.index, resolverOf(ack), timeServersOf(ack))
}

// withdraw takes away what a lease gave.
func (m *Manager) withdraw(l *link) {
	if nl, err := netlink.LinkByIndex(l.index); err == nil {
		if routes, err := netlink.RouteListFiltered(unix.AF_INET, &netlink.Route{LinkIndex: l.index, Protocol: protocolDHCP}, netlink.RT_FILTER_OIF|netlink.RT_FILTER_PROTOCOL); err == nil {
			for _, r := range routes {
				netlink.RouteDel(&r) // it may have gone with its address
			}
		}
		m.removeLeased(nl, nil)
	}
	if err := m.offers(l.index, resolver{}, nil); err != nil {
		m.cfg.Log.WithError(err).Warn("network: resolv.conf")
	}
}

// removeLeased removes the addresses that came by a lease, all but one: those that end.
func (m *Manager) removeLeased(nl netlink.Link, but net.IP) {
	addrs, err := netlink.AddrList(nl, unix.AF_INET)
	if err != nil {
		return
	}
	for _, a := range addrs {
		if a.ValidLft > 0 && a.ValidLft < 1<<31-1 && !a.IP.Equal(but) {
			netlink.AddrDel(nl, &a) // it may have ended by itself
		}
	}
}

// addressOf reads the address of a lease; what nobody may have is an error.
func addressOf(ack *dhcpv4.DHCPv4) (*net.IPNet, error) {
	ip := ack.YourIPAddr.To4()
	if ip == nil || !ip.IsGlobalUnicast() || ip.Equal(net.IPv4bcast) {
		return nil, fmt.Errorf("the DHCP server gives the address %v, which no node can have", ack.YourIPAddr)
	}
	mask := ack.SubnetMask()
	if ones, bits := mask.Size(); bits != 32 || ones == 0 {
		mask = ip.DefaultMask()
	}
	return &net.IPNet{IP: ip, Mask: mask}, nil
}

// routesOf reads the routes: the classless ones, which replace the router option where they are given
// (RFC 3442), else the default route by the first router.
func routesOf(ack *dhcpv4.DHCPv4) []netlink.Route {
	var out []netlink.Route
	const most = 64
	for _, r := range ack.ClasslessStaticRoute() {
		if r.Dest == nil || len(out) == most {
			continue
		}
		nr := netlink.Route{Dst: r.Dest}
		if gw := r.Router.To4(); gw != nil && !gw.IsUnspecified() {
			nr.Gw = gw
		}
		out = append(out, nr)
	}
	if len(out) > 0 {
		return out
	}
	for _, gw := range ack.Router() {
		if gw = gw.To4(); gw != nil && gw.IsGlobalUnicast() {
			return []netlink.Route{{Dst: &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}, Gw: gw}}
		}
	}
	return nil
}

// resolver is what one link says about names.
type resolver struct {
	servers []string
	search  []string
}

func resolverOf(ack *dhcpv4.DHCPv4) resolver {
	var r resolver
	for _, ip := range ack.DNS() {
		if ip = ip.To4(); ip != nil && !ip.IsUnspecified() && !ip.IsMulticast() {
			r.servers = append(r.servers, ip.String())
		}
	}
	if d := strings.TrimRight(ack.DomainName(), "."); plainDomain(d) {
		r.search = []string{d}
	}
	return r
}

// plainDomain keeps a server from writing lines of its own into resolv.conf.
func plainDomain(s string) bool {
	if s == "" || len(s) > 253 {
		return false
	}
	for _, c := range s {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '.') {
			return false
		}
	}
	return true
}

// timeServersOf reads the time servers that a DHCP server names (RFC 2132, section 8.3).
func timeServersOf(ack *dhcpv4.DHCPv4) []string {
	var out []string
	for _, ip := range ack.NTPServers() {
		if ip = ip.To4(); ip != nil && ip.IsGlobalUnicast() && !ip.Equal(net.IPv4bcast) && len(out) < mesh.MaxNTP {
			out = append(out, ip.String())
		}
	}
	return out
}

// offers keeps what one link says of servers, and writes resolv.conf from all links.
func (m *Manager) offers(index int, r resolver, ntp []string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dns[index], m.ntp[index] = r, ntp
	m.tell()
	if err := atomicfile.Write(m.cfg.ResolvConf, resolvConf(m.dns), 0o644); err != nil {
		return fmt.Errorf("name servers: %w", err)
	}
	return nil
}

// indexes are the keys in order: node.yaml, then the links.
func indexes[V any](of map[int]V) []int { return slices.Sorted(maps.Keys(of)) }

// resolvConf is resolv.conf(5): at most three servers count there.
func resolvConf(dns map[int]resolver) []byte {
	var servers, search []string
	for _, i := range indexes(dns) {
		for _, s := range dns[i].servers {
			if !slices.Contains(servers, s) && len(servers) < mesh.MaxDNS {
				servers = append(servers, s)
			}
		}
		for _, d := range dns[i].search {
			if !slices.Contains(search, d) && len(search) < mesh.MaxSearch {
				search = append(search, d)
			}
		}
	}
	var b strings.Builder
	if len(search) > 0 {
		b.WriteString("search " + strings.Join(search, " ") + "\n")
	}
	for _, s := range servers {
		b.WriteString("nameserver " + s + "\n")
	}
	return []byte(b.String())
}
