package privnet

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"kingpost/internal/mesh"
)

func testNetwork(t testing.TB) *Network {
	t.Helper()
	proc := t.TempDir()
	conf := filepath.Join(proc, "sys/net/ipv6/conf/all")
	if err := os.MkdirAll(conf, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(conf, "disable_ipv6"), []byte("0\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	n := New(Config{Proc: proc, ResolvConf: filepath.Join(proc, "resolv.conf")})
	for i, e := range []Endpoint{{Module: "shop", ID: "web"}, {Module: "shop", ID: "api"}, {Module: "data", ID: "db"}} {
		e.Name = e.Module + "." + e.ID
		e.Address = netip.AddrFrom4([4]byte{10, 209, 1, byte(i + 1)})
		if err := n.Adopt(e); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

func question(t testing.TB, name string, kind dnsmessage.Type) []byte {
	t.Helper()
	n, err := dnsmessage.NewName(name)
	if err != nil {
		t.Fatal(err)
	}
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 4711, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: n, Type: kind, Class: dnsmessage.ClassINET}},
	}
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestNames(t *testing.T) {
	n := testNetwork(t)
	for _, c := range []struct {
		name  string
		kind  dnsmessage.Type
		code  dnsmessage.RCode
		found []string
	}{
		{"web.shop.", dnsmessage.TypeA, 0, []string{"10.209.1.1"}},
		{"WEB.Shop.", dnsmessage.TypeA, 0, []string{"10.209.1.1"}},
		{"shop.", dnsmessage.TypeA, 0, []string{"10.209.1.1", "10.209.1.2"}},
		{"db.data.", dnsmessage.TypeAAAA, 0, []string{"fd6b:706f:7374::ad1:103"}},
		{"db.data.kingpost.internal.", dnsmessage.TypeA, 0, []string{"10.209.1.3"}},
		{"db.data.", dnsmessage.TypeMX, 0, nil},
		{"db.", dnsmessage.TypeA, dnsmessage.RCodeNameError, nil},
		{"nobody.kingpost.internal.", dnsmessage.TypeA, dnsmessage.RCodeNameError, nil},
		{"kingpost.internal.", dnsmessage.TypeA, dnsmessage.RCodeNameError, nil},
		{"3.1.209.10.in-addr.arpa.", dnsmessage.TypePTR, 0, []string{"db.data.kingpost.internal."}},
		{"9.9.209.10.in-addr.arpa.", dnsmessage.TypePTR, dnsmessage.RCodeNameError, nil},
		{"3.0.1.0.1.d.a.0.0.0.0.0.0.0.0.0.0.0.0.0.4.7.3.7.f.6.0.7.b.6.d.f.ip6.arpa.", dnsmessage.TypePTR, 0, []string{"db.data.kingpost.internal."}},
		// Nobody else can be asked: there is no resolv.conf.
		{"far.example.", dnsmessage.TypeA, dnsmessage.RCodeServerFailure, nil},
		{"1.0.0.127.in-addr.arpa.", dnsmessage.TypePTR, dnsmessage.RCodeServerFailure, nil},
	} {
		t.Run(fmt.Sprintf("%s %s", c.name, c.kind), func(t *testing.T) {
			var m dnsmessage.Message
			if err := m.Unpack(n.answer(t.Context(), question(t, c.name, c.kind), &upstream{resolvConf: n.cfg.ResolvConf}, "udp")); err != nil {
				t.Fatal(err)
			}
			var found []string
			for _, r := range m.Answers {
				switch b := r.Body.(type) {
				case *dnsmessage.AResource:
					found = append(found, netip.AddrFrom4(b.A).String())
				case *dnsmessage.AAAAResource:
					found = append(found, netip.AddrFrom16(b.AAAA).String())
				case *dnsmessage.PTRResource:
					found = append(found, b.PTR.String())
				}
			}
			slices.Sort(found)
			if m.ID != 4711 || !m.Response || m.RCode != c.code || !slices.Equal(found, c.found) || len(m.Questions) != 1 {
				t.Errorf("answered %s %v: %+v", m.RCode, found, m.Header)
			}
		})
	}
}

func TestNameservers(t *testing.T) {
	got := nameservers("# who\nsearch example\nnameserver 192.0.2.53\nnameserver 10.209.0.1\n nameserver\tfe80::1%eth0 \nnameserver\nnameserver nonsense\nnameserver ::1\nnameserver 192.0.2.54\n")
	if s := fmt.Sprint(got); s != "[192.0.2.53 fe80::1%eth0 ::1]" {
		t.Errorf("servers: %s", s)
	}
}

func TestPool(t *testing.T) {
	p := newPool()
	first, err := p.take("shop/web")
	if err != nil {
		t.Fatal(err)
	}
	p.release("shop/web")
	if again, _ := p.take("shop/web"); again != first {
		t.Errorf("another address the next time: %s, then %s", first, again)
	}
	if err := p.have("data/db", first); err == nil {
		t.Error("one address is two containers'")
	}
	if err := p.have("data/db", netip.MustParseAddr("192.0.2.1")); err == nil {
		t.Error("an address of elsewhere is taken in")
	}
	p.prefix = netip.MustParsePrefix("10.209.0.1/24")
	p.release("shop/web")
	seen := map[netip.Addr]bool{Gateway(): true}
	for i := range 1<<8 - 3 {
		a, err := p.take(fmt.Sprint("m/", i))
		if err != nil || seen[a] || !p.prefix.Contains(a) {
			t.Fatalf("address %d: %s, %v", i, a, err)
		}
		seen[a] = true
	}
	if a, err := p.take("one/more"); err == nil {
		t.Errorf("an address beyond the last: %s", a)
	}
	p.release("m/7")
	if _, err := p.take("one/more"); err != nil {
		t.Error(err)
	}
}

// TestAdoptTwice: a container's next record may have another address than the one before.
func TestAdoptTwice(t *testing.T) {
	n := testNetwork(t)
	if err := n.Adopt(Endpoint{Name: "shop.web", Module: "shop", ID: "web", Address: netip.MustParseAddr("10.209.9.9"), Ports: []mesh.Port{{Host: 80, Container: 80}}}); err != nil {
		t.Fatal(err)
	}
	if got := n.Address("shop.web").String(); got != "10.209.9.9" {
		t.Errorf("its address is %s", got)
	}
	if err := n.Adopt(Endpoint{Name: "other.one", Module: "other", ID: "one", Address: netip.MustParseAddr("10.209.1.1")}); err != nil {
		t.Errorf("the address that it had: %v", err)
	}
}

// TestTwoInstances: a resource's name leads to one of its instances, whatever a host finds.
func TestTwoInstances(t *testing.T) {
	web := func(name, address string, trial bool, since int64) Endpoint {
		return Endpoint{Name: name, Module: "shop", ID: "web", Address: netip.MustParseAddr(address), Trial: trial, Since: time.Unix(since, 0)}
	}
	for _, c := range []struct {
		name string
		two  [2]Endpoint
		want string
	}{
		{"the new one is on trial", [2]Endpoint{web("shop.web", "10.209.0.2", false, 1), web("shop.web.b", "10.209.0.3", true, 2)}, "10.209.0.2"},
		{"the old one is being stopped", [2]Endpoint{web("shop.web", "10.209.0.2", false, 1), web("shop.web.b", "10.209.0.3", false, 2)}, "10.209.0.3"},
		{"the same, found the other way round", [2]Endpoint{web("shop.web", "10.209.0.2", false, 2), web("shop.web.b", "10.209.0.3", false, 1)}, "10.209.0.2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := New(Config{Proc: t.TempDir()})
			for _, e := range c.two {
				if err := n.Adopt(e); err != nil {
					t.Fatal(err)
				}
			}
			if got := fmt.Sprint(n.names()["web.shop"], n.names()["shop"]); got != "["+c.want+"] ["+c.want+"]" {
				t.Errorf("names lead to %s, wanted %s", got, c.want)
			}
		})
	}
}

// FuzzAnswer: whatever a container sends, what it gets is a message with its number, or nothing.
func FuzzAnswer(f *testing.F) {
	n := testNetwork(f)
	f.Add(question(f, "web.shop.", dnsmessage.TypeA))
	f.Add(question(f, "3.1.209.10.in-addr.arpa.", dnsmessage.TypePTR))
	f.Add([]byte{0, 1, 0x28, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, msg []byte) {
		answer := n.answer(t.Context(), msg, &upstream{resolvConf: n.cfg.ResolvConf}, "udp")
		if answer == nil {
			return
		}
		var p dnsmessage.Parser
		h, err := p.Start(answer)
		if err != nil || !h.Response || h.ID != binary.BigEndian.Uint16(msg) {
			t.Fatalf("answered %x to %x: %v", answer, msg, err)
		}
		if _, err := p.AllQuestions(); err != nil {
			t.Fatal(err)
		}
		if _, err := p.AllAnswers(); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzNameservers(f *testing.F) {
	f.Add("nameserver 192.0.2.53\n")
	f.Fuzz(func(t *testing.T, text string) {
		if got := nameservers(text); len(got) > maxServers {
			t.Fatalf("%d servers", len(got))
		}
	})
}
