package supervise

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/net/dns/dnsmessage"

	"kingpost/internal/host/privnet"
	"kingpost/internal/mesh"
)

// The node's address and that of a machine outside.
const (
	nodeIP4, outsideIP4 = "192.0.2.1", "192.0.2.2"
	nodeIP6, outsideIP6 = "2001:db8::1", "2001:db8::2"
)

// outside is a machine beside the node: a network namespace, joined by a link.
type outside struct {
	t  *testing.T
	ns netns.NsHandle
}

func newOutside(t *testing.T) *outside {
	t.Helper()
	o := &outside{t: t}
	// The thread stays in the new namespace and ends with its goroutine.
	made := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		var err error
		o.ns, err = netns.New()
		made <- err
	}()
	if err := <-made; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { o.ns.Close() })
	la := netlink.NewLinkAttrs()
	la.Name = "node0"
	veth := &netlink.Veth{LinkAttrs: la, PeerName: "far0", PeerNamespace: netlink.NsFd(o.ns)}
	must(t, netlink.LinkAdd(veth))
	t.Cleanup(func() {
		for _, name := range []string{"node0", privnet.Bridge} {
			if l, err := netlink.LinkByName(name); err == nil {
				_ = netlink.LinkDel(l)
			}
		}
	})
	far, err := netlink.NewHandleAt(o.ns)
	must(t, err)
	defer far.Close()
	here, err := netlink.NewHandle()
	must(t, err)
	defer here.Close()
	for _, e := range []struct {
		h     *netlink.Handle
		link  string
		addrs []string
		via   []string
	}{
		{far, "lo", nil, nil},
		{far, "far0", []string{outsideIP4 + "/24", outsideIP6 + "/64"}, nil},
		{here, "node0", []string{nodeIP4 + "/24", nodeIP6 + "/64"}, []string{outsideIP4, outsideIP6}},
	} {
		link, err := e.h.LinkByName(e.link)
		must(t, err)
		for _, a := range e.addrs {
			addr, err := netlink.ParseAddr(a)
			must(t, err)
			addr.Flags = 2 // IFA_F_NODAD
			must(t, e.h.AddrReplace(link, addr))
		}
		must(t, e.h.LinkSetUp(link))
		for _, via := range e.via {
			must(t, e.h.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: net.ParseIP(via)}))
		}
	}
	return o
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// do runs f in the outside's network.
func (o *outside) do(f func() error) {
	o.t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if err := netns.Set(o.ns); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	must(o.t, <-done)
}

// dial connects from outside.
func (o *outside) dial(network, addr string) (c net.Conn, err error) {
	o.do(func() error {
		c, err = net.DialTimeout(network, addr, 2*time.Second)
		return nil
	})
	return c, err
}

// serve greets whoever connects to port 9000 of the outside, and answers names of it at port 53.
func (o *outside) serve() {
	o.t.Helper()
	o.do(func() error {
		l, err := net.Listen("tcp", ":9000")
		if err != nil {
			return err
		}
		c, err := net.ListenPacket("udp", ":53")
		if err != nil {
			return err
		}
		ended := make(chan struct{}, 2)
		go func() {
			defer func() { ended <- struct{}{} }()
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				fmt.Fprintf(c, "outside greets %s\n", c.RemoteAddr())
				c.Close()
			}
		}()
		go func() {
			defer func() { ended <- struct{}{} }()
			buf := make([]byte, 1500)
			for {
				n, from, err := c.ReadFrom(buf)
				if err != nil {
					return
				}
				if a := outsideAnswer(buf[:n]); a != nil {
					_, _ = c.WriteTo(a, from)
				}
			}
		}()
		o.t.Cleanup(func() {
			l.Close()
			c.Close()
			<-ended
			<-ended
		})
		return nil
	})
}

func outsideAnswer(msg []byte) []byte {
	var p dnsmessage.Parser
	h, err := p.Start(msg)
	if err != nil {
		return nil
	}
	q, err := p.Question()
	if err != nil {
		return nil
	}
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: h.ID, Response: true}, Questions: []dnsmessage.Question{q}}
	if q.Type == dnsmessage.TypeA && q.Name.String() == "far.example." {
		m.Answers = []dnsmessage.Resource{{
			Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 60},
			Body:   &dnsmessage.AResource{A: netip.MustParseAddr(outsideIP4).As4()},
		}}
	}
	b, _ := m.Pack()
	return b
}

// order has a container do something, by its published port for orders.
func order(t *testing.T, port int, words string) string {
	t.Helper()
	c, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", port), 3*time.Second)
	must(t, err)
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(15 * time.Second))
	fmt.Fprintln(c, words)
	line, err := bufio.NewReader(c).ReadString('\n')
	must(t, err)
	return strings.TrimSpace(line)
}

func (n *node) private(module, id string, orders int, ports ...mesh.Port) mesh.Declared {
	d := n.container(id, "net")
	d.Module, d.Network = module, "private"
	d.Ports = append([]mesh.Port{{Host: orders, Container: 8081}}, ports...)
	d.Health = &mesh.Health{TCP: "127.0.0.1:8081", Start: mesh.Duration(10 * time.Second), Interval: mesh.Duration(time.Second)}
	return d
}

func TestPrivateNetwork(t *testing.T) {
	o := newOutside(t)
	n := newNode(t)
	o.serve()
	n.stop()
	n.cfg.ResolvConf = filepath.Join(n.cfg.State, "resolv.conf")
	must(t, os.WriteFile(n.cfg.ResolvConf, []byte("nameserver "+outsideIP4+"\n"), 0o644))
	n.start()
	web := n.private("shop", "web", 28081, mesh.Port{Host: 28080, Container: 8080}, mesh.Port{Host: 28080, Container: 8080, Protocol: "udp"})
	db := n.private("data", "db", 28181)
	db.Identity = true
	n.declare(web, db)
	n.settled()
	webIP, dbIP := n.s.network.Address("shop.web"), n.s.network.Address("data.db")
	lo4, err := net.Listen("tcp", ":7443") // the node's own
	must(t, err)
	go func() {
		for {
			c, err := lo4.Accept()
			if err != nil {
				return
			}
			fmt.Fprintln(c, "the host's API")
			c.Close()
		}
	}()
	t.Cleanup(func() { lo4.Close() })

	for _, c := range []struct {
		what, words, want string
		port              int
	}{
		{"its own name for all of a module", "lookup data", dbIP.String() + " " + privnet.Address6(dbIP).String(), 28081},
		{"one of a module", "lookup db.data", dbIP.String() + " " + privnet.Address6(dbIP).String(), 28081},
		{"with the suffix", "lookup db.data.kingpost.internal", dbIP.String() + " " + privnet.Address6(dbIP).String(), 28081},
		{"whoever is not there", "lookup nobody", "error: ", 28081},
		{"a name of elsewhere", "lookup far.example", outsideIP4, 28081},
		{"each other by name", "dial tcp4 db.data:8080", "db-data greets " + webIP.String() + ":", 28081},
		{"each other by name, IPv6", "dial tcp6 db.data:8080", "db-data greets [" + privnet.Address6(webIP).String() + "]:", 28081},
		{"datagrams", "dial udp4 db:8080", "error: ", 28081}, // an ID alone is no name
		{"datagrams by name", "dial udp6 data:8080", "db-data heard hello", 28081},
		{"the way out", "dial tcp " + outsideIP4 + ":9000", "outside greets " + nodeIP4 + ":", 28081},
		{"the way out by name", "dial tcp far.example:9000", "outside greets " + nodeIP4 + ":", 28081},
		{"the way out, IPv6", "dial tcp [" + outsideIP6 + "]:9000", "outside greets [" + nodeIP6 + "]:", 28081},
		{"a published port from inside", "dial tcp " + nodeIP4 + ":28080", "web-shop greets", 28181},
		{"its own published port", "dial tcp " + nodeIP4 + ":28080", "web-shop greets", 28081},
		{"its own published port, IPv6", "dial tcp [" + nodeIP6 + "]:28080", "web-shop greets", 28081},
		{"the host's API", "dial tcp " + nodeIP4 + ":7443", "error: ", 28081},
		{"the host's API, IPv6", "dial tcp [" + nodeIP6 + "]:7443", "error: ", 28081},
		{"the host's API by the gateway", "dial tcp 10.209.0.1:7443", "error: ", 28081},
		{"the host's API with an identity", "dial tcp " + nodeIP4 + ":7443", "the host's API", 28181},
		{"the host's API with an identity, IPv6", "dial tcp [" + nodeIP6 + "]:7443", "the host's API", 28181},
		{"a cloud's secrets", "dial tcp 169.254.169.254:80", "error: ", 28081},
	} {
		if got := order(t, c.port, c.words); !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: %s: %q, wanted %q", c.what, c.words, got, c.want)
		}
	}
	for _, addr := range []string{nodeIP4 + ":28080", "[" + nodeIP6 + "]:28080"} {
		c, err := o.dial("tcp", addr)
		must(t, err)
		// Told who calls: the address from outside is not hidden.
		if got := greeting(t, c); !strings.HasPrefix(got, "web-shop greets") || !strings.Contains(got, ".2]:") && !strings.Contains(got, "::2]:") && !strings.Contains(got, outsideIP4) {
			t.Errorf("from outside to %s: %q", addr, got)
		}
		c.Close()
		u, err := o.dial("udp", addr)
		must(t, err)
		_ = u.SetDeadline(time.Now().Add(2 * time.Second))
		fmt.Fprint(u, "hello")
		buf := make([]byte, 100)
		m, err := u.Read(buf)
		if err != nil || string(buf[:m]) != "web-shop heard hello" {
			t.Errorf("a datagram from outside to %s: %q, %v", addr, buf[:m], err)
		}
		u.Close()
	}
	for _, addr := range []string{"127.0.0.1:28080", nodeIP4 + ":28080", "[" + nodeIP6 + "]:28080", "localhost:28080"} {
		c, err := net.DialTimeout("tcp", addr, 2*time.Second)
		if err != nil {
			t.Errorf("from the node itself: %v", err)
			continue
		}
		greeting(t, c)
		c.Close()
	}
	// The node does not route into the private network, and not for others.
	o.do(func() error {
		l, err := netlink.LinkByName("far0")
		if err != nil {
			return err
		}
		_, dst, _ := net.ParseCIDR("10.209.0.0/16")
		return netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: dst, Gw: net.ParseIP(nodeIP4)})
	})
	if c, err := o.dial("tcp", webIP.String()+":8080"); err == nil {
		c.Close()
		t.Error("the private network is reached from outside by a route")
	}

	kept, err := o.dial("tcp", nodeIP4+":28080")
	must(t, err)
	defer kept.Close()
	greeting(t, kept)
	local, err := net.Dial("tcp", "127.0.0.1:28080")
	must(t, err)
	defer local.Close()
	greeting(t, local)
	n.stop()
	for _, c := range []net.Conn{kept, local} {
		echoes(t, c, "while there is no host")
	}
	if c, err := o.dial("tcp", "["+nodeIP6+"]:28080"); err != nil {
		t.Errorf("a new connection while there is no host: %v", err)
	} else {
		greeting(t, c)
		c.Close()
	}
	// A name that is asked while there is no host is answered by the next.
	asked := make(chan string, 1)
	go func() { asked <- order(t, 28081, "lookup db.data") }()
	time.Sleep(300 * time.Millisecond)
	n.start()
	n.state("shop/web", "healthy")
	for _, c := range []net.Conn{kept, local} {
		echoes(t, c, "after the host came again")
	}
	if got := <-asked; !strings.HasPrefix(got, dbIP.String()) {
		t.Errorf("a name that was asked while there was no host: %q", got)
	}
	if got := n.s.network.Address("shop.web"); got != webIP {
		t.Errorf("the address changed from %s to %s", webIP, got)
	}
	n.declare(db)
	n.settled()
	if got := order(t, 28181, "lookup shop"); !strings.HasPrefix(got, "error") {
		t.Errorf("the name of what is gone: %q", got)
	}
	if c, err := o.dial("tcp", nodeIP4+":28080"); err == nil {
		c.Close()
		t.Error("the port of what is gone is still published")
	}
}

// TestPublishedHandover: the node's port leads to the old one until the new one is healthy, and then to the new one, with
// no connection refused or cut meanwhile.
func TestPublishedHandover(t *testing.T) {
	o := newOutside(t)
	n := newNode(t)
	web := n.private("shop", "web", 28081, mesh.Port{Host: 28080, Container: 8080})
	n.declare(web)
	n.settled()
	before := n.state("shop/web", "healthy")
	web.Env = map[string]string{"GREETING": "new"}
	web.Stop.Grace = mesh.Duration(time.Second)
	n.declare(web)
	stop := time.Now().Add(25 * time.Second)
	for tries := 0; ; tries++ {
		c, err := o.dial("tcp", nodeIP4+":28080")
		if err != nil {
			t.Fatalf("connection %d in a handover: %v", tries, err)
		}
		greeting(t, c)
		c.Close()
		if n.s.Status().Settled || time.Now().After(stop) {
			break
		}
	}
	if after := n.state("shop/web", "healthy"); after.PID == before.PID {
		t.Errorf("no handover: %+v", after)
	}
	if h := n.state("shop/web", "healthy").Handover; h == nil || h.Way != mesh.HandoverOverlap {
		t.Errorf("the handover: %+v", h)
	}
}

func TestPublishedPortInUse(t *testing.T) {
	newOutside(t)
	n := newNode(t)
	l, err := net.Listen("tcp", "127.0.0.1:28080")
	must(t, err)
	n.declare(n.private("shop", "web", 28081, mesh.Port{Host: 28080, Container: 8080}))
	r := n.state("shop/web", "backoff")
	if !strings.Contains(r.Reason, "port 28080/tcp is in use by") {
		t.Errorf("the reason is %q", r.Reason)
	}
	l.Close()
	n.settled()
}

// TestManyPorts: rules of thousands of ports go to the kernel in one piece.
func TestManyPorts(t *testing.T) {
	newOutside(t)
	n := newNode(t)
	d := n.private("shop", "web", 28081)
	for p := range 2000 {
		d.Ports = append(d.Ports, mesh.Port{Host: 30000 + p, Container: 8080})
	}
	n.declare(d)
	n.settled()
	c, err := net.DialTimeout("tcp", "127.0.0.1:31999", 3*time.Second)
	must(t, err)
	greeting(t, c)
	c.Close()
}

func greeting(t *testing.T, c net.Conn) string {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(3 * time.Second))
	buf := make([]byte, 200)
	n, err := c.Read(buf)
	if err != nil {
		t.Errorf("no greeting: %v", err)
	}
	return strings.TrimSpace(string(buf[:n]))
}

func echoes(t *testing.T, c net.Conn, what string) {
	t.Helper()
	_ = c.SetDeadline(time.Now().Add(3 * time.Second))
	if _, err := io.WriteString(c, what); err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	buf := make([]byte, len(what))
	if _, err := io.ReadFull(c, buf); err != nil || string(buf) != what {
		t.Errorf("%s: %q, %v", what, buf, err)
	}
}
