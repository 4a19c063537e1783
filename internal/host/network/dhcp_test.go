package network

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"kingpost/internal/mesh"
)

// A lease's life against a real server: got, renewed with its server, rebound while that server does not answer, ended,
// and got again when a server is back.
func TestLeaseLife(t *testing.T) {
	t.Parallel()
	if !inside(t) {
		return
	}
	n := node(t)
	l := newLAN(t, n.sys, "eth0", "10.77.0.1/24")
	l.udhcpd("10.77.0.50", "10.77.0.50", 20, "option router 10.77.0.1", "option dns 10.77.0.53", "option ntpsrv 10.77.0.123 10.77.0.124", "option domain lan.example")
	n.run(mesh.NetworkConfig{})
	until(t, 20*time.Second, "a lease", has(t, "eth0", "10.77.0.50/24"))
	if g := gateway(t, "eth0"); g != "10.77.0.1" {
		t.Errorf("the gateway is %q", g)
	}
	until(t, 5*time.Second, "the time servers", func() bool {
		got, from := n.TimeServers()
		return slices.Equal(got, []string{"10.77.0.123", "10.77.0.124"}) && from == "DHCP"
	})
	if b, err := os.ReadFile(filepath.Join(n.dir, "resolv.conf")); err != nil || string(b) != "search lan.example\nnameserver 10.77.0.53\n" {
		t.Errorf("resolv.conf is %q, %v", b, err)
	}
	stays(t, 25*time.Second, "the lease, renewed before its 20 s are over", has(t, "eth0", "10.77.0.50/24"))

	l.stop()
	until(t, 25*time.Second, "the lease's end without a server", none(t, "eth0"))
	if g := gateway(t, "eth0"); g != "" {
		t.Errorf("the gateway %s outlives its lease", g)
	}
	until(t, 5*time.Second, "its servers gone, too", func() bool {
		got, _ := n.TimeServers()
		b, err := os.ReadFile(filepath.Join(n.dir, "resolv.conf"))
		return len(got) == 0 && err == nil && len(b) == 0
	})
	l.udhcpd("10.77.0.60", "10.77.0.60", 20)
	until(t, 45*time.Second, "a lease of the server that is back", has(t, "eth0", "10.77.0.60/24"))
}

// Another server than the one that gave the lease renews it, once that one's time is over.
func TestRebind(t *testing.T) {
	t.Parallel()
	if !inside(t) {
		return
	}
	n := node(t)
	l := newLAN(t, n.sys, "eth0", "10.77.0.1/24")
	l.udhcpd("10.77.0.50", "10.77.0.50", 24)
	n.run(mesh.NetworkConfig{})
	until(t, 20*time.Second, "a lease", has(t, "eth0", "10.77.0.50/24"))
	l.stop()
	// It has another address, so that only a broadcast reaches it.
	l.run("ip", "addr", "flush", "dev", l.theirs)
	l.run("ip", "addr", "add", "10.77.0.2/24", "dev", l.theirs)
	l.dnsmasq("10.77.0.50", "10.77.0.60")
	stays(t, 30*time.Second, "the lease, rebound", has(t, "eth0", "10.77.0.50/24"))
	l.stop()
	if !strings.Contains(l.log.String(), "DHCPREQUEST") || strings.Contains(l.log.String(), "DHCPDISCOVER") {
		t.Errorf("the other server was not asked to renew: %s", l.log)
	}
}

// A server that takes the lease back is believed at once, and the address that it gives instead replaces the old one.
func TestNAK(t *testing.T) {
	t.Parallel()
	if !inside(t) {
		return
	}
	n := node(t)
	l := newLAN(t, n.sys, "eth0", "10.77.0.1/24")
	l.udhcpd("10.77.0.50", "10.77.0.50", 20)
	n.run(mesh.NetworkConfig{})
	until(t, 20*time.Second, "a lease", has(t, "eth0", "10.77.0.50/24"))
	l.stop()
	l.dnsmasq("10.77.0.80", "10.77.0.80")
	until(t, 30*time.Second, "the new server's address", has(t, "eth0", "10.77.0.80/24"))
	if a := addresses(t, "eth0"); len(a) != 1 {
		t.Errorf("the old address is still there: %v", a)
	}
	if !n.log.says(errRefused.Error()) {
		t.Error("the lease ended by its time and not by the refusal")
	}
	l.stop()
	if !strings.Contains(l.log.String(), "DHCPNAK") {
		t.Errorf("the server never refused: %s", l.log)
	}
	if !strings.Contains(l.log.String(), "client provides name: alpha") {
		t.Errorf("the server was not told the node's name: %s", l.log)
	}
}

// A cable that is plugged into another network gives the address of that one, long before the old lease's end; plugged
// into the same one again it keeps its own.
func TestCarrier(t *testing.T) {
	t.Parallel()
	if !inside(t) {
		return
	}
	n := node(t)
	l := newLAN(t, n.sys, "eth0", "10.77.0.1/24")
	l.udhcpd("10.77.0.50", "10.77.0.50", 3600)
	n.run(mesh.NetworkConfig{})
	until(t, 20*time.Second, "a lease", has(t, "eth0", "10.77.0.50/24"))
	l.carrier(false)
	time.Sleep(time.Second)
	l.carrier(true)
	stays(t, 6*time.Second, "the address, back in the same network", has(t, "eth0", "10.77.0.50/24"))

	l.carrier(false)
	l.stop()
	l.run("ip", "addr", "flush", "dev", l.theirs)
	l.run("ip", "addr", "add", "10.88.0.1/24", "dev", l.theirs)
	l.udhcpd("10.88.0.70", "10.88.0.70", 3600, "option router 10.88.0.1")
	l.carrier(true)
	until(t, 30*time.Second, "the other network's address", has(t, "eth0", "10.88.0.70/24"))
	if a := addresses(t, "eth0"); len(a) != 1 || gateway(t, "eth0") != "10.88.0.1" {
		t.Errorf("what is left of the old network: %v, gateway %s", a, gateway(t, "eth0"))
	}
}

// Two cards, one by DHCP and one by hand, and a third that comes later; a restart of the host keeps what they have.
func TestTwoCards(t *testing.T) {
	t.Parallel()
	if !inside(t) {
		return
	}
	n := node(t)
	a := newLAN(t, n.sys, "eth0", "10.77.0.1/24")
	b := newLAN(t, n.sys, "eth1", "10.88.0.1/24")
	a.udhcpd("10.77.0.50", "10.77.0.50", 3600, "option router 10.77.0.1", "option dns 10.77.0.53")
	cfg := mesh.NetworkConfig{
		DNS: []string{"10.88.0.53"}, NTP: []string{"time.example"},
		Links: []mesh.LinkConfig{{
			Match: &mesh.LinkSelector{Name: "eth1"}, Addresses: []string{"10.88.0.5/24", "fd88::5/64"}, MTU: 1400,
			Routes: []mesh.RouteConfig{{To: "10.99.0.0/16", Via: "10.88.0.1"}, {To: "fd99::/16", Via: "fd88::1"}},
		}},
	}
	n.run(cfg)
	until(t, 20*time.Second, "the lease", has(t, "eth0", "10.77.0.50/24"))
	until(t, 5*time.Second, "the address", has(t, "eth1", "10.88.0.5/24"))
	until(t, 5*time.Second, "the IPv6 address", has(t, "eth1", "fd88::5/64"))
	b.run("ip", "addr", "add", "fd88::1/64", "dev", b.theirs)
	for _, to := range []string{"10.88.0.1", "fd88::1"} {
		until(t, 10*time.Second, "an answer of "+to, func() bool { return reachable(to) })
	}
	if got, from := n.TimeServers(); !slices.Equal(got, []string{"time.example"}) || from != "node.yaml" {
		t.Errorf("time servers %q from %s", got, from)
	}
	until(t, 5*time.Second, "both name servers, that of node.yaml first", func() bool {
		text, err := os.ReadFile(filepath.Join(n.dir, "resolv.conf"))
		return err == nil && string(text) == "nameserver 10.88.0.53\nnameserver 10.77.0.53\n"
	})
	if got := routesTo(t, "eth1"); !slices.Contains(got, "10.99.0.0/16 by 10.88.0.1") || !slices.Contains(got, "fd99::/16 by fd88::1") {
		t.Errorf("routes %q", got)
	}
	if got := n.Addresses(); !slices.Equal(got, []string{"10.77.0.50", "10.88.0.5", "fd88::5"}) {
		t.Errorf("addresses %q", got)
	}
	// What its cable takes away comes back with it.
	b.carrier(false)
	time.Sleep(time.Second)
	b.carrier(true)
	until(t, 10*time.Second, "the routes, back", func() bool {
		got := routesTo(t, "eth1")
		return slices.Contains(got, "10.99.0.0/16 by 10.88.0.1") && slices.Contains(got, "fd99::/16 by fd88::1")
	})

	n.end()
	stays(t, time.Second, "the addresses without a host", func() bool { return has(t, "eth0", "10.77.0.50/24")() && has(t, "eth1", "10.88.0.5/24")() })
	n.run(cfg)
	stays(t, 8*time.Second, "the addresses under the next host", func() bool { return has(t, "eth0", "10.77.0.50/24")() && has(t, "eth1", "10.88.0.5/24")() })

	c := newLAN(t, n.sys, "eth2", "10.66.0.1/24")
	c.udhcpd("10.66.0.50", "10.66.0.50", 3600)
	until(t, 25*time.Second, "a lease on the card that came later", has(t, "eth2", "10.66.0.50/24"))
	if w := n.Warnings(); len(w) != 0 {
		t.Errorf("warnings %q", w)
	}
}
