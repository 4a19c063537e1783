package privnet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"
)

const (
	// patience is how long one server has for one answer, maxServers how many are asked (resolv.conf(5), MAXNS).
	patience   = 2 * time.Second
	maxServers = 3
	// maxResolvConf bounds what is read of the settings, in bytes.
	maxResolvConf = 64 << 10
)

// upstream passes questions on to the node's own name servers, as they are. The settings are read for each question:
// they change with a lease, and nothing tells.
type upstream struct {
	resolvConf string
	port       int // of the servers, in tests; 0: 53
}

func (u *upstream) servers() ([]netip.Addr, error) {
	f, err := os.Open(u.resolvConf)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxResolvConf))
	if err != nil {
		return nil, err
	}
	return nameservers(string(b)), nil
}

// nameservers reads the servers of a resolv.conf(5). Our own addresses are left out: a node must not ask itself.
func nameservers(text string) []netip.Addr {
	var out []netip.Addr
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "nameserver" {
			continue
		}
		a, err := netip.ParseAddr(f[1])
		if err != nil || a == Gateway() || a == Gateway6() || len(out) == maxServers {
			continue
		}
		out = append(out, a)
	}
	return out
}

// ask returns the first answer that a server gives.
func (u *upstream) ask(ctx context.Context, msg []byte, network string) ([]byte, error) {
	servers, err := u.servers()
	if err != nil {
		return nil, fmt.Errorf("read the node's name servers: %w", err)
	}
	if len(servers) == 0 {
		return nil, errors.New("the node has no name server")
	}
	port := u.port
	if port == 0 {
		port = namePort
	}
	var errs []error
	for _, s := range servers {
		answer, err := exchange(ctx, network, net.JoinHostPort(s.String(), strconv.Itoa(port)), msg)
		if err == nil {
			return answer, nil
		}
		errs = append(errs, fmt.Errorf("ask %s: %w", s, err))
	}
	return nil, errors.Join(errs...)
}

func exchange(ctx context.Context, network, at string, msg []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, network, at)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	if network == "tcp" {
		if err := writeStream(c, msg); err != nil {
			return nil, err
		}
		return readStream(c)
	}
	if _, err := c.Write(msg); err != nil {
		return nil, err
	}
	buf := make([]byte, maxMessage)
	for {
		size, err := c.Read(buf)
		if err != nil {
			return nil, err
		}
		// The kernel lets only the server's datagrams in; the number tells this answer from a late one.
		if size >= 12 && bytes.Equal(buf[:2], msg[:2]) && buf[2]&0x80 != 0 {
			return buf[:size:size], nil
		}
	}
}
