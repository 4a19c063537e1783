package network

import (
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"kingpost/internal/mesh"
)

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
	const sec = time.Second
	for _, tc := range []struct {
		name                  string
		lease, t1, t2         uint32 // seconds, 0 for absent
		renew, rebind, expiry time.Duration
	}{
		{"nothing said", 0, 0, 0, 1800 * sec, 3150 * sec, time.Hour},
		{"lease", 7200, 0, 0, 3600 * sec, 6300 * sec, 7200 * sec},
		{"T1 and T2", 7200, 600, 1200, 600 * sec, 1200 * sec, 7200 * sec},
		{"T1 after the end", 800, 7200, 0, 350 * sec, 700 * sec, 800 * sec},
		{"T2 after the end", 800, 0, 7200, 400 * sec, 700 * sec, 800 * sec},
		{"T2 before T1", 800, 400, 300, 150 * sec, 300 * sec, 800 * sec},
		{"a second", 1, 0, 0, sec, sec / 8 * 7, sec},
		{"infinite", 0xffffffff, 0, 0, 0xffffffff * sec / 2, 0xffffffff * sec / 8 * 7, 0xffffffff * sec},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var mods []dhcpv4.Modifier
			for code, v := range map[dhcpv4.OptionCode]uint32{dhcpv4.OptionIPAddressLeaseTime: tc.lease, dhcpv4.OptionRenewTimeValue: tc.t1, dhcpv4.OptionRebindingTimeValue: tc.t2} {
				if v != 0 {
					mods = append(mods, dhcpv4.WithOption(dhcpv4.Option{Code: code, Value: dhcpv4.Duration(time.Duration(v) * sec)}))
				}
			}
			if got := timesOf(ack(t, "10.0.0.1", mods...)); got != (times{tc.renew, tc.rebind, tc.expiry}) {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// Attempts to renew come often enough to be of use, never in a row without a pause, and never after the end.
func TestRetry(t *testing.T) {
	for _, expiry := range []time.Duration{minLease, time.Minute, time.Hour, 1000 * time.Hour} {
		x := times{expiry / 2, expiry / 8 * 7, expiry}
		age, n := x.renew, 0
		for age < expiry {
			d := x.retry(age)
			if d < leastRetry/2 {
				t.Fatalf("lease of %s: %s after %s", expiry, d, age)
			}
			age += d
			n++
		}
		if n < 3 || n > 100 || age > expiry+leastRetry {
			t.Errorf("lease of %s: %d attempts, the last at %s", expiry, n, age)
		}
	}
}

func TestMerge(t *testing.T) {
	old := ack(t, "10.0.0.1", dhcpv4.WithRouter(net.IPv4(10, 0, 0, 254)), dhcpv4.WithDNS(net.IPv4(10, 0, 0, 53)))
	got := merge(ack(t, "10.0.0.1", dhcpv4.WithDNS(net.IPv4(10, 0, 0, 54))), old)
	if len(got.Router()) != 1 || len(got.DNS()) != 1 || got.DNS()[0].String() != "10.0.0.54" {
		t.Errorf("renewed: %v", got)
	}
	if got := merge(ack(t, "10.0.0.2"), old); len(got.Router()) != 0 {
		t.Errorf("another address keeps the router of the old one: %v", got)
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
	m, err := New(Config{ResolvConf: dir + "/resolv.conf", Settings: mesh.NetworkConfig{DNS: []string{"10.9.0.1"}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		r    resolver
		ntp  []string
		want string
	}{
		{a, []string{"10.0.0.1"}, "search lan.example\nnameserver 10.9.0.1\nnameserver 10.0.0.53\nnameserver 10.0.0.54\n"},
		{resolver{}, nil, "nameserver 10.9.0.1\n"},
	} {
		changed := m.Changed()
		if err := m.offers(2, step.r, step.ntp); err != nil {
			t.Fatal(err)
		}
		select {
		case <-changed:
		default:
			t.Error("nobody is told")
		}
		if b, err := os.ReadFile(dir + "/resolv.conf"); err != nil || string(b) != step.want {
			t.Errorf("got %q, %v", b, err)
		}
		if got, from := m.TimeServers(); !slices.Equal(got, step.ntp) || from != "DHCP" {
			t.Errorf("time servers %q from %s", got, from)
		}
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
		if x := timesOf(p); x.expiry >= minLease && (x.renew <= 0 || x.rebind < x.renew || x.expiry < x.rebind) {
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
