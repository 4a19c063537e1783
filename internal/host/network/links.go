package network

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/sirupsen/logrus"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// bondMonitor is how often a bond looks whether its links have a carrier, in milliseconds.
const bondMonitor = 100

// reconcile brings the links to what the settings say. It is level-triggered: whatever has changed, everything is looked
// at, and what is as it should be is left alone.
func (m *Manager) reconcile(ctx context.Context, wg *sync.WaitGroup) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.makeLinks(ctx)
	roles, warnings := m.settings.roles(m.known)
	m.warn(warnings)
	for index, l := range m.links {
		if r, ok := roles[index]; !ok || m.known[index] == nil || r != l.role {
			m.drop(l)
		}
	}
	for _, k := range sorted(m.known) {
		r, ok := roles[k.index]
		if !ok {
			continue
		}
		if r.bond != "" {
			m.enslave(k, r.bond)
		}
		l := m.links[k.index]
		if l == nil {
			l = &link{name: k.name, index: k.index, role: r, kick: make(chan struct{}, 1), done: make(chan struct{})}
			m.links[k.index] = l
			lctx, cancel := context.WithCancel(ctx)
			l.cancel = cancel
			if r.bond == "" {
				m.start(l)
			}
			if r.bond == "" && r.dhcp {
				wg.Go(func() {
					defer close(l.done)
					m.keepLease(lctx, l)
				})
			} else {
				close(l.done)
			}
		}
		if r.bond == "" && k.carrier {
			m.static(l) // what a link loses with its carrier comes back
		}
		if k.carrier && !l.carrier {
			select {
			case l.kick <- struct{}{}:
			default:
			}
		}
		l.carrier = k.carrier
	}
	m.tell()
}

// drop ends what is done with a link, and takes away what was given to it.
func (m *Manager) drop(l *link) {
	l.cancel()
	m.mu.Unlock() // who holds its lease may wait for the lock
	<-l.done
	m.withdraw(l)
	m.mu.Lock()
	delete(m.links, l.index)
	delete(m.dns, l.index)
	delete(m.ntp, l.index)
}

// start brings a link up and gives it what is written for it.
func (m *Manager) start(l *link) {
	log := m.cfg.Log.WithField("link", l.name)
	nl, err := netlink.LinkByIndex(l.index)
	if err != nil {
		log.WithError(err).Warn("network: find the link")
		return
	}
	e := l.role.entry
	m.prepare(l.name, e == nil || e.slaac)
	if e != nil && e.mtu != 0 {
		if err := netlink.LinkSetMTU(nl, e.mtu); err != nil {
			m.made[e.place+" mtu"] = fmt.Sprintf("%s: the MTU of %s cannot be %d: %v", e.place, l.name, e.mtu, err)
		} else {
			delete(m.made, e.place+" mtu")
		}
	}
	if err := netlink.LinkSetUp(nl); err != nil {
		log.WithError(err).Warn("network: bring the link up")
	}
	m.static(l)
}

// prepare lets the kernel do IPv6 by router advertisements, also where forwarding is on for containers, or not.
func (m *Manager) prepare(name string, slaac bool) {
	value := "2\n"
	if !slaac {
		value = "0\n"
	}
	path := filepath.Join(m.cfg.Proc, "sys/net/ipv6/conf", name, "accept_ra")
	if err := os.WriteFile(path, []byte(value), 0); err != nil && !os.IsNotExist(err) {
		m.cfg.Log.WithError(err).WithField("link", name).Info("network: IPv6 by router advertisements stays as the kernel has it")
	}
}

// makeLinks makes bonds and VLANs that are not there yet.
func (m *Manager) makeLinks(ctx context.Context) {
	for i := range m.settings.entries {
		e := &m.settings.entries[i]
		if !e.made() {
			continue
		}
		have := false
		for _, l := range m.known {
			have = have || l.name == e.name
		}
		if have {
			delete(m.made, e.place)
			continue
		}
		if err := m.makeLink(ctx, e); err != nil && !errors.Is(err, os.ErrExist) {
			why := fmt.Sprintf("%s: %s cannot be made: %v", e.place, e.name, err)
			if m.made[e.place] != why {
				m.cfg.Log.Warn("network: " + why)
			}
			m.made[e.place] = why
			continue
		}
		delete(m.made, e.place)
	}
}

// unmade says whether there is something that could not be made.
func (m *Manager) unmade() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.made) > 0
}

func (m *Manager) makeLink(ctx context.Context, e *entry) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = e.name
	if e.bond != nil {
		b := netlink.NewLinkBond(attrs)
		b.Mode = e.bond.mode
		b.Miimon = bondMonitor
		return m.add(ctx, b, "bonding")
	}
	on := m.settings.find(e.vlan.on, m.known)
	switch len(on) {
	case 1:
	case 0:
		return fmt.Errorf("this machine has no link with %s; it has %s", e.vlan.on, describe(m.known))
	default:
		return fmt.Errorf("%s selects %s and %s; say which by its mac", e.vlan.on, on[0].name, on[1].name)
	}
	attrs.ParentIndex = on[0].index
	return m.add(ctx, &netlink.Vlan{LinkAttrs: attrs, VlanId: e.vlan.id, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q}, "8021q")
}

// add makes a link. Its kernel module is loaded where the kernel does not know the kind yet: there is no modprobe that it
// could start by itself.
func (m *Manager) add(ctx context.Context, l netlink.Link, module string) error {
	err := netlink.LinkAdd(l)
	if errors.Is(err, unix.EOPNOTSUPP) && m.cfg.Modules != nil {
		if err := m.cfg.Modules(ctx, module); err != nil {
			return err
		}
		err = netlink.LinkAdd(l)
	}
	if errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("the kernel does not know %ss: %w; is the kernel module %s in the release?", l.Type(), err, module)
	}
	return err
}

// enslave puts a link into its bond.
func (m *Manager) enslave(k *linkInfo, name string) {
	var b *linkInfo
	for _, l := range m.known {
		if l.name == name {
			b = l
		}
	}
	if b == nil || k.master == b.index {
		return
	}
	key := name + " " + k.name
	err := func() error {
		nl, err := netlink.LinkByIndex(k.index)
		if err != nil {
			return err
		}
		master, err := netlink.LinkByIndex(b.index)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetDown(nl); err != nil { // a bond takes no link that is up
			return err
		}
		if err := netlink.LinkSetMaster(nl, master); err != nil {
			return err
		}
		return netlink.LinkSetUp(nl)
	}()
	if err != nil {
		m.made[key] = fmt.Sprintf("network: %s cannot be put into %s: %v", k.name, name, err)
		m.cfg.Log.Warn(m.made[key])
		return
	}
	delete(m.made, key)
	m.cfg.Log.WithFields(logrus.Fields{"link": k.name, "bond": name}).Info("network: link is in its bond")
}

// warn keeps the warnings, and logs those that are new.
func (m *Manager) warn(now []string) {
	for _, w := range now {
		if !slices.Contains(m.warnings, w) {
			m.cfg.Log.Warn("network: " + w)
		}
	}
	m.warnings = now
}
