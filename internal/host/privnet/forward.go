package privnet

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"

	"kingpost/internal/mesh"
)

// forward has the kernel route between the bridge and the rest. The settings are documented in the kernel's
// networking/ip-sysctl.rst.
func (n *Network) forward(six bool) error {
	set := []struct{ name, value string }{
		// Where the node itself connects to a published port by 127.0.0.1, the packet leaves by the bridge. What a
		// container sends there by itself is dropped by the rules.
		{"ipv4/conf/" + Bridge + "/route_localnet", "1"},
		{"ipv4/ip_forward", "1"},
	}
	if six {
		// A node that routes takes no more router advertisements, unless it is told to. It still needs its own.
		if err := n.keepAdvertisements(); err != nil {
			return err
		}
		set = append(set, []struct{ name, value string }{
			{"ipv6/conf/" + Bridge + "/accept_ra", "0"},
			{"ipv6/conf/all/forwarding", "1"},
		}...)
	}
	for _, s := range set {
		if err := n.setting(s.name, s.value); err != nil {
			return err
		}
	}
	return nil
}

// routes says whether the machine routes.
func (n *Network) routes() bool {
	b, err := os.ReadFile(filepath.Join(n.cfg.Proc, "sys/net/ipv4/ip_forward"))
	return err == nil && strings.TrimSpace(string(b)) == "1"
}

// setting writes a setting below net/ that has another value.
func (n *Network) setting(name, value string) error {
	path := filepath.Join(n.cfg.Proc, "sys/net", name)
	b, err := os.ReadFile(path)
	if err == nil && strings.TrimSpace(string(b)) == value {
		return nil
	}
	if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
		return fmt.Errorf("set net/%s to %s: %w", name, value, err)
	}
	return nil
}

// keepAdvertisements turns every accept_ra of 1 into 2: also when the node routes.
func (n *Network) keepAdvertisements() error {
	links, err := filepath.Glob(filepath.Join(n.cfg.Proc, "sys/net/ipv6/conf/*/accept_ra"))
	if err != nil {
		return err
	}
	for _, path := range links {
		b, err := os.ReadFile(path)
		if err != nil || strings.TrimSpace(string(b)) != "1" {
			continue // gone, or turned off or on by somebody
		}
		if err := os.WriteFile(path, []byte("2"), 0o644); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("keep the routers of %s: %w", filepath.Base(filepath.Dir(path)), err)
		}
	}
	return nil
}

// forgetDatagrams ends what the kernel remembers of datagrams to published ports: a sender that began while nothing was
// published, and goes on sending, would else never reach the container. Connections begin anew by themselves.
func (n *Network) forgetDatagrams(ports []mesh.Port) {
	const protocolUDP = 17
	for _, p := range ports {
		if p.Protocol != "udp" {
			continue
		}
		f := &netlink.ConntrackFilter{}
		if err := errors.Join(f.AddProtocol(protocolUDP), f.AddPort(netlink.ConntrackOrigDstPort, uint16(p.Host))); err != nil {
			n.cfg.Log.WithError(err).Warn("forget datagrams to a published port")
			continue
		}
		for _, family := range []netlink.InetFamily{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			if _, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, f); err != nil {
				n.cfg.Log.WithError(err).WithField("port", p.Host).Warn("forget datagrams to a published port")
			}
		}
	}
}
