package network

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"

	"kingpost/internal/mesh"
)

// entry is a mesh.LinkConfig with its texts parsed.
type entry struct {
	place  string // for messages: "network.links[2]"
	match  *selector
	name   string // of the bond or VLAN that it makes
	bond   *bond
	vlan   *vlan
	dhcp   bool
	slaac  bool
	mtu    int
	addrs  []netip.Prefix
	routes []route
}

type bond struct {
	mode  netlink.BondMode
	links []selector
}

type vlan struct {
	id int
	on selector
}

type route struct {
	to     netip.Prefix
	via    netip.Addr // not valid: on the link
	metric int
}

// selector is a mesh.LinkSelector with its MAC in the kernel's form.
type selector struct{ name, mac, driver string }

// settings is a mesh.NetworkConfig with its texts parsed.
type settings struct {
	dhcp    bool // of links that no entry names
	entries []entry
	static  resolver
	ntp     []string
}

// parse takes settings that were checked when node.yaml was read; what is wrong with them all the same is an error.
func parse(c mesh.NetworkConfig) (settings, error) {
	s := settings{dhcp: c.DHCP == nil || *c.DHCP, ntp: c.NTP}
	s.static.servers, s.static.search = c.DNS, c.Search
	for i, l := range c.Links {
		e, err := parseLink(l, s.dhcp)
		if err != nil {
			return settings{}, fmt.Errorf("network.links[%d]: %w", i, err)
		}
		e.place = fmt.Sprintf("network.links[%d]", i)
		s.entries = append(s.entries, e)
	}
	return s, nil
}

func parseLink(l mesh.LinkConfig, dhcp bool) (e entry, err error) {
	e = entry{name: l.Name, mtu: l.MTU, slaac: l.SLAAC == nil || *l.SLAAC, dhcp: dhcp}
	if l.Match != nil {
		s, err := parseSelector(*l.Match)
		if err != nil {
			return e, err
		}
		e.match = &s
	}
	if l.VLAN != nil {
		on, err := parseSelector(l.VLAN.Link)
		if err != nil {
			return e, err
		}
		e.vlan = &vlan{l.VLAN.ID, on}
	}
	if l.Bond != nil {
		mode := l.Bond.Mode
		if mode == "" {
			mode = "active-backup"
		}
		e.bond = &bond{mode: netlink.StringToBondMode(mode)}
		for _, m := range l.Bond.Links {
			s, err := parseSelector(m)
			if err != nil {
				return e, err
			}
			e.bond.links = append(e.bond.links, s)
		}
	}
	for _, a := range l.Addresses {
		p, err := netip.ParsePrefix(a)
		if err != nil {
			return e, err
		}
		e.addrs = append(e.addrs, p)
		e.dhcp = e.dhcp && !p.Addr().Is4()
	}
	if l.DHCP != nil {
		e.dhcp = *l.DHCP
	}
	for _, g := range l.Gateways {
		ip, err := netip.ParseAddr(g)
		if err != nil {
			return e, err
		}
		all := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if ip.Is6() {
			all = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
		e.routes = append(e.routes, route{to: all, via: ip})
	}
	for _, r := range l.Routes {
		q := route{metric: r.Metric}
		if q.to, err = netip.ParsePrefix(r.To); err != nil {
			return e, err
		}
		if r.Via != "" {
			if q.via, err = netip.ParseAddr(r.Via); err != nil {
				return e, err
			}
		}
		e.routes = append(e.routes, q)
	}
	return e, nil
}

func parseSelector(s mesh.LinkSelector) (selector, error) {
	out := selector{name: s.Name, driver: s.Driver}
	if s.MAC != "" {
		hw, err := net.ParseMAC(s.MAC)
		if err != nil {
			return out, err
		}
		out.mac = hw.String()
	}
	return out, nil
}

// String is the selector for messages.
func (s selector) String() string {
	out := ""
	for _, f := range []struct{ key, value string }{{"name", s.name}, {"mac", s.mac}, {"driver", s.driver}} {
		if f.value != "" {
			if out != "" {
				out += ", "
			}
			out += f.key + " " + f.value
		}
	}
	return out
}

// made says whether this makes a link instead of selecting one.
func (e *entry) made() bool { return e.match == nil }
