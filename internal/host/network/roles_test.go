package network

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"kingpost/internal/mesh"
)

func TestRoles(t *testing.T) {
	off := false
	eth0 := &linkInfo{index: 2, name: "eth0", mac: "52:54:00:00:00:01", driver: "virtio_net", device: true}
	eth1 := &linkInfo{index: 3, name: "eth1", mac: "52:54:00:00:00:02", driver: "virtio_net", device: true}
	bond0 := &linkInfo{index: 9, name: "bond0"}
	fake := &linkInfo{index: 10, name: "eth7", mac: "52:54:00:00:00:07", driver: "virtio_net"} // of a container
	sel := func(name, mac, driver string) *mesh.LinkSelector {
		return &mesh.LinkSelector{Name: name, MAC: mac, Driver: driver}
	}
	addr := []string{"10.0.0.5/24"}
	for _, tc := range []struct {
		name  string
		cfg   mesh.NetworkConfig
		links []*linkInfo
		want  string // link=what, in order
		warn  string
	}{
		{"nothing said", mesh.NetworkConfig{}, []*linkInfo{eth0, eth1, fake}, "eth0=dhcp eth1=dhcp", ""},
		{"no DHCP", mesh.NetworkConfig{DHCP: &off}, []*linkInfo{eth0}, "eth0=up", ""},
		{"by name", mesh.NetworkConfig{Links: []mesh.LinkConfig{{Match: sel("eth1", "", ""), Addresses: addr}}}, []*linkInfo{eth0, eth1}, "eth0=dhcp eth1=10.0.0.5/24", ""},
		{"by MAC, written otherwise", mesh.NetworkConfig{Links: []mesh.LinkConfig{{Match: sel("", "52-54-00-00-00-02", ""), Addresses: addr}}}, []*linkInfo{eth0, eth1}, "eth0=dhcp eth1=10.0.0.5/24", ""},
		{"by driver, two", mesh.NetworkConfig{Links: []mesh.LinkConfig{{Match: sel("", "", "virtio_net"), Addresses: addr}}}, []*linkInfo{eth0, eth1, fake}, "eth0=up eth1=up", "selects eth0 and eth1"},
		{"by driver, two without addresses", mesh.NetworkConfig{DHCP: &off, Links: []mesh.LinkConfig{{Match: sel("", "", "virtio_net"), DHCP: new(true)}}}, []*linkInfo{eth0, eth1}, "eth0=dhcp eth1=dhcp", ""},
		{"the first entry counts", mesh.NetworkConfig{Links: []mesh.LinkConfig{{Match: sel("eth0", "", ""), DHCP: &off}, {Match: sel("", "", "virtio_net"), Addresses: addr}}}, []*linkInfo{eth0, eth1}, "eth0=up eth1=10.0.0.5/24", ""},
		{"none", mesh.NetworkConfig{Links: []mesh.LinkConfig{{Match: sel("eth5", "", ""), Addresses: addr}}}, []*linkInfo{eth0}, "eth0=dhcp", "no link with name eth5; it has eth0 (mac 52:54:00:00:00:01, driver virtio_net)"},
		{"address and DHCP", mesh.NetworkConfig{Links: []mesh.LinkConfig{{Match: sel("eth0", "", ""), Addresses: addr, DHCP: new(true)}}}, []*linkInfo{eth0}, "eth0=10.0.0.5/24+dhcp", ""},
		{"an IPv6 address leaves DHCP", mesh.NetworkConfig{Links: []mesh.LinkConfig{{Match: sel("eth0", "", ""), Addresses: []string{"fd00::5/64"}}}}, []*linkInfo{eth0}, "eth0=fd00::5/64+dhcp", ""},
		{"bond", mesh.NetworkConfig{Links: []mesh.LinkConfig{{Name: "bond0", Bond: &mesh.BondConfig{Links: []mesh.LinkSelector{*sel("eth0", "", ""), *sel("eth1", "", "")}}, Addresses: addr}}}, []*linkInfo{eth0, eth1, bond0}, "eth0=in bond0 eth1=in bond0 bond0=10.0.0.5/24", ""},
		{"in two bonds", mesh.NetworkConfig{Links: []mesh.LinkConfig{
			{Name: "bond0", Bond: &mesh.BondConfig{Links: []mesh.LinkSelector{*sel("eth0", "", "")}}},
			{Name: "bond1", Bond: &mesh.BondConfig{Links: []mesh.LinkSelector{*sel("", "", "virtio_net")}}},
		}}, []*linkInfo{eth0, eth1, bond0}, "eth0=in bond0 eth1=in bond1 bond0=dhcp", "eth0 is in the bond bond0 already"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, err := parse(tc.cfg)
			if err != nil {
				t.Fatal(err)
			}
			back := slices.Clone(tc.links)
			slices.Reverse(back)
			for _, order := range [][]*linkInfo{tc.links, back} {
				links := map[int]*linkInfo{}
				for _, l := range order {
					links[l.index] = l
				}
				roles, warnings := s.roles(links)
				var got []string
				for _, l := range sorted(links) {
					r, ok := roles[l.index]
					if !ok {
						continue
					}
					var what []string
					if r.entry != nil {
						for _, a := range r.entry.addrs {
							what = append(what, a.String())
						}
					}
					if r.dhcp {
						what = append(what, "dhcp")
					}
					switch {
					case r.bond != "":
						what = []string{"in " + r.bond}
					case what == nil:
						what = []string{"up"}
					}
					got = append(got, fmt.Sprintf("%s=%s", l.name, strings.Join(what, "+")))
				}
				if g := strings.Join(got, " "); g != tc.want {
					t.Errorf("got %s", g)
				}
				if w := strings.Join(warnings, "\n"); (w == "") != (tc.warn == "") || !strings.Contains(w, tc.warn) {
					t.Errorf("warnings %q", w)
				}
			}
		})
	}
}
