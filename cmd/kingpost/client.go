package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
	"kingpost/internal/mesh/tlsid"
)

// dialTimeout bounds one attempt to connect, not the request.
const dialTimeout = 15 * time.Second

// address completes HOST or HOST:PORT by the API's port.
func address(s string) (string, error) {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		host, port = strings.Trim(s, "[]"), strconv.Itoa(mesh.PortAPI)
	}
	if host == "" || strings.ContainsAny(host, "/ @?#") || (strings.Contains(host, ":") && net.ParseIP(host) == nil) {
		return "", usageError("the node's address %q is neither HOST nor HOST:PORT", s)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return "", usageError("the node's address %q: %q is no port", s, port)
	}
	return net.JoinHostPort(host, port), nil
}

// serverKey asks a node for the fingerprint of its key, without believing anything.
func serverKey(ctx context.Context, addr string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	d := tls.Dialer{Config: &tls.Config{
		MinVersion:         tls.VersionTLS13,
		InsecureSkipVerify: true, // nothing is sent; the fingerprint is for a person to compare
	}}
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return "", err
	}
	defer c.Close()
	return tlsid.FingerprintOf(c.(*tls.Conn).ConnectionState().PeerCertificates[0]), nil
}

// unanswered says whether err is about the connection, so that asking again may help: the node boots,
// or the network is not there yet. A wrong key or a refusal is not.
func unanswered(err error) bool {
	var pin *tlsid.PinError
	var refusal *hostapi.Error
	return err != nil && !errors.As(err, &pin) && !errors.As(err, &refusal) && !errors.Is(err, context.Canceled)
}

// node is the node of a context, reached as its operator.
type node struct {
	at meshContext
	*hostapi.Client
}

// askTime bounds what a node answers from memory, the connection included.
const askTime = time.Minute

// withNode has do talk to the node of cmd's context for at most limit (0: until Ctrl-C). It gives the
// error of do its exit code, and what to do next.
func withNode(cmd *cobra.Command, limit time.Duration, do func(ctx context.Context, n node) error) error {
	c, err := openConfig()
	if err != nil {
		return err
	}
	x, client, err := c.dial(contextName(cmd))
	if err != nil {
		return err
	}
	defer client.Close()
	ctx := cmd.Context()
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	return explain(x, do(ctx, node{x, client}))
}

// explain adds to an error of the API what to do next.
func explain(c meshContext, err error) error {
	var refusal *hostapi.Error
	var call *mesh.CallError
	var conn *hostapi.ConnError
	switch {
	case errors.As(err, &refusal) && (refusal.Status == 401 || refusal.Status == 403),
		errors.As(err, &call) && call.Code == mesh.CodeDenied:
		return &exitError{exitRefused, err}
	case errors.As(err, &conn) && unanswered(err):
		return fmt.Errorf("%w; is the node %s at %s up? `kingpost context list` shows what is used", err, c.Node, c.Address)
	}
	return err
}
