// Package network brings a node onto its networks: every Ethernet link up, an IPv4 address by DHCP
// (RFC 2131) on each, resolv.conf from what the servers say; IPv6 is left to the kernel (SLAAC).
//
// It never blocks anybody: a node without a network works all the same, and one that gets its network
// later starts to use it then. It never touches a link without a device behind it, since those belong
// to containers.
//
// Start with Manager.Run; lease.go is one link's life, apply.go what a lease changes in the kernel.
package network

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Config is what a Manager is made of.
type Config struct {
	DHCP bool
	// Hostname is told to the DHCP servers; empty: nothing is.
	Hostname   func() string
	ResolvConf string // "/run/resolv.conf"
	Sys        string // "/sys"
	Proc       string // "/proc"
	Log        logrus.FieldLogger
	Now        func() time.Time
}

// Manager keeps the links of a node.
type Manager struct {
	cfg Config

	mu    sync.Mutex
	links map[int]*link // by index
	dns   map[int]resolver
}

// New makes a Manager; nothing happens until Run.
func New(cfg Config) *Manager {
	return &Manager{cfg: cfg, links: map[int]*link{}, dns: map[int]resolver{}}
}

// link is one Ethernet link that is being looked after.
type link struct {
	name   string
	index  int
	cancel context.CancelFunc
	kick   chan struct{} // the cable was plugged in
	up     bool          // it has a carrier
}

// Run looks after the links until ctx is done; addresses then stay as they are.
func (m *Manager) Run(ctx context.Context) error {
	if lo, err := netlink.LinkByName("lo"); err == nil {
		if err := netlink.LinkSetUp(lo); err != nil {
			m.cfg.Log.WithError(err).Warn("network: bring up lo")
		}
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	for ctx.Err() == nil {
		if err := m.watch(ctx, &wg); err != nil && ctx.Err() == nil {
			m.cfg.Log.WithError(err).Warn("network: the watch on links ended; it is started again")
			select {
			case <-ctx.Done():
			case <-time.After(5 * time.Second):
			}
		}
	}
	return nil
}

// watch follows the kernel's messages about links, first of those that exist.
func (m *Manager) watch(ctx context.Context, wg *sync.WaitGroup) error {
	updates := make(chan netlink.LinkUpdate, 16)
	done := make(chan struct{})
	var failed error
	err := netlink.LinkSubscribeWithOptions(updates, done, netlink.LinkSubscribeOptions{
		ListExisting:  true,
		ErrorCallback: func(err error) { failed = err },
	})
	if err != nil {
		close(done)
		return fmt.Errorf("watch the links: %w", err)
	}
	defer func() {
		close(done)
		for range updates { // until the reader has ended
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case u, ok := <-updates:
			if !ok {
				return fmt.Errorf("watch the links: %w", failed)
			}
			m.update(ctx, wg, u)
		}
	}
}

// update takes one message about one link.
func (m *Manager) update(ctx context.Context, wg *sync.WaitGroup, u netlink.LinkUpdate) {
	a := u.Attrs()
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.links[a.Index]
	if u.Header.Type == unix.RTM_DELLINK {
		if l != nil {
			l.cancel()
			delete(m.links, a.Index)
		}
		return
	}
	if l == nil {
		if !m.ours(a) {
			return
		}
		l = &link{name: a.Name, index: a.Index, kick: make(chan struct{}, 1)}
		lctx, cancel := context.WithCancel(ctx)
		l.cancel = cancel
		m.links[a.Index] = l
		m.prepare(a.Name)
		if err := netlink.LinkSetUp(u.Link); err != nil {
			m.cfg.Log.WithError(err).WithField("link", a.Name).Warn("network: bring the link up")
		}
		if m.cfg.DHCP {
			wg.Go(func() { m.keepLease(lctx, l, a.HardwareAddr) })
		}
	}
	up := a.RawFlags&unix.IFF_LOWER_UP != 0
	if up != l.up {
		l.up = up
		m.cfg.Log.WithFields(logrus.Fields{"link": l.name, "carrier": up}).Info("network: link")
		if up {
			select {
			case l.kick <- struct{}{}:
			default:
			}
		}
	}
}

// ours says whether a link is Ethernet with a device behind it.
func (m *Manager) ours(a *netlink.LinkAttrs) bool {
	if a.EncapType != "ether" || len(a.HardwareAddr) != 6 {
		return false
	}
	_, err := os.Stat(filepath.Join(m.cfg.Sys, "class/net", a.Name, "device"))
	return err == nil
}

// prepare lets the kernel do IPv6 by router advertisements, also where forwarding is on for containers.
func (m *Manager) prepare(name string) {
	path := filepath.Join(m.cfg.Proc, "sys/net/ipv6/conf", name, "accept_ra")
	if err := os.WriteFile(path, []byte("2\n"), 0); err != nil && !os.IsNotExist(err) {
		m.cfg.Log.WithError(err).WithField("link", name).Info("network: IPv6 by router advertisements stays as the kernel has it")
	}
}

// Addresses lists the node's addresses on its own links, without link-local ones, sorted.
func (m *Manager) Addresses() []string {
	var out []string
	ifs, err := net.Interfaces()
	if err != nil {
		return nil
	}
	for _, i := range ifs {
		if i.Flags&net.FlagLoopback != 0 {
			continue
		}
		if _, err := os.Stat(filepath.Join(m.cfg.Sys, "class/net", i.Name, "device")); err != nil {
			continue
		}
		addrs, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
				out = append(out, n.IP.String())
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
