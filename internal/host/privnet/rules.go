package privnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	mdlayher "github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"kingpost/internal/mesh"
)

// tableName is the host's own table; it touches no other.
const tableName = "kingpost"

// socketBuffer holds, in bytes, the rules of a node that publishes some thousand ports, which go to the kernel in one
// piece, or the answers to them.
const socketBuffer = 16 << 20

// applyRules replaces the rules by those of the endpoints, in one transaction: no packet meets half of them, and
// connections that are there stay, since the kernel remembers their translation apart from the rules.
//
//	prerouting, output   what is for a published port of the node goes to its container
//	postrouting          what leaves the node gets the node's address, and so does what would be answered past the node
//	input                from a container: names, what belongs to a connection, the mesh's ports for those with an identity
//	forward              between containers, out of them, and into them by published ports; nothing else is routed
//	away                 no word to containers that nobody hears names while the host restarts: they ask again
//
// routed says that the machine routed already, for others.
func applyRules(endpoints map[string]*Endpoint, routed bool) error {
	c, err := nftables.New(nftables.WithSockOptions(func(c *mdlayher.Conn) error {
		return errors.Join(c.SetWriteBuffer(socketBuffer), c.SetReadBuffer(socketBuffer))
	}))
	if err != nil {
		return fmt.Errorf("make the rules of the private network: %w", err)
	}
	policy, err := forwardPolicy(c, routed)
	if err != nil {
		return fmt.Errorf("read the rules of the private network: %w", err)
	}
	t := c.AddTable(&nftables.Table{Name: tableName, Family: nftables.TableFamilyINet})
	c.FlushTable(t)
	r := &ruler{c: c, t: t}
	publish := r.chain("publish", "", nil, nil, nil)
	for _, key := range slices.Sorted(maps.Keys(endpoints)) {
		e := endpoints[key]
		if e.Trial {
			continue
		}
		for _, p := range e.Ports {
			r.add(publish, isIPv4(), isProtocol(p.Protocol), toPort(p.Host), dnat(e.Address, p.Container))
			r.add(publish, isIPv6(), isProtocol(p.Protocol), toPort(p.Host), dnat(Address6(e.Address), p.Container))
		}
	}
	others := r.chain("prerouting", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest, nil)
	r.add(others, toNode(), jump(publish))
	own := r.chain("output", nftables.ChainTypeNAT, nftables.ChainHookOutput, nftables.ChainPriorityNATDest, nil)
	// Nothing leaves the node that came from ::1, whatever it is translated to: there it is refused, not lost.
	r.add(own, to(netip.MustParsePrefix("::1/128")), []expr.Any{&expr.Verdict{Kind: expr.VerdictReturn}})
	r.add(own, toNode(), jump(publish))
	r.postrouting()
	r.input(endpoints)
	r.forward(policy)
	away := r.chain("away", nftables.ChainTypeFilter, nftables.ChainHookOutput, nftables.ChainPriorityFilter, nil)
	r.add(away, out(Bridge), isIPv4(), l4(unix.IPPROTO_ICMP), icmp(3, 3), drop())   // destination unreachable, port unreachable (RFC 792)
	r.add(away, out(Bridge), isIPv6(), l4(unix.IPPROTO_ICMPV6), icmp(1, 4), drop()) // the same (RFC 4443)
	if err := c.Flush(); err != nil {
		return fmt.Errorf("make the rules of the private network: %w; the kernel needs nf_tables with nft_chain_nat, nft_ct, nft_fib_inet, nft_masq, nft_nat and nft_reject_inet", err)
	}
	return nil
}

// forwardPolicy is what becomes of packets that are routed and are none of ours. A node routes for nobody else; but a
// machine that routed before we came goes on.
func forwardPolicy(c *nftables.Conn, routed bool) (nftables.ChainPolicy, error) {
	chains, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return 0, err
	}
	for _, ch := range chains {
		if ch.Table.Name == tableName && ch.Name == "forward" && ch.Policy != nil {
			return *ch.Policy, nil
		}
	}
	if routed {
		return nftables.ChainPolicyAccept, nil
	}
	return nftables.ChainPolicyDrop, nil
}

type ruler struct {
	c *nftables.Conn
	t *nftables.Table
}

func (r *ruler) chain(name string, kind nftables.ChainType, hook *nftables.ChainHook, prio *nftables.ChainPriority, policy *nftables.ChainPolicy) *nftables.Chain {
	return r.c.AddChain(&nftables.Chain{Name: name, Table: r.t, Type: kind, Hooknum: hook, Priority: prio, Policy: policy})
}

func (r *ruler) add(ch *nftables.Chain, parts ...[]expr.Any) {
	r.c.AddRule(&nftables.Rule{Table: r.t, Chain: ch, Exprs: slices.Concat(parts...)})
}

func (r *ruler) postrouting() {
	ch := r.chain("postrouting", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource, nil)
	four, six := netip.MustParsePrefix(net4).Masked(), netip.MustParsePrefix(net6).Masked()
	r.add(ch, from(four), notOut(Bridge), masquerade())
	r.add(ch, from(six), notOut(Bridge), masquerade())
	// A container that reaches another by the node's published port would be answered on the bridge, past the node.
	r.add(ch, from(four), out(Bridge), translated(), masquerade())
	r.add(ch, from(six), out(Bridge), translated(), masquerade())
	// The node itself by 127.0.0.1, an address that nobody else can answer to.
	r.add(ch, from(netip.MustParsePrefix("127.0.0.0/8")), out(Bridge), masquerade())
}

func (r *ruler) input(endpoints map[string]*Endpoint) {
	ch := r.chain("input", nftables.ChainTypeFilter, nftables.ChainHookInput, nftables.ChainPriorityFilter, nil)
	r.add(ch, notIn(Bridge), accept())
	r.add(ch, known(), accept())
	r.add(ch, to(netip.MustParsePrefix("127.0.0.0/8")), drop())
	r.add(ch, isIPv4(), l4(unix.IPPROTO_ICMP), accept())
	r.add(ch, isIPv6(), l4(unix.IPPROTO_ICMPV6), accept()) // neighbours are found by it
	for _, protocol := range []string{"udp", "tcp"} {
		r.add(ch, to(netip.PrefixFrom(Gateway(), 32)), isProtocol(protocol), toPort(namePort), accept())
		r.add(ch, to(netip.PrefixFrom(Gateway6(), 128)), isProtocol(protocol), toPort(namePort), accept())
	}
	for _, key := range slices.Sorted(maps.Keys(endpoints)) {
		e := endpoints[key]
		if !e.MeshPorts {
			continue
		}
		for _, port := range []int{mesh.PortAPI, mesh.PortStore, mesh.PortNATS} {
			r.add(ch, from(netip.PrefixFrom(e.Address, 32)), isProtocol("tcp"), toPort(port), accept())
			r.add(ch, from(netip.PrefixFrom(Address6(e.Address), 128)), isProtocol("tcp"), toPort(port), accept())
		}
	}
	r.add(ch, isProtocol("tcp"), []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}})
	r.add(ch, drop())
}

func (r *ruler) forward(policy nftables.ChainPolicy) {
	ch := r.chain("forward", nftables.ChainTypeFilter, nftables.ChainHookForward, nftables.ChainPriorityFilter, &policy)
	r.add(ch, known(), accept())
	r.add(ch, in(Bridge), out(Bridge), accept())
	// Clouds hand out a machine's secrets at link-local addresses to whoever asks from it.
	r.add(ch, in(Bridge), to(netip.MustParsePrefix("169.254.0.0/16")), drop())
	r.add(ch, in(Bridge), to(netip.MustParsePrefix("fd00:ec2::/32")), drop())
	r.add(ch, in(Bridge), accept())
	r.add(ch, out(Bridge), translated(), accept())
	r.add(ch, out(Bridge), drop())
}

func equal(register uint32, data []byte) expr.Any {
	return &expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: data}
}

func interfaceName(key expr.MetaKey, op expr.CmpOp, name string) []expr.Any {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: op, Register: 1, Data: b}}
}

func in(name string) []expr.Any     { return interfaceName(expr.MetaKeyIIFNAME, expr.CmpOpEq, name) }
func notIn(name string) []expr.Any  { return interfaceName(expr.MetaKeyIIFNAME, expr.CmpOpNeq, name) }
func out(name string) []expr.Any    { return interfaceName(expr.MetaKeyOIFNAME, expr.CmpOpEq, name) }
func notOut(name string) []expr.Any { return interfaceName(expr.MetaKeyOIFNAME, expr.CmpOpNeq, name) }

func isIPv4() []expr.Any { return protocol(unix.NFPROTO_IPV4) }
func isIPv6() []expr.Any { return protocol(unix.NFPROTO_IPV6) }

func protocol(family byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, equal(1, []byte{family})}
}

func l4(number byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, equal(1, []byte{number})}
}

func isProtocol(name string) []expr.Any {
	if name == "udp" {
		return l4(unix.IPPROTO_UDP)
	}
	return l4(unix.IPPROTO_TCP)
}

// toPort matches the destination port, which TCP and UDP have at the same place.
func toPort(port int) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		equal(1, binary.BigEndian.AppendUint16(nil, uint16(port))),
	}
}

func icmp(kind, code byte) []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 2}, equal(1, []byte{kind, code})}
}

// Where the addresses are in the headers of IPv4 (RFC 791) and IPv6 (RFC 8200), in bytes.
func from(p netip.Prefix) []expr.Any { return address(p, 12, 8) }
func to(p netip.Prefix) []expr.Any   { return address(p, 16, 24) }

func address(p netip.Prefix, offset4, offset6 uint32) []expr.Any {
	family, offset := isIPv4(), offset4
	if p.Addr().Is6() {
		family, offset = isIPv6(), offset6
	}
	size := uint32(p.Addr().BitLen() / 8)
	mask := make([]byte, size)
	for i := range p.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return append(family,
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: size, Mask: mask, Xor: make([]byte, size)},
		equal(1, p.Masked().Addr().AsSlice()))
}

// toNode matches what is addressed to the node itself, by any of its addresses.
func toNode() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true},
		equal(1, binary.NativeEndian.AppendUint32(nil, unix.RTN_LOCAL)),
	}
}

func conntrack(key expr.CtKey, bits uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: key, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binary.NativeEndian.AppendUint32(nil, bits), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
	}
}

// known matches what belongs to a connection that was let through.
func known() []expr.Any {
	return conntrack(expr.CtKeySTATE, expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED)
}

// ipsDstNAT is IPS_DST_NAT (include/uapi/linux/netfilter/nf_conntrack_common.h).
const ipsDstNAT = 1 << 5

// translated matches what came for a published port.
func translated() []expr.Any { return conntrack(expr.CtKeySTATUS, ipsDstNAT) }

func dnat(a netip.Addr, port int) []expr.Any {
	family := uint32(unix.NFPROTO_IPV4)
	if a.Is6() {
		family = unix.NFPROTO_IPV6
	}
	return []expr.Any{
		&expr.Immediate{Register: 1, Data: a.AsSlice()},
		&expr.Immediate{Register: 2, Data: binary.BigEndian.AppendUint16(nil, uint16(port))},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: family, RegAddrMin: 1, RegProtoMin: 2, Specified: true},
	}
}

func masquerade() []expr.Any { return []expr.Any{&expr.Masq{}} }
func accept() []expr.Any     { return []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}} }
func drop() []expr.Any       { return []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}} }
func jump(to *nftables.Chain) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: to.Name}}
}
