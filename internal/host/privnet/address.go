package privnet

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
)

// The addresses are the node's alone: each node has the same, and none of them leaves it untranslated.
const (
	// Bridge is the name of the bridge.
	Bridge = "kingpost0"

	net4 = "10.209.0.1/16"
	// net6 is a unique local prefix (RFC 4193); its last 32 bits are a container's IPv4 address.
	net6 = "fd6b:706f:7374::1/64"
)

var errFull = errors.New("every address of the private network is taken")

// pool gives out addresses. A key gets the same one each time, as long as nobody else has it: names that somebody has
// looked up, and senders of datagrams, meet the next instance where they met the last.
type pool struct {
	prefix netip.Prefix
	byAddr map[netip.Addr]string
	byKey  map[string]netip.Addr
}

func newPool() *pool {
	p := &pool{prefix: netip.MustParsePrefix(net4), byAddr: map[netip.Addr]string{}, byKey: map[string]netip.Addr{}}
	p.byAddr[p.prefix.Addr()] = Bridge
	return p
}

func (p *pool) take(key string) (netip.Addr, error) {
	if a, ok := p.byKey[key]; ok {
		return a, nil
	}
	h := fnv.New32a()
	h.Write([]byte(key))
	base := p.prefix.Masked().Addr().As4()
	size := uint32(1) << (32 - p.prefix.Bits())
	for i := range size {
		n := (h.Sum32() + i) % size
		if n == 0 || n == size-1 { // the network's own address and the broadcast's
			continue
		}
		a := netip.AddrFrom4([4]byte{base[0], base[1], base[2] + byte(n>>8), base[3] + byte(n)})
		if p.byAddr[a] == "" {
			p.byAddr[a], p.byKey[key] = key, a
			return a, nil
		}
	}
	return netip.Addr{}, errFull
}

// have books the address that key has already.
func (p *pool) have(key string, a netip.Addr) error {
	if !p.prefix.Contains(a) {
		return fmt.Errorf("%s is no address of the private network", a)
	}
	if other := p.byAddr[a]; other != "" && other != key {
		return fmt.Errorf("the address %s is %s's", a, other)
	}
	delete(p.byAddr, p.byKey[key])
	p.byAddr[a], p.byKey[key] = key, a
	return nil
}

func (p *pool) release(key string) {
	delete(p.byAddr, p.byKey[key])
	delete(p.byKey, key)
}

// Address6 is the IPv6 address that belongs to an IPv4 address of the network.
func Address6(a netip.Addr) netip.Addr {
	out := netip.MustParsePrefix(net6).Addr().As16()
	if a == Gateway() {
		return netip.AddrFrom16(out)
	}
	four := a.As4()
	copy(out[12:], four[:])
	return netip.AddrFrom16(out)
}

// Gateway is the node's own IPv4 address in the private network; names are asked there.
func Gateway() netip.Addr { return netip.MustParsePrefix(net4).Addr() }

// Gateway6 is the node's own IPv6 address in it.
func Gateway6() netip.Addr { return netip.MustParsePrefix(net6).Addr() }
