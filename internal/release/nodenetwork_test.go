package release

import (
	"strings"
	"testing"
)

const networkExample = `network:
  dhcp: false
  dns: [192.168.1.1, "fd00::1"]
  search: [lan.example]
  ntp: [time.example, 192.168.1.1]
  links:
    - match: { mac: "52:54:00:12:34:56" }
      addresses: [192.168.1.20/24, "fd00::20/64"]
      gateways: [192.168.1.1, "fe80::1"]
      routes: [{ to: 10.0.0.0/8, via: 192.168.1.254, metric: 50 }, { to: 172.16.0.0/12 }]
      mtu: 9000
      slaac: false
    - name: bond0
      bond: { mode: 802.3ad, links: [{ name: eth1 }, { mac: 52:54:00:12:34:57 }] }
    - name: lan20
      vlan: { id: 20, link: { name: bond0 } }
      dhcp: true
    - match: { driver: igb }
`

func TestNodeNetwork(t *testing.T) {
	c, err := ParseNodeConfig([]byte(networkExample))
	if err != nil {
		t.Fatal(err)
	}
	l := c.Network.Links
	if len(l) != 4 || l[0].Match.MAC != "52:54:00:12:34:56" || l[0].Routes[0].Metric != 50 || l[1].Bond.Links[1].MAC != "52:54:00:12:34:57" ||
		l[2].VLAN.ID != 20 || l[2].VLAN.Link.Name != "bond0" || !*l[2].DHCP || *l[0].SLAAC || l[0].MTU != 9000 {
		t.Errorf("got %+v", c.Network)
	}
}

// Every value that cannot be is refused, with its place and with what would be right.
func TestNodeNetworkRefuses(t *testing.T) {
	const eth0 = "    - match: { name: eth0 }\n"
	for name, c := range map[string]struct{ links, want, help string }{
		"no kind":               {"    - dhcp: true\n", "[3:11] network.links[0]", "exactly one of"},
		"two kinds":             {"    - match: { name: eth0 }\n      name: b\n      bond: { links: [{ name: eth1 }] }\n", "network.links[0]", "exactly one of"},
		"empty match":           {"    - match: {}\n", "network.links[0].match", "set name, mac or driver"},
		"unknown key":           {"    - match: { nam: eth0 }\n", "[3:16]", ""},
		"MAC":                   {"    - match: { mac: \"52:54:00\" }\n", "network.links[0].match", "write it as"},
		"multicast MAC":         {"    - match: { mac: \"01:00:5e:00:00:01\" }\n", "network.links[0].match", "write it as"},
		"driver":                {"    - match: { driver: ../x }\n", "network.links[0].match", "virtio_net"},
		"same twice":            {eth0 + eth0, "network.links[1].match", "put what both say into one"},
		"renaming":              {eth0 + "      name: lan\n", "[4:13] network.links[0].name", "match.name"},
		"bond without a name":   {"    - bond: { links: [{ name: eth0 }] }\n", "network.links[0].name", "needs a name"},
		"long name":             {"    - name: abcdefghijklmnop\n      bond: { links: [{ name: eth0 }] }\n", "[3:13] network.links[0].name", "at most 15"},
		"name with a slash":     {"    - name: a/b\n      bond: { links: [{ name: eth0 }] }\n", "network.links[0].name", "starts with a letter"},
		"our own name":          {"    - name: kingpost0\n      bond: { links: [{ name: eth0 }] }\n", "network.links[0].name", "taken"},
		"name twice":            {"    - name: b\n      bond: { links: [{ name: eth0 }] }\n    - name: b\n      vlan: { id: 1, link: { name: eth1 } }\n", "network.links[1].name", "too"},
		"bond mode":             {"    - name: b\n      bond: { mode: fast, links: [{ name: eth0 }] }\n", "network.links[0].bond.mode", "active-backup"},
		"bond of nothing":       {"    - name: b\n      bond: { links: [] }\n", "network.links[0].bond", "needs links"},
		"in bond twice":         {"    - name: b\n      bond: { links: [{ name: eth0 }, { name: eth0 }] }\n", "network.links[0].bond.links[1]", "one place only"},
		"in bond and alone":     {"    - name: b\n      bond: { links: [{ name: eth0 }] }\n" + eth0, "network.links[1].match", "give the bond"},
		"VLAN 0":                {"    - name: v\n      vlan: { id: 0, link: { name: eth0 } }\n", "network.links[0].vlan.id", "1 to 4094"},
		"VLAN 4095":             {"    - name: v\n      vlan: { id: 4095, link: { name: eth0 } }\n", "network.links[0].vlan.id", "1 to 4094"},
		"VLAN on nothing":       {"    - name: v\n      vlan: { id: 5 }\n", "network.links[0].vlan.link", "set name"},
		"VLAN on itself":        {"    - name: v\n      vlan: { id: 5, link: { name: v } }\n", "network.links[0].vlan.link", "itself"},
		"no prefix length":      {eth0 + "      addresses: [10.0.0.5]\n", "[4:19] network.links[0].addresses[0]", "192.168.1.20/24"},
		"network's address":     {eth0 + "      addresses: [10.0.0.0/24]\n", "network.links[0].addresses[0]", "another one of 10.0.0.0/24"},
		"broadcast address":     {eth0 + "      addresses: [10.0.1.255/23]\n", "network.links[0].addresses[0]", "another one of"},
		"loopback":              {eth0 + "      addresses: [127.0.0.1/8]\n", "network.links[0].addresses[0]", "no node"},
		"multicast":             {eth0 + "      addresses: [\"ff02::1/64\"]\n", "network.links[0].addresses[0]", "no node"},
		"mapped":                {eth0 + "      addresses: [\"::ffff:10.0.0.1/120\"]\n", "network.links[0].addresses[0]", "IPv4"},
		"address twice":         {eth0 + "      addresses: [10.0.0.5/24, 10.0.0.5/16]\n", "network.links[0].addresses[1]", "twice"},
		"gateway elsewhere":     {eth0 + "      addresses: [10.0.0.5/24]\n      gateways: [10.0.1.1]\n", "[5:18] network.links[0].gateways[0]", "on none of this link's networks"},
		"gateway is the node":   {eth0 + "      addresses: [10.0.0.5/24]\n      gateways: [10.0.0.5]\n", "network.links[0].gateways[0]", "own address"},
		"gateway with a length": {eth0 + "      addresses: [10.0.0.5/24]\n      gateways: [10.0.0.1/24]\n", "network.links[0].gateways[0]", "without a prefix length"},
		"two gateways":          {eth0 + "      addresses: [10.0.0.5/24]\n      gateways: [10.0.0.1, 10.0.0.2]\n", "network.links[0].gateways[1]", "metric"},
		"gateway alone":         {eth0 + "      gateways: [10.0.0.1]\n", "network.links[0].gateways[0]", "give the link an address"},
		"route to no prefix":    {eth0 + "      routes: [{ to: default }]\n", "network.links[0].routes[0].to", "0.0.0.0/0"},
		"route with host bits":  {eth0 + "      routes: [{ to: 10.0.0.1/8 }]\n", "network.links[0].routes[0].to", "write 10.0.0.0/8"},
		"route's families":      {eth0 + "      addresses: [10.0.0.5/24]\n      routes: [{ to: \"fd00::/8\", via: 10.0.0.1 }]\n", "network.links[0].routes[0].via", "another family"},
		"metric":                {eth0 + "      routes: [{ to: 10.0.0.0/8, metric: -1 }]\n", "network.links[0].routes[0].metric", "out of range"},
		"MTU":                   {eth0 + "      mtu: 100\n", "network.links[0].mtu", "from 576"},
		"MTU of IPv6":           {eth0 + "      addresses: [\"fd00::5/64\"]\n      mtu: 1000\n", "network.links[0].mtu", "from 1280"},
	} {
		_, err := ParseNodeConfig([]byte("network:\n  links:\n" + c.links))
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), c.help) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, c := range map[string]struct{ in, want string }{
		"four DNS":      {"dns: [10.0.0.1, 10.0.0.2, 10.0.0.3, 10.0.0.4]", "[1:17] network.dns"},
		"DNS by name":   {"dns: [ns.example]", "network.dns[0]"},
		"DNS twice":     {"dns: [10.0.0.1, 10.0.0.1]", "network.dns[1]"},
		"search":        {"search: [\"a b\"]", "network.search[0]"},
		"NTP port":      {"ntp: [\"time.example:123\"]", "network.ntp[0]"},
		"NTP URL":       {"ntp: [\"http://time.example\"]", "network.ntp[0]"},
		"NTP nine":      {"ntp: [a, b, c, d, e, f, g, h, i]", "network.ntp"},
		"links no list": {"links: { match: { name: eth0 } }", "[1:"},
	} {
		_, err := ParseNodeConfig([]byte("network: { " + c.in + " }\n"))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
