package privnet

import (
	"net/netip"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
)

// Suffix may stand behind every name of the private network. The top-level domain is the one that is reserved for
// private use (ICANN board resolution 2024.07.29.06).
const Suffix = "kingpost.internal"

// nameTTL is how long, in seconds, an answer may be kept: a container's next instance may have another address.
const nameTTL = 5

// names are the addresses behind each name: MODULE for all private containers of the module, ID.MODULE for one.
func (n *Network) names() map[string][]netip.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.nameMap == nil {
		n.nameMap = map[string][]netip.Addr{}
		for _, e := range n.endpoints {
			if e.Trial {
				continue
			}
			for _, name := range []string{e.Module, e.ID + "." + e.Module} {
				n.nameMap[name] = append(n.nameMap[name], e.Address)
			}
		}
	}
	return n.nameMap // never changed, only replaced
}

// nameOf is the name behind an address, for a question the other way round.
func (n *Network) nameOf(a netip.Addr) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, e := range n.endpoints {
		if e.Address == a || Address6(e.Address) == a {
			return e.ID + "." + e.Module + "." + Suffix
		}
	}
	return ""
}

// answerable is a question as this package can answer it: one, of class IN, in lower case without the last dot.
type answerable struct {
	header dnsmessage.Header
	q      dnsmessage.Question
	name   string
}

// parse reads a question; ok is false when nothing can be answered to it, not even that it is wrong.
func parse(msg []byte) (a answerable, code dnsmessage.RCode, ok bool) {
	var p dnsmessage.Parser
	h, err := p.Start(msg)
	if err != nil || h.Response {
		return a, 0, false
	}
	a.header = h
	if h.OpCode != 0 {
		return a, dnsmessage.RCodeNotImplemented, true
	}
	q, err := p.Question()
	if err != nil {
		return a, dnsmessage.RCodeFormatError, true
	}
	a.q = q
	a.name = strings.ToLower(strings.TrimSuffix(q.Name.String(), "."))
	return a, dnsmessage.RCodeSuccess, true
}

// local answers what is known here; done is false where somebody else has to be asked.
//
// A name of one label never leaves the node: to others it would only tell what runs here. What stands below Suffix does
// not either.
func (n *Network) local(a answerable) (answer []byte, done bool) {
	if a.q.Class != dnsmessage.ClassINET {
		return nil, false
	}
	if ip, ok := reverse(a.name); ok {
		own := netip.MustParsePrefix(net4).Contains(ip) || netip.MustParsePrefix(net6).Contains(ip)
		if !own {
			return nil, false
		}
		name := n.nameOf(ip)
		if name == "" {
			return reply(a, dnsmessage.RCodeNameError), true
		}
		if a.q.Type != dnsmessage.TypePTR {
			return reply(a, dnsmessage.RCodeSuccess), true
		}
		return reply(a, dnsmessage.RCodeSuccess, func(b *dnsmessage.Builder, h dnsmessage.ResourceHeader) error {
			to, err := dnsmessage.NewName(name + ".")
			if err != nil {
				return err
			}
			return b.PTRResource(h, dnsmessage.PTRResource{PTR: to})
		}), true
	}
	name, below := strings.CutSuffix(a.name, "."+Suffix)
	addrs, known := n.names()[name]
	if !known {
		if below || a.name == Suffix || a.name != "" && !strings.Contains(a.name, ".") {
			return reply(a, dnsmessage.RCodeNameError), true
		}
		return nil, false
	}
	var records []record
	six := n.hasIPv6()
	for _, addr := range addrs {
		switch {
		case a.q.Type == dnsmessage.TypeA:
			records = append(records, func(b *dnsmessage.Builder, h dnsmessage.ResourceHeader) error {
				return b.AResource(h, dnsmessage.AResource{A: addr.As4()})
			})
		case a.q.Type == dnsmessage.TypeAAAA && six:
			records = append(records, func(b *dnsmessage.Builder, h dnsmessage.ResourceHeader) error {
				return b.AAAAResource(h, dnsmessage.AAAAResource{AAAA: Address6(addr).As16()})
			})
		}
	}
	// A name that is there without such an address: no error, and no record (RFC 2308, "NODATA").
	return reply(a, dnsmessage.RCodeSuccess, records...), true
}

type record func(*dnsmessage.Builder, dnsmessage.ResourceHeader) error

// reply builds an answer of our own.
func reply(a answerable, code dnsmessage.RCode, records ...record) []byte {
	h := dnsmessage.Header{
		ID: a.header.ID, Response: true, OpCode: a.header.OpCode, Authoritative: code != dnsmessage.RCodeServerFailure,
		RecursionDesired: a.header.RecursionDesired, RecursionAvailable: true, RCode: code,
	}
	b := dnsmessage.NewBuilder(nil, h)
	b.EnableCompression()
	rh := dnsmessage.ResourceHeader{Name: a.q.Name, Class: dnsmessage.ClassINET, TTL: nameTTL}
	ok := a.q.Name.Length == 0 || b.StartQuestions() == nil && b.Question(a.q) == nil && b.StartAnswers() == nil
	for i := 0; ok && i < len(records); i++ {
		ok = records[i](&b, rh) == nil
	}
	msg, err := b.Finish()
	if err != nil || !ok {
		return nil // no message that we parsed can lead here; the asker hears nothing and asks again
	}
	return msg
}

// reverse is the address that a question for a name asks about (RFC 1035 section 3.5, RFC 3596 section 2.5).
func reverse(name string) (netip.Addr, bool) {
	if rest, ok := strings.CutSuffix(name, ".in-addr.arpa"); ok {
		parts := strings.Split(rest, ".")
		if len(parts) != 4 {
			return netip.Addr{}, false
		}
		a, err := netip.ParseAddr(parts[3] + "." + parts[2] + "." + parts[1] + "." + parts[0])
		return a, err == nil && a.Is4()
	}
	rest, ok := strings.CutSuffix(name, ".ip6.arpa")
	digits := strings.Split(rest, ".")
	if !ok || len(digits) != 32 {
		return netip.Addr{}, false
	}
	var text strings.Builder
	for i := range digits {
		if i > 0 && i%4 == 0 {
			text.WriteByte(':')
		}
		if len(digits[31-i]) != 1 {
			return netip.Addr{}, false
		}
		text.WriteString(digits[31-i])
	}
	a, err := netip.ParseAddr(text.String())
	return a, err == nil
}
