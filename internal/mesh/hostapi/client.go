package hostapi

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/tlsid"
)

// maxAnswer bounds an answer that is read whole, in bytes.
const maxAnswer = 64 << 20

// Options says how a client and a node know each other over TLS. A unix socket needs none of it.
type Options struct {
	// NodeKey pins the node by the fingerprint of its key, as its console shows it. It is what there is
	// before a raise, and still true after it; set, it is what counts, and Credentials only say who calls.
	NodeKey string
	// Key is the claim key's certificate, signed by itself (tlsid.SelfSigned); for use before the raise.
	Key *tls.Certificate
	// Credentials are those of an identity of the mesh, for use after the raise. They come before Key.
	Credentials tlsid.Source
	// Node is the name of the node that must answer; empty: any node of the mesh. Without NodeKey only.
	Node string
	// ConnectTimeout bounds the connection and its handshake; 20 seconds by default.
	ConnectTimeout time.Duration
	// Now is the clock that certificates are judged by; time.Now by default.
	Now func() time.Time
}

// Client is a client of one host. It is safe for concurrent use. Close it.
type Client struct {
	base string
	tr   *http.Transport
	http *http.Client
}

// Dial makes a client for target: the path of a unix socket ("/run/kingpost/host.sock"), or host:port (the
// port is mesh.PortAPI by default). It connects at the first request.
func Dial(target string, o Options) (*Client, error) {
	if o.ConnectTimeout == 0 {
		o.ConnectTimeout = 20 * time.Second
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	dialer := &net.Dialer{Timeout: o.ConnectTimeout}
	tr := &http.Transport{
		DisableCompression:  true,
		MaxIdleConnsPerHost: 4,
		IdleConnTimeout:     20 * time.Second, // below the host's own, so that no request meets a closing connection
		TLSHandshakeTimeout: o.ConnectTimeout,
	}
	c := &Client{tr: tr, http: &http.Client{Transport: tr}}
	target = strings.TrimPrefix(target, "unix:")
	if strings.HasPrefix(target, "/") {
		c.base = "http://host"
		tr.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", target)
		}
		return c, nil
	}
	addr, err := address(target)
	if err != nil {
		return nil, err
	}
	c.base = "https://" + addr
	tr.DialContext = dialer.DialContext
	switch {
	case o.NodeKey != "":
		tr.TLSClientConfig = tlsid.PinConfig(o.NodeKey, o.Key)
		if o.Credentials != nil {
			tr.TLSClientConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				cred, err := o.Credentials()
				if err != nil {
					return nil, err
				}
				return &cred.Certificate, nil
			}
		}
	case o.Credentials != nil:
		tr.TLSClientConfig = tlsid.ClientConfig(o.Credentials, expectNode(o.Node), o.Now)
	default:
		return nil, fmt.Errorf("connect to %s: how to know that node is not given: need the fingerprint of its key, which its console shows, or credentials of its mesh", addr)
	}
	return c, nil
}

func expectNode(name string) func(mesh.Identity) error {
	return func(id mesh.Identity) error {
		if id.Role != mesh.RoleNode {
			return fmt.Errorf("%s answers, which is no node", id)
		}
		if name != "" && id.Name != name {
			return fmt.Errorf("the node %s answers, want the node %s", id.Name, name)
		}
		return nil
	}
}

// address completes host:port.
func address(target string) (string, error) {
	host, port, err := net.SplitHostPort(target)
	if err != nil {
		var ae *net.AddrError
		if !errors.As(err, &ae) || (ae.Err != "missing port in address" && ae.Err != "too many colons in address") {
			return "", fmt.Errorf("address %q: %w; want HOST:PORT or the path of a socket", target, err)
		}
		host, port = strings.Trim(target, "[]"), strconv.Itoa(mesh.PortAPI)
	}
	if host == "" || strings.ContainsAny(host, "/?#@ ") {
		return "", fmt.Errorf("address %q: want HOST:PORT or the path of a socket", target)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return "", fmt.Errorf("address %q: %q is no port", target, port)
	}
	return net.JoinHostPort(host, port), nil
}

// HTTP is an HTTP client for BaseURL()+"/v2/..." and the rest of the API, with this client's trust.
func (c *Client) HTTP() *http.Client { return c.http }

// BaseURL is the scheme and host for HTTP; on a unix socket the host is a mere name.
func (c *Client) BaseURL() string { return c.base }

// Close drops idle connections.
func (c *Client) Close() { c.tr.CloseIdleConnections() }

// ConnError says that a host could not be reached, or is not the one that was meant. Nothing was answered.
type ConnError struct {
	Host string // "192.168.1.20:7443", "host" on a unix socket
	Err  error
}

func (e *ConnError) Error() string { return fmt.Sprintf("ask the host at %s: %v", e.Host, e.Err) }
func (e *ConnError) Unwrap() error { return e.Err }

// do makes a request; in (nil for none) is sent as JSON. The answer is 2xx, or the error is an *Error or
// a *ConnError.
func (c *Client) do(ctx context.Context, method, path string, in any) (*http.Response, error) {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", method, path, err)
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err // the address is said once
		}
		return nil, &ConnError{strings.TrimPrefix(strings.TrimPrefix(c.base, "https://"), "http://"), err}
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	e := &Error{}
	if json.Unmarshal(b, e) != nil || e.Message == "" {
		e = &Error{Code: mesh.CodeFailed, Message: fmt.Sprintf("%s %s: the host answers %s", method, path, resp.Status)}
	}
	e.Status = resp.StatusCode
	return nil, e
}

// get makes a request and decodes the answer into out (nil to discard).
func (c *Client) get(ctx context.Context, method, path string, in, out any) error {
	resp, err := c.do(ctx, method, path, in)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return fmt.Errorf("%s %s: read the answer: %w", method, path, err)
	}
	if len(b) > maxAnswer {
		return fmt.Errorf("%s %s: the answer is larger than %d bytes", method, path, maxAnswer)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return fmt.Errorf("%s %s: read the answer: %w", method, path, err)
	}
	return nil
}
