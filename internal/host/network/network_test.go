package network

import (
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func ack(t testing.TB, ip string, mods ...dhcpv4.Modifier) *dhcpv4.DHCPv4 {
	t.Helper()
	p, err := dhcpv4.New(append([]dhcpv4.Modifier{dhcpv4.WithMessageType(dhcpv4.MessageTypeAck), dhcpv4.WithYourIP(net.ParseIP(ip))}, mods...)...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestAddressOf(t *testing.T) {
	for _, tc := range []struct {
		name, ip string
		mask     net.IPMask
		want     string
	}{
		{"usual", "10.0.2.15", net.CIDRMask(24, 32), "10.0.2.15/24"},
		{"host route", "10.0.2.15", net.CIDRMask(32, 32), "10.0.2.15/32"},
		{"no mask", "192.168.1.4", nil, "192.168.1.4/24"},
		{"hole in the mask", "10.0.2.15", net.IPv4Mask(255, 0, 255, 0), "10.0.2.15/8"},
		{"multicast", "224.0.0.1", nil, ""},
		{"loopback", "127.0.0.1", nil, ""},
		{"none", "0.0.0.0", nil, ""},
		{"broadcast", "255.255.255.255", nil, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var mods []dhcpv4.Modifier
			if tc.mask != nil {
				mods = append(mods, dhcpv4.WithNetmask(tc.mask))
			}
			n, err := addressOf(ack(t, tc.ip, mods...))
			if (err != nil) != (tc.want == "") || err == nil && n.String() != tc.want {
				t.Errorf("got %v, %v", n, err)
			}
		})
	}
}

func TestTimesOf(t *testing.T) {
	for _, tc := range []struct {
		name          string
		lease, t1     uint32 // seconds, 0 for absent
		renew, expiry time.Duration
	}{
		{"nothing said", 0, 0, 30 * time.Minute, time.Hour},
		{"lease", 7200, 0, time.Hour, 2 * time.Hour},
		{"T1", 7200, 600, 10 * time.Minute, 2 * time.Hour},
		{"T1 after the end", 600, 7200, 5 * time.Minute, 10 * time.Minute},
		{"a second", 1, 0, 30 * time.Second, time.Minute},
		{"infinite", 0xffffffff, 0, 0xffffffff * time.Second / 2, 0xffffffff * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var mods []dhcpv4.Modifier
			if tc.lease != 0 {
				mods = append(mods, dhcpv4.WithLeaseTime(tc.lease))
			}
			if tc.t1 != 0 {
				mods = append(mods, dhcpv4.WithOption(dhcpv4.Option{Code: dhcpv4.OptionRenewTimeValue, Value: dhcpv4.Duration(time.Duration(tc.t1) * time.Second)}))
			}
			if got := timesOf(ack(t, "10.0.0.1", mods...)); got.renew != tc.renew || got.expiry != tc.expiry {
				t.Errorf("got %+v", got)
			}
		})
	}
}

func TestRoutesOf(t *testing.T) {
	gw := net.IPv4(10, 0, 0, 254)
	_, all, _ := net.ParseCIDR("0.0.0.0/0")
	_, lan, _ := net.ParseCIDR("10.9.0.0/16")
	if r := routesOf(ack(t, "10.0.0.1", dhcpv4.WithRouter(gw))); len(r) != 1 || !r[0].Gw.Equal(gw) || r[0].Dst.String() != "0.0.0.0/0" {
		t.Errorf("router: %v", r)
	}
	classless := dhcpv4.WithOption(dhcpv4.OptClasslessStaticRoute(&dhcpv4.Route{Dest: all, Router: net.IPv4(10, 0, 0, 1)}, &dhcpv4.Route{Dest: lan, Router: net.IPv4zero}))
	if r := routesOf(ack(t, "10.0.0.2", dhcpv4.WithRouter(gw), classless)); len(r) != 2 || !r[0].Gw.Equal(net.IPv4(10, 0, 0, 1)) || r[1].Gw != nil {
		t.Errorf("classless: %v", r)
	}
	if r := routesOf(ack(t, "10.0.0.1")); len(r) != 0 {
		t.Errorf("none: %v", r)
	}
}

func TestResolvConf(t *testing.T) {
	a := resolverOf(ack(t, "10.0.0.1", dhcpv4.WithDNS(net.IPv4(10, 0, 0, 53), net.IPv4zero, net.IPv4(10, 0, 0, 54)), dhcpv4.WithOption(dhcpv4.OptDomainName("lan.example."))))
	evil := resolverOf(ack(t, "10.0.0.1", dhcpv4.WithDNS(net.IPv4(10, 0, 0, 53), net.IPv4(1, 1, 1, 1), net.IPv4(2, 2, 2, 2)), dhcpv4.WithOption(dhcpv4.OptDomainName("x\nnameserver 6.6.6.6"))))
	got := string(resolvConf(map[int]resolver{3: evil, 2: a}))
	want := "search lan.example\nnameserver 10.0.0.53\nnameserver 10.0.0.54\nnameserver 1.1.1.1\n"
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	dir := t.TempDir()
	m := New(Config{ResolvConf: dir + "/resolv.conf"})
	if err := m.setResolver(2, a); err != nil {
		t.Fatal(err)
	}
	if err := m.setResolver(2, resolver{}); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(dir + "/resolv.conf"); err != nil || len(b) != 0 {
		t.Errorf("after the lease: %q, %v", b, err)
	}
}

// Whatever a server sends, what is made of it is an address that a node can have, and lines of one kind.
func FuzzAck(f *testing.F) {
	f.Add(ack(f, "10.0.2.15", dhcpv4.WithNetmask(net.CIDRMask(24, 32)), dhcpv4.WithRouter(net.IPv4(10, 0, 2, 2)), dhcpv4.WithDNS(net.IPv4(10, 0, 2, 3)), dhcpv4.WithLeaseTime(86400)).ToBytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := dhcpv4.FromBytes(b)
		if err != nil {
			return
		}
		if n, err := addressOf(p); err == nil {
			if ip, ok := netip.AddrFromSlice(n.IP); !ok || ip.IsLoopback() || ip.IsMulticast() || ip.IsUnspecified() {
				t.Fatalf("address %v", n)
			}
		}
		if x := timesOf(p); x.renew <= 0 || x.expiry < x.renew {
			t.Fatalf("times %+v", x)
		}
		for _, r := range routesOf(p) {
			if r.Dst == nil {
				t.Fatal("a route to nowhere")
			}
		}
		for _, line := range strings.Split(string(resolvConf(map[int]resolver{1: resolverOf(p)})), "\n") {
			if line != "" && !strings.HasPrefix(line, "nameserver ") && !strings.HasPrefix(line, "search ") {
				t.Fatalf("line %q", line)
			}
		}
	})
}
