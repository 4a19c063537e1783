// Package network brings a node onto its networks as node.yaml says: every Ethernet link up; addresses, routes, VLANs
// and bonds that are written there; where nothing is, an IPv4 address by DHCP (RFC 2131); resolv.conf from both. IPv6
// router advertisements are left to the kernel (SLAAC).
//
// It never blocks anybody: a node without a network works all the same, and one that gets its network
// later starts to use it then. It never touches a link without a device behind it that it has not made itself, since
// those belong to containers.
//
// Start with Manager.Run. settings.go is what node.yaml says, roles.go decides what each link is for, links.go does it,
// static.go gives what is written, lease.go is the life of a lease and apply.go what one changes in the kernel.
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

	"kingpost/internal/mesh"
)

// Config is what a Manager is made of.
type Config struct {
	// Settings is the network part of node.yaml, as it was checked there.
	Settings mesh.NetworkConfig
	// Hostname is told to the DHCP servers; empty: nothing is.
	Hostname   func() string
	ResolvConf string // "/run/resolv.conf"
	Sys        string // "/sys"
	Proc       string // "/proc"
	// Modules loads kernel modules by name; nil where the machine has what it needs.
	Modules func(ctx context.Context, names ...string) error
	Log     logrus.FieldLogger
	Now     func() time.Time // with a monotonic part, as time.Now
}

// Manager keeps the links of a node.
type Manager struct {
	cfg      Config
	settings settings

	mu       sync.Mutex
	known    map[int]*linkInfo // by index, every link that counts
	links    map[int]*link     // by index, those that are looked after
	dns      map[int]resolver
	ntp      map[int][]string
	warnings []string
	made     map[string]string // what could not be made, and why
	changed  chan struct{}     // closed when addresses or servers may have changed
}

// staticIndex is the place of what node.yaml itself says among the links, before all of them.
const staticIndex = -1

// New makes a Manager; nothing happens until Run.
func New(cfg Config) (*Manager, error) {
	s, err := parse(cfg.Settings)
	if err != nil {
		return nil, err
	}
	return &Manager{
		cfg: cfg, settings: s, known: map[int]*linkInfo{}, links: map[int]*link{}, dns: map[int]resolver{staticIndex: s.static},
		ntp: map[int][]string{staticIndex: s.ntp}, made: map[string]string{}, changed: make(chan struct{}),
	}, nil
}

// link is one link that is being looked after.
type link struct {
	name   string
	index  int
	role   role
	cancel context.CancelFunc
	done   chan struct{} // closed when nobody works on it any more
	kick   chan struct{} // the cable was plugged in

	carrier bool // as last seen
}

// Run looks after the links until ctx is done; addresses then stay as they are.
func (m *Manager) Run(ctx context.Context) error {
	if lo, err := netlink.LinkByName("lo"); err == nil {
		if err := netlink.LinkSetUp(lo); err != nil {
			m.cfg.Log.WithError(err).Warn("network: bring up lo")
		}
	}
	if err := m.offers(staticIndex, m.settings.static, m.settings.ntp); err != nil {
		m.cfg.Log.WithError(err).Warn("network: resolv.conf")
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
	// What could not be done is tried again: a driver that comes late, a kernel module that is not loaded yet.
	again := time.NewTicker(retryLinks)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-again.C:
			if m.unmade() {
				m.reconcile(ctx, wg)
			}
		case u, ok := <-updates:
			if !ok {
				return fmt.Errorf("watch the links: %w", failed)
			}
			if m.learn(u) {
				m.reconcile(ctx, wg)
			}
		}
	}
}

// retryLinks is how often what could not be made is tried again.
const retryLinks = 5 * time.Second

// learn takes one message about one link; true when something may be to be done.
func (m *Manager) learn(u netlink.LinkUpdate) bool {
	a := u.Attrs()
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.known[a.Index]
	if u.Header.Type == unix.RTM_DELLINK {
		delete(m.known, a.Index)
		return old != nil
	}
	l := m.inspect(a)
	if !l.device && !m.settings.makes(l.name) {
		delete(m.known, a.Index) // somebody may have renamed it
		return old != nil
	}
	if old != nil && *old == *l {
		return false
	}
	if old == nil || old.carrier != l.carrier {
		m.cfg.Log.WithFields(logrus.Fields{"link": l.name, "carrier": l.carrier}).Info("network: link")
	}
	m.known[a.Index] = l
	return true
}

// inspect reads what counts of a link.
func (m *Manager) inspect(a *netlink.LinkAttrs) *linkInfo {
	l := &linkInfo{
		index: a.Index, name: a.Name, carrier: a.RawFlags&unix.IFF_LOWER_UP != 0,
		mac: a.HardwareAddr.String(), master: a.MasterIndex, parent: a.ParentIndex,
	}
	dir := filepath.Join(m.cfg.Sys, "class/net", a.Name)
	// A bond gives its links one address; its own is what a card is known by.
	if b, err := os.ReadFile(filepath.Join(dir, "bonding_slave/perm_hwaddr")); err == nil {
		if hw, err := net.ParseMAC(string(trim(b))); err == nil {
			l.mac = hw.String()
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "device")); err == nil && a.EncapType == "ether" && len(a.HardwareAddr) == 6 {
		l.device = true
	}
	if d, err := os.Readlink(filepath.Join(dir, "device/driver")); err == nil {
		l.driver = filepath.Base(d)
	}
	return l
}

func trim(b []byte) []byte {
	for len(b) > 0 && (b[len(b)-1] == '\n' || b[len(b)-1] == ' ') {
		b = b[:len(b)-1]
	}
	return b
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
		if _, err := os.Stat(filepath.Join(m.cfg.Sys, "class/net", i.Name, "device")); err != nil && !m.settings.makes(i.Name) {
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

// Warnings say what of the settings could not be done.
func (m *Manager) Warnings() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := slices.Clone(m.warnings)
	for _, why := range m.made {
		out = append(out, why)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// TimeServers lists the time servers that node.yaml names, else those that DHCP servers gave, and says from where.
func (m *Manager) TimeServers() (servers []string, from string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.ntp[staticIndex]) > 0 {
		return slices.Clone(m.ntp[staticIndex]), "node.yaml"
	}
	for _, i := range indexes(m.ntp) {
		for _, s := range m.ntp[i] {
			if !slices.Contains(servers, s) && len(servers) < mesh.MaxNTP {
				servers = append(servers, s)
			}
		}
	}
	return servers, "DHCP"
}

// Changed is closed when addresses or servers may have changed since it was asked for.
func (m *Manager) Changed() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changed
}

// tell wakes who waits for Changed. The caller holds the lock.
func (m *Manager) tell() {
	close(m.changed)
	m.changed = make(chan struct{})
}
