package release

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"kingpost/internal/mesh"
)

// located is a fault in node.yaml and where it is.
type located struct {
	path string // a YAML path, "$.network.dns[0]"
	err  error
}

// checkNetwork returns the first fault of the network's settings.
func checkNetwork(n mesh.NetworkConfig) *located {
	at := func(path string, err error) *located {
		if err == nil {
			return nil
		}
		return &located{"$.network" + path, err}
	}
	for _, list := range []struct {
		name  string
		items []string
		most  int
		check func(string) error
	}{
		{"dns", n.DNS, mesh.MaxDNS, checkServerIP},
		{"search", n.Search, mesh.MaxSearch, checkDomain},
		{"ntp", n.NTP, mesh.MaxNTP, checkServer},
	} {
		if len(list.items) > list.most {
			return at("."+list.name, fmt.Errorf("there are %d, and only %d count; leave out the others", len(list.items), list.most))
		}
		for i, s := range list.items {
			err := list.check(s)
			if err == nil && slices.Contains(list.items[:i], s) {
				err = fmt.Errorf("%s is there twice; leave one out", s)
			}
			if err != nil {
				return at(fmt.Sprintf(".%s[%d]", list.name, i), err)
			}
		}
	}
	if len(n.Links) > mesh.MaxLinks {
		return at(".links", fmt.Errorf("there are %d links, and at most %d can be", len(n.Links), mesh.MaxLinks))
	}
	c := linkChecks{names: map[string]bool{}, addresses: map[netip.Addr]bool{}, members: map[mesh.LinkSelector]bool{}, matches: map[mesh.LinkSelector]bool{}}
	for i, l := range n.Links {
		if f := c.check(l); f != nil {
			return at(fmt.Sprintf(".links[%d]%s", i, f.path), f.err)
		}
	}
	return nil
}

// linkChecks checks links one after the other, and against those before.
type linkChecks struct {
	names     map[string]bool
	addresses map[netip.Addr]bool
	members   map[mesh.LinkSelector]bool // of bonds
	matches   map[mesh.LinkSelector]bool
}

func (c *linkChecks) check(l mesh.LinkConfig) *located {
	kinds := 0
	for _, set := range []bool{l.Match != nil, l.Bond != nil, l.VLAN != nil} {
		if set {
			kinds++
		}
	}
	if kinds != 1 {
		return &located{"", fmt.Errorf("say exactly one of match (a link that the machine has), bond and vlan (one that is made)")}
	}
	for _, f := range []*located{c.kind(l), c.ip(l)} {
		if f != nil {
			return f
		}
	}
	return nil
}

// kind checks what a link is.
func (c *linkChecks) kind(l mesh.LinkConfig) *located {
	if l.Match != nil {
		if l.Name != "" {
			return &located{".name", fmt.Errorf("a link that the machine has keeps the kernel's name; select it by match.name")}
		}
		s, err := normal(*l.Match)
		if err == nil && c.matches[s] {
			err = fmt.Errorf("an earlier entry selects the same; put what both say into one")
		}
		if err == nil && c.members[s] {
			err = fmt.Errorf("a bond above has this link already; give the bond the addresses")
		}
		if err != nil {
			return &located{".match", err}
		}
		c.matches[s] = true
		return nil
	}
	if err := checkLinkName(l.Name); err != nil {
		return &located{".name", err}
	}
	if c.names[l.Name] {
		return &located{".name", fmt.Errorf("an earlier link is called %s, too", l.Name)}
	}
	c.names[l.Name] = true
	if v := l.VLAN; v != nil {
		if v.ID < 1 || v.ID > 4094 {
			return &located{".vlan.id", fmt.Errorf("%d is no VLAN; they go from 1 to 4094", v.ID)}
		}
		if _, err := normal(v.Link); err != nil {
			return &located{".vlan.link", err}
		}
		if v.Link.Name == l.Name {
			return &located{".vlan.link", fmt.Errorf("a VLAN cannot be on itself")}
		}
		return nil
	}
	if m := l.Bond.Mode; m != "" && !slices.Contains(mesh.BondModes(), m) {
		return &located{".bond.mode", fmt.Errorf("%q is no mode; there are %s", m, strings.Join(mesh.BondModes(), ", "))}
	}
	if len(l.Bond.Links) == 0 {
		return &located{".bond", fmt.Errorf("a bond needs links; name them below links, by name, mac or driver")}
	}
	for i, sel := range l.Bond.Links {
		s, err := normal(sel)
		if err == nil && (c.members[s] || c.matches[s]) {
			err = fmt.Errorf("the same link is selected above already; it can be in one place only")
		}
		if err != nil {
			return &located{fmt.Sprintf(".bond.links[%d]", i), err}
		}
		c.members[s] = true
	}
	return nil
}

// ip checks addresses, gateways, routes and MTU.
func (c *linkChecks) ip(l mesh.LinkConfig) *located {
	if len(l.Addresses) > mesh.MaxAddresses || len(l.Routes) > mesh.MaxRoutes {
		return &located{"", fmt.Errorf("it has %d addresses and %d routes; at most %d and %d can be", len(l.Addresses), len(l.Routes), mesh.MaxAddresses, mesh.MaxRoutes)}
	}
	var prefixes []netip.Prefix
	six := false
	for i, s := range l.Addresses {
		p, err := parseAddress(s)
		if err == nil && c.addresses[p.Addr()] {
			err = fmt.Errorf("the address %s is given twice", p.Addr())
		}
		if err != nil {
			return &located{fmt.Sprintf(".addresses[%d]", i), err}
		}
		c.addresses[p.Addr()] = true
		prefixes = append(prefixes, p)
		six = six || p.Addr().Is6()
	}
	dhcp := l.DHCP != nil && *l.DHCP
	seen := map[bool]bool{}
	for i, s := range l.Gateways {
		ip, err := parseRouter(s, prefixes, false)
		if err == nil && seen[ip.Is6()] {
			err = fmt.Errorf("a second gateway of the same family; write further ones as routes, with a metric")
		}
		if err != nil {
			return &located{fmt.Sprintf(".gateways[%d]", i), err}
		}
		seen[ip.Is6()] = true
	}
	for i, r := range l.Routes {
		if f := checkRoute(r, prefixes, dhcp); f != nil {
			return &located{fmt.Sprintf(".routes[%d]%s", i, f.path), f.err}
		}
	}
	least := 576
	if six {
		least = 1280 // RFC 8200, section 5
	}
	if l.MTU != 0 && (l.MTU < least || l.MTU > 65520) {
		return &located{".mtu", fmt.Errorf("%d is out of range; it is from %d to 65520 bytes", l.MTU, least)}
	}
	return nil
}

func checkRoute(r mesh.RouteConfig, prefixes []netip.Prefix, dhcp bool) *located {
	p, err := netip.ParsePrefix(r.To)
	if err != nil {
		return &located{".to", fmt.Errorf("%q is no prefix; write it as 10.0.0.0/8 or fd00::/8, and everything as 0.0.0.0/0 or ::/0", r.To)}
	}
	if p.Masked() != p {
		return &located{".to", fmt.Errorf("%s has bits behind its length; write %s", p, p.Masked())}
	}
	if r.Metric < 0 || r.Metric > 1<<31-1 {
		return &located{".metric", fmt.Errorf("%d is out of range", r.Metric)}
	}
	if r.Via == "" {
		return nil
	}
	ip, err := parseRouter(r.Via, prefixes, dhcp)
	if err == nil && ip.Is6() != p.Addr().Is6() {
		err = fmt.Errorf("%s is of another family than %s", ip, p)
	}
	if err != nil {
		return &located{".via", err}
	}
	return nil
}

// parseAddress reads an address that a node can have, with its prefix length.
func parseAddress(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	switch a := p.Addr(); {
	case err != nil:
		return p, fmt.Errorf("%q is no address with a prefix length; write it as 192.168.1.20/24 or fd00::20/64", s)
	case a.Is4In6():
		return p, fmt.Errorf("write %s as an IPv4 address", a)
	case a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return p, fmt.Errorf("no node can have the address %s", a)
	case p.Bits() == 0:
		return p, fmt.Errorf("the prefix length of %s cannot be 0; it is that of the network, usually 24 or 64", s)
	case a.Is4() && p.Bits() <= 30 && (a == p.Masked().Addr() || a == lastOf(p)):
		return p, fmt.Errorf("%s is the network's own or its broadcast address; give the node another one of %s", a, p.Masked())
	}
	return p, nil
}

// lastOf is the broadcast address of an IPv4 network.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().As4()
	for i := p.Bits(); i < 32; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	return netip.AddrFrom4(b)
}

// parseRouter reads a router's address; it must be on one of the link's networks, or what a DHCP server gives must be
// waited for.
func parseRouter(s string, prefixes []netip.Prefix, dhcp bool) (netip.Addr, error) {
	ip, err := netip.ParseAddr(s)
	switch {
	case err != nil || ip.Zone() != "":
		return ip, fmt.Errorf("%q is no address of a router; write it without a prefix length, as 192.168.1.1 or fe80::1", s)
	case ip.IsUnspecified() || ip.IsLoopback() || ip.IsMulticast() || ip.Is4In6():
		return ip, fmt.Errorf("no router can have the address %s", ip)
	case ip.Is6() && ip.IsLinkLocalUnicast(), ip.Is4() && dhcp:
		return ip, nil
	}
	for _, p := range prefixes {
		if p.Addr() == ip {
			return ip, fmt.Errorf("%s is this node's own address", ip)
		}
		// A host's own prefix (/32, /128) reaches nothing, so there the router counts as on the link, as clouds do it.
		if p.Contains(ip) || p.Addr().Is4() == ip.Is4() && p.IsSingleIP() {
			return ip, nil
		}
	}
	return ip, fmt.Errorf("%s is on none of this link's networks; give the link an address of the same network", ip)
}

// normal checks a selector and brings it into one form.
func normal(s mesh.LinkSelector) (mesh.LinkSelector, error) {
	if s == (mesh.LinkSelector{}) {
		return s, fmt.Errorf("it selects nothing; set name, mac or driver")
	}
	if s.Name != "" {
		if err := checkLinkName(s.Name); err != nil {
			return s, err
		}
	}
	if s.MAC != "" {
		hw, err := net.ParseMAC(s.MAC)
		if err != nil || len(hw) != 6 || hw[0]&1 != 0 {
			return s, fmt.Errorf("%q is no address of a network card; write it as \"52:54:00:12:34:56\"", s.MAC)
		}
		s.MAC = hw.String()
	}
	if strings.Trim(s.Driver, "abcdefghijklmnopqrstuvwxyz0123456789_-") != "" || len(s.Driver) > 64 {
		return s, fmt.Errorf("%.40q is no name of a driver; they look like virtio_net or igb", s.Driver)
	}
	return s, nil
}

// checkLinkName checks a link's name: IFNAMSIZ and dev_valid_name of Linux, less what confuses people.
func checkLinkName(s string) error {
	switch {
	case s == "":
		return fmt.Errorf("a bond or VLAN needs a name, as bond0 or lan20")
	case len(s) > 15:
		return fmt.Errorf("the name %.40q has %d characters; at most 15 can be", s, len(s))
	case strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789._-") != "" || strings.Trim(s[:1], "0123456789._-") == "":
		return fmt.Errorf("%q is no name of a link; it starts with a letter and has a-z, 0-9, . _ and - only", s)
	case s == "lo" || s == "all" || s == "default" || strings.HasPrefix(s, "kingpost"):
		return fmt.Errorf("the name %s is taken; choose another one", s)
	}
	return nil
}

func checkServerIP(s string) error {
	ip, err := netip.ParseAddr(s)
	if err != nil || ip.Zone() != "" || ip.IsUnspecified() || ip.IsMulticast() {
		return fmt.Errorf("%q is no address of a name server; write it as 192.168.1.1 or fd00::1", s)
	}
	return nil
}

func checkDomain(s string) error {
	if len(s) > 253 {
		return fmt.Errorf("%.40q is no domain; it has more than 253 characters", s)
	}
	for _, label := range strings.Split(s, ".") {
		if label == "" || len(label) > 63 || strings.Trim(label, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") != "" || label[0] == '-' || label[len(label)-1] == '-' {
			return fmt.Errorf("%.40q is no domain; write it as lan.example, without a dot at the end", s)
		}
	}
	return nil
}

func checkServer(s string) error {
	if checkServerIP(s) == nil {
		return nil
	}
	if strings.ContainsAny(s, ":/ ") || checkDomain(s) != nil {
		return fmt.Errorf("%.40q is no name or address of a time server; write it as time.example or 192.168.1.1, without a port", s)
	}
	return nil
}
