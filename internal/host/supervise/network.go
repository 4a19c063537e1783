package supervise

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"kingpost/internal/mesh"
)

// Private networks: one bridge on the node, one veth pair and address per container. Ports are published
// by the host itself, which carries the bytes: a node has no packet filter. The addresses are of the node
// alone, nothing routes them.
const (
	bridgeName = "kingpost0"
	bridgeNet  = "10.209.0.1/16"
)

type bridge struct {
	mu     sync.Mutex
	prefix netip.Prefix
	used   map[netip.Addr]string // by key
}

func newBridge() *bridge {
	p := netip.MustParsePrefix(bridgeNet)
	return &bridge{prefix: p, used: map[netip.Addr]string{p.Addr(): bridgeName}}
}

func (b *bridge) gateway() netip.Addr { return b.prefix.Addr() }

// take gives key an address, or the one it is said to have.
func (b *bridge) take(key string, have netip.Addr) (netip.Addr, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if have.IsValid() {
		b.used[have] = key
		return have, nil
	}
	for a := b.prefix.Addr().Next(); b.prefix.Contains(a.Next()); a = a.Next() {
		if b.used[a] == "" {
			b.used[a] = key
			return a, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("every address of %s is taken", b.prefix)
}

func (b *bridge) release(a netip.Addr) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if a != b.prefix.Addr() {
		delete(b.used, a)
	}
}

// ensure makes the bridge if it is not there.
func (b *bridge) ensure() (netlink.Link, error) {
	link, err := netlink.LinkByName(bridgeName)
	if err != nil {
		la := netlink.NewLinkAttrs()
		la.Name = bridgeName
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: la}); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, fmt.Errorf("make the bridge %s: %w", bridgeName, err)
		}
		if link, err = netlink.LinkByName(bridgeName); err != nil {
			return nil, err
		}
	}
	addr, err := netlink.ParseAddr(bridgeNet)
	if err != nil {
		return nil, err
	}
	if err := netlink.AddrReplace(link, addr); err != nil {
		return nil, fmt.Errorf("give %s its address: %w", bridgeName, err)
	}
	return link, netlink.LinkSetUp(link)
}

// attach connects the network namespace of pid to the bridge. The pair ends with the namespace.
func (b *bridge) attach(sp *spec, pid int) (netip.Addr, error) {
	fail := func(err error) (netip.Addr, error) {
		return netip.Addr{}, fmt.Errorf("connect %s to its network: %w", sp.Key(), err)
	}
	b.mu.Lock()
	br, err := b.ensure()
	b.mu.Unlock()
	if err != nil {
		return fail(err)
	}
	a, err := b.take(sp.Key(), netip.Addr{})
	if err != nil {
		return fail(err)
	}
	if err := b.connect(br, a, pid); err != nil {
		b.release(a)
		return fail(err)
	}
	return a, nil
}

func (b *bridge) connect(br netlink.Link, a netip.Addr, pid int) error {
	la := netlink.NewLinkAttrs()
	// At most 15 characters, unique among the living by the process.
	la.Name = "kp" + strconv.Itoa(pid)
	la.MasterIndex = br.Attrs().Index
	peer := "kq" + strconv.Itoa(pid)
	veth := &netlink.Veth{LinkAttrs: la, PeerName: peer, PeerNamespace: netlink.NsPid(pid)}
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("make the link pair: %w", err)
	}
	if err := netlink.LinkSetUp(veth); err != nil {
		return err
	}
	ns, err := netns.GetFromPid(pid)
	if err != nil {
		return err
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer h.Close()
	lo, err := h.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := h.LinkSetUp(lo); err != nil {
		return err
	}
	in, err := h.LinkByName(peer)
	if err != nil {
		return err
	}
	if err := h.LinkSetName(in, "eth0"); err != nil {
		return err
	}
	ip := &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(b.prefix.Bits(), 32)}}
	if err := h.AddrAdd(in, ip); err != nil {
		return err
	}
	if err := h.LinkSetUp(in); err != nil {
		return err
	}
	return h.RouteAdd(&netlink.Route{LinkIndex: in.Attrs().Index, Gw: b.gateway().AsSlice()})
}

// inNetwork runs f on a thread that is in the network of process pid. f must not start goroutines that open sockets.
func inNetwork(pid int, f func() error) error {
	done := make(chan error, 1)
	go func() {
		// The thread is not unlocked unless it is back home: the runtime then ends it with the goroutine.
		runtime.LockOSThread()
		home, err := netns.Get()
		if err != nil {
			done <- err
			return
		}
		defer home.Close()
		ns, err := netns.GetFromPid(pid)
		if err != nil {
			done <- err
			return
		}
		defer ns.Close()
		if err := netns.Set(ns); err != nil {
			done <- err
			return
		}
		ferr := f()
		if err := netns.Set(home); err == nil {
			runtime.UnlockOSThread()
		}
		done <- ferr
	}()
	return <-done
}

// publish carries what arrives at the node's ports to a container until the returned function is called.
func (s *Supervisor) publish(key string, ports []mesh.Port, to netip.Addr) (stop func(), err error) {
	var closers []io.Closer
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	stop = func() {
		cancel()
		for _, c := range closers {
			c.Close()
		}
		wg.Wait()
	}
	for _, p := range ports {
		target := netip.AddrPortFrom(to, uint16(p.Container)).String()
		if p.Protocol == "udp" {
			c, err := net.ListenPacket("udp", ":"+strconv.Itoa(p.Host))
			if err != nil {
				stop()
				return nil, fmt.Errorf("publish port %d/udp of %s: %w", p.Host, key, err)
			}
			closers = append(closers, c)
			wg.Go(func() { carryPackets(ctx, c, target) })
			continue
		}
		l, err := net.Listen("tcp", ":"+strconv.Itoa(p.Host))
		if err != nil {
			stop()
			return nil, fmt.Errorf("publish port %d of %s: %w", p.Host, key, err)
		}
		closers = append(closers, l)
		wg.Go(func() {
			for {
				c, err := l.Accept()
				if errors.Is(err, net.ErrClosed) {
					return
				}
				if err != nil {
					time.Sleep(50 * time.Millisecond) // out of files; it passes
					continue
				}
				wg.Go(func() { carryStream(ctx, c.(*net.TCPConn), target) })
			}
		})
	}
	return stop, nil
}

func carryStream(ctx context.Context, c *net.TCPConn, target string) {
	defer c.Close()
	d := net.Dialer{Timeout: 10 * time.Second}
	o, err := d.DialContext(ctx, "tcp", target)
	if err != nil {
		return
	}
	defer o.Close()
	defer context.AfterFunc(ctx, func() { c.Close(); o.Close() })()
	var wg sync.WaitGroup
	// Between two TCP connections io.Copy splices: the bytes stay in the kernel.
	for _, w := range [][2]*net.TCPConn{{c, o.(*net.TCPConn)}, {o.(*net.TCPConn), c}} {
		wg.Go(func() {
			_, _ = io.Copy(w[0], w[1])
			_ = w[0].CloseWrite()
		})
	}
	wg.Wait()
}

// udpIdle is how long answers to a sender are waited for, udpSenders how many senders are known at once.
const (
	udpIdle    = 60 * time.Second
	udpSenders = 1024
)

func carryPackets(ctx context.Context, c net.PacketConn, target string) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	defer wg.Wait()
	flows := map[string]net.Conn{}
	defer func() {
		mu.Lock()
		defer mu.Unlock()
		for _, f := range flows {
			f.Close()
		}
	}()
	buf := make([]byte, 64<<10)
	for {
		n, from, err := c.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) || ctx.Err() != nil {
			return
		}
		if err != nil {
			continue
		}
		mu.Lock()
		f := flows[from.String()]
		if f == nil && len(flows) < udpSenders {
			if f, err = net.Dial("udp", target); err == nil {
				flows[from.String()] = f
				wg.Go(func() {
					defer func() {
						f.Close()
						mu.Lock()
						delete(flows, from.String())
						mu.Unlock()
					}()
					back := make([]byte, 64<<10)
					for {
						_ = f.SetReadDeadline(time.Now().Add(udpIdle))
						n, err := f.Read(back)
						if err != nil {
							return
						}
						_, _ = c.WriteTo(back[:n], from)
					}
				})
			} else {
				f = nil
			}
		}
		mu.Unlock()
		if f != nil {
			_, _ = f.Write(buf[:n])
		}
	}
}
