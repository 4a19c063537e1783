package privnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// ensureBridge makes the bridge, with its addresses, if it is not there.
func ensureBridge(six bool) (netlink.Link, error) {
	link, err := netlink.LinkByName(Bridge)
	if err != nil {
		la := netlink.NewLinkAttrs()
		la.Name = Bridge
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: la}); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, fmt.Errorf("make the bridge %s: %w", Bridge, err)
		}
		if link, err = netlink.LinkByName(Bridge); err != nil {
			return nil, fmt.Errorf("make the bridge %s: %w", Bridge, err)
		}
	}
	addrs := []string{net4}
	if six {
		addrs = append(addrs, net6)
	}
	for _, text := range addrs {
		addr, err := netlink.ParseAddr(text)
		if err != nil {
			return nil, err
		}
		// Nobody else can have it, so nobody has to be asked: it can be used at once.
		addr.Flags = unix.IFA_F_NODAD
		if err := netlink.AddrReplace(link, addr); err != nil {
			return nil, fmt.Errorf("give %s the address %s: %w", Bridge, text, err)
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return nil, fmt.Errorf("set %s up: %w", Bridge, err)
	}
	return link, nil
}

// connect joins the network namespace of process pid to the bridge by a pair of links. The pair ends with the namespace.
func connect(br netlink.Link, a netip.Addr, pid int, six bool) error {
	la := netlink.NewLinkAttrs()
	// At most 15 characters, unique among the living by the process.
	la.Name = "kp" + strconv.Itoa(pid)
	la.MasterIndex = br.Attrs().Index
	peer := "kq" + strconv.Itoa(pid)
	veth := &netlink.Veth{LinkAttrs: la, PeerName: peer, PeerNamespace: netlink.NsPid(pid)}
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("make the pair of links: %w", err)
	}
	// Where the machine filters bridged packets too (br_netfilter), a container that reaches itself by a published port
	// is translated on the bridge, and answered by the link that it came by.
	err := netlink.LinkSetHairpin(veth, true)
	if err == nil {
		err = netlink.LinkSetUp(veth)
	}
	if err == nil {
		err = inside(a, pid, peer, six)
	}
	if err != nil {
		return errors.Join(err, netlink.LinkDel(veth))
	}
	return nil
}

// inside sets up the container's end.
func inside(a netip.Addr, pid int, peer string, six bool) error {
	ns, err := netns.GetFromPid(pid)
	if err != nil {
		return fmt.Errorf("open the network of process %d: %w", pid, err)
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("enter the network of process %d: %w", pid, err)
	}
	defer h.Close()
	lo, err := h.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := h.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set up lo: %w", err)
	}
	in, err := h.LinkByName(peer)
	if err != nil {
		return err
	}
	if err := h.LinkSetName(in, "eth0"); err != nil {
		return fmt.Errorf("name the link: %w", err)
	}
	type way struct {
		addr, gateway netip.Addr
		bits          int
	}
	ways := []way{{a, Gateway(), netip.MustParsePrefix(net4).Bits()}}
	if six {
		ways = append(ways, way{Address6(a), Gateway6(), netip.MustParsePrefix(net6).Bits()})
	}
	for _, w := range ways {
		ip := &netlink.Addr{IPNet: &net.IPNet{IP: w.addr.AsSlice(), Mask: net.CIDRMask(w.bits, w.addr.BitLen())}, Flags: unix.IFA_F_NODAD}
		if err := h.AddrAdd(in, ip); err != nil {
			return fmt.Errorf("give it the address %s: %w", w.addr, err)
		}
	}
	if err := h.LinkSetUp(in); err != nil {
		return fmt.Errorf("set up its link: %w", err)
	}
	for _, w := range ways {
		if err := h.RouteAdd(&netlink.Route{LinkIndex: in.Attrs().Index, Gw: w.gateway.AsSlice()}); err != nil {
			return fmt.Errorf("give it the way out by %s: %w", w.gateway, err)
		}
	}
	return nil
}
