package mesh

// NetworkConfig is the network of a node. Without it every Ethernet link asks a DHCP server.
type NetworkConfig struct {
	// DHCP is for the links that Links does not name. Nil is "not said", which means true.
	DHCP  *bool        `yaml:"dhcp,omitempty" json:"dhcp,omitempty"`
	Links []LinkConfig `yaml:"links,omitempty" json:"links,omitempty"`
	// DNS are addresses of name servers, at most three; they come before those of DHCP servers.
	DNS []string `yaml:"dns,omitempty" json:"dns,omitempty"`
	// Search are domains that short names are looked up in.
	Search []string `yaml:"search,omitempty" json:"search,omitempty"`
	// NTP are time servers, names or addresses; they count instead of those of DHCP servers.
	NTP []string `yaml:"ntp,omitempty" json:"ntp,omitempty"`
}

// LinkConfig is one link. Exactly one of Match, Bond and VLAN is set.
type LinkConfig struct {
	// Match selects links that the machine has.
	Match *LinkSelector `yaml:"match,omitempty" json:"match,omitempty"`
	// Name is how the bond or VLAN is called that this makes.
	Name string      `yaml:"name,omitempty" json:"name,omitempty"`
	Bond *BondConfig `yaml:"bond,omitempty" json:"bond,omitempty"`
	VLAN *VLANConfig `yaml:"vlan,omitempty" json:"vlan,omitempty"`

	// DHCP is nil for "not said": then a link with an IPv4 address of its own has none, and any other one
	// has it where NetworkConfig.DHCP says so.
	DHCP *bool `yaml:"dhcp,omitempty" json:"dhcp,omitempty"`
	// Addresses are written with their prefix length, "192.168.1.20/24" or "fd00::20/64".
	Addresses []string `yaml:"addresses,omitempty" json:"addresses,omitempty"`
	// Gateways are the default routes, at most one of each family.
	Gateways []string      `yaml:"gateways,omitempty" json:"gateways,omitempty"`
	Routes   []RouteConfig `yaml:"routes,omitempty" json:"routes,omitempty"`
	// MTU is the largest packet in bytes; 0 leaves it as it is.
	MTU int `yaml:"mtu,omitempty" json:"mtu,omitempty"`
	// SLAAC says whether IPv6 addresses and routes are taken from routers (RFC 4862). Nil means true.
	SLAAC *bool `yaml:"slaac,omitempty" json:"slaac,omitempty"`
}

// LinkSelector names links; every field that is set must match.
type LinkSelector struct {
	Name   string `yaml:"name,omitempty" json:"name,omitempty"`     // the kernel's, "eth0", or of a bond
	MAC    string `yaml:"mac,omitempty" json:"mac,omitempty"`       // the card's own, "52:54:00:12:34:56"
	Driver string `yaml:"driver,omitempty" json:"driver,omitempty"` // "virtio_net", "igb"
}

// BondConfig makes one link of several.
type BondConfig struct {
	// Mode is a BondModes name; empty is "active-backup", which needs nothing of the switch.
	Mode  string         `yaml:"mode,omitempty" json:"mode,omitempty"`
	Links []LinkSelector `yaml:"links" json:"links"`
}

// VLANConfig makes a link of the frames of another one that carry a tag (IEEE 802.1Q).
type VLANConfig struct {
	ID   int          `yaml:"id" json:"id"` // 1 to 4094
	Link LinkSelector `yaml:"link" json:"link"`
}

// RouteConfig is a route.
type RouteConfig struct {
	To     string `yaml:"to" json:"to"`                             // a prefix; "0.0.0.0/0" and "::/0" are everything
	Via    string `yaml:"via,omitempty" json:"via,omitempty"`       // a router; empty: what is on the link itself
	Metric int    `yaml:"metric,omitempty" json:"metric,omitempty"` // the lowest wins; 0 is the kernel's own default
}

// BondModes are the modes of a bond (Linux, Documentation/networking/bonding.rst).
func BondModes() []string {
	return []string{"active-backup", "802.3ad", "balance-rr", "balance-xor", "broadcast", "balance-tlb", "balance-alb"}
}

// Bounds of NetworkConfig.
const (
	MaxLinks     = 64
	MaxAddresses = 32 // of one link
	MaxRoutes    = 64 // of one link
	MaxDNS       = 3  // resolv.conf(5) counts no more
	MaxSearch    = 6
	MaxNTP       = 8
)
