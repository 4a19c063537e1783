package privnet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"kingpost/internal/host/ports"
	"kingpost/internal/mesh"
)

// Config is where a Network works. The zero value of a path is the node's own.
type Config struct {
	Proc       string // /proc
	ResolvConf string // the node's resolver settings, /etc/resolv.conf
	Log        *logrus.Logger
}

// KernelModules are what the kernel needs for a private network, where they are not built in. The kernel finds none of them
// by itself: a node has no modprobe.
var KernelModules = []string{
	"bridge", "veth", "nf_tables", "nf_conntrack_netlink", "nft_ct", "nft_chain_nat", "nft_fib_inet", "nft_masq", "nft_nat", "nft_reject_inet",
}

// Endpoint is a container in the private network.
type Endpoint struct {
	// Name is the instance's, unique among all. Two instances of a resource are here while one takes over.
	Name       string
	Module, ID string
	// Trial says that it is to take over from another instance: it has neither the resource's name nor its ports until
	// Promote.
	Trial bool
	Since time.Time   // its start: of two that both are the resource's, the later one counts
	Ports []mesh.Port // that the node publishes for it
	// MeshPorts lets it reach the node's mesh ports (API, store, broker), which ask for a certificate.
	MeshPorts bool
	// Address is its IPv4 address; the IPv6 address follows from it.
	Address netip.Addr
}

// Network is a node's private network. It is safe for concurrent use. Nothing is made before the first container.
type Network struct {
	cfg Config

	mu        sync.Mutex
	pool      *pool
	endpoints map[string]*Endpoint // by name
	made      chan struct{}        // closed when the bridge is there
	isMade    bool
	nameMap   map[string][]netip.Addr // nil: to be made anew
}

// New returns the network of a node, without any container.
func New(cfg Config) *Network {
	if cfg.Proc == "" {
		cfg.Proc = "/proc"
	}
	if cfg.ResolvConf == "" {
		cfg.ResolvConf = "/etc/resolv.conf"
	}
	if cfg.Log == nil {
		cfg.Log = logrus.New()
	}
	return &Network{cfg: cfg, pool: newPool(), endpoints: map[string]*Endpoint{}, made: make(chan struct{})}
}

// Adopt takes in a container that runs already. Run then makes what it needs and may have lost.
func (n *Network) Adopt(e Endpoint) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.pool.have(e.Name, e.Address); err != nil {
		return fmt.Errorf("take over the network of %s: %w", e.Name, err)
	}
	n.endpoints[e.Name] = &e
	n.settle()
	return nil
}

// Promote makes an instance its resource's: names and ports lead to it and to no other instance any more. Connections that
// are there stay with the one that has them.
func (n *Network) Promote(name string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	e := n.endpoints[name]
	if e == nil || !e.Trial {
		return nil
	}
	for _, o := range n.endpoints {
		if o.Module == e.Module && o.ID == e.ID {
			o.Trial = true
		}
	}
	e.Trial = false
	n.settle()
	if err := n.sync(n.hasIPv6()); err != nil {
		return fmt.Errorf("publish %s: %w", name, err)
	}
	n.forgetDatagrams(e.Ports)
	return nil
}

// settle leaves one instance of each resource that is not on trial, and forgets the names of before. n.mu is held.
func (n *Network) settle() {
	n.nameMap = nil
	type resource struct{ module, id string }
	has := map[resource]*Endpoint{}
	for _, e := range n.endpoints {
		if e.Trial {
			continue
		}
		r := resource{e.Module, e.ID}
		if o := has[r]; o != nil {
			if e.Since.Before(o.Since) {
				e, o = o, e
			}
			o.Trial = true
		}
		has[r] = e
	}
}

// Attach connects the network namespace of process pid, gives it its addresses and publishes its ports. It returns the
// IPv4 address. The link ends with the namespace, everything else with Detach.
func (n *Network) Attach(e Endpoint, pid int) (netip.Addr, error) {
	fail := func(err error) (netip.Addr, error) {
		return netip.Addr{}, fmt.Errorf("connect %s to its network: %w", e.Name, err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.portsFree(&e); err != nil {
		return fail(err)
	}
	six := n.hasIPv6()
	br, err := ensureBridge(six)
	if err != nil {
		return fail(err)
	}
	a, err := n.pool.take(e.Name)
	if err != nil {
		return fail(err)
	}
	e.Address = a
	n.endpoints[e.Name] = &e
	n.settle()
	err = n.sync(six)
	if err == nil {
		err = connect(br, a, pid, six)
	}
	if err != nil {
		n.drop(e.Name)
		return fail(errors.Join(err, n.sync(six)))
	}
	n.forgetDatagrams(e.Ports)
	return a, nil
}

// Detach takes a container's name, addresses and ports away. The address stays free for its next instance as long as no
// other needs it.
func (n *Network) Detach(name string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.endpoints[name] == nil {
		return nil
	}
	n.drop(name)
	if err := n.sync(n.hasIPv6()); err != nil {
		return fmt.Errorf("disconnect %s: %w", name, err)
	}
	return nil
}

// Address is the IPv4 address of a container; invalid when it has none.
func (n *Network) Address(name string) netip.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	if e := n.endpoints[name]; e != nil {
		return e.Address
	}
	return netip.Addr{}
}

func (n *Network) drop(name string) {
	delete(n.endpoints, name)
	n.pool.release(name)
	n.nameMap = nil
}

// sync makes the kernel's rules those of the endpoints. n.mu is held.
func (n *Network) sync(six bool) error {
	if err := applyRules(n.endpoints, n.routes()); err != nil {
		return err
	}
	// Only behind the rules, or the node would route for everybody for a moment.
	if err := n.forward(six); err != nil {
		return err
	}
	if !n.isMade {
		n.isMade = true
		close(n.made)
	}
	return nil
}

// hasIPv6 says whether the kernel has IPv6 and nobody has turned it off.
func (n *Network) hasIPv6() bool {
	b, err := os.ReadFile(filepath.Join(n.cfg.Proc, "sys/net/ipv6/conf/all/disable_ipv6"))
	return err == nil && len(b) > 0 && b[0] == '0'
}

// portsFree refuses ports that somebody on the node listens on: publishing would take that one's connections away.
func (n *Network) portsFree(e *Endpoint) error {
	var tcp, udp []int
	for _, p := range e.Ports {
		if p.Protocol == "udp" {
			udp = append(udp, p.Host)
		} else {
			tcp = append(tcp, p.Host)
		}
	}
	listen, err := ports.Listeners(n.cfg.Proc, tcp...)
	if err != nil {
		return err
	}
	receive, err := ports.Receivers(n.cfg.Proc, udp...)
	if err != nil {
		return err
	}
	for protocol, found := range map[string][]ports.Listener{"tcp": listen, "udp": receive} {
		if len(found) > 0 {
			return fmt.Errorf("the node's port %d/%s is in use by %s; publish another, or stop that", found[0].Port, protocol, found[0])
		}
	}
	return nil
}

// retryAfter is how long Run waits after the rules could not be made.
const retryAfter = 10 * time.Second

// Run makes what adopted containers need, and answers names until ctx ends. Nothing that it made is taken away then.
func (n *Network) Run(ctx context.Context) error {
	for {
		n.mu.Lock()
		var err error
		if len(n.endpoints) > 0 {
			six := n.hasIPv6()
			if _, err = ensureBridge(six); err == nil {
				err = n.sync(six)
			}
		}
		n.mu.Unlock()
		if err == nil {
			break
		}
		n.cfg.Log.WithError(err).Warn("the private network is not as it should be; tried again")
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(retryAfter):
		}
	}
	select {
	case <-ctx.Done():
		return nil
	case <-n.made:
	}
	return n.serveNames(ctx)
}
