package api

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"kingpost/internal/host/door"
)

// maxConns bounds the connections of one TLS listener; more wait in the kernel's queue.
const maxConns = 256

// ListenUnix listens on a unix socket that anybody on the node may connect to: who they are decides what
// they may do. A socket left by an earlier host is replaced, by a rename, so that there is no moment
// without one.
func ListenUnix(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("prepare the folder of the host's socket: %w", err)
	}
	tmp := path + ".new"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove an old socket: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: tmp, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen on the host's socket: %w", err)
	}
	l.SetUnlinkOnClose(false) // the next host may have put its own there already
	if err = os.Chmod(tmp, 0o666); err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("listen on the host's socket: %w", err)
	}
	return l, nil
}

// ServeUnix serves on a unix socket; the peer's uid says who it is.
func ServeUnix(ctx context.Context, l net.Listener, d *door.Door, handler http.Handler) error {
	return Serve(ctx, l, handler, func(c net.Conn) func(*http.Request) door.Caller {
		uid, err := peerUID(c)
		return func(*http.Request) door.Caller {
			if err != nil {
				return door.Caller{Local: true, Denied: fmt.Sprintf("who is connected cannot be told: %v", err)}
			}
			return d.Unix(uid)
		}
	})
}

// ServeTLS serves over TLS. Any certificate, or none, gets through the handshake; the door judges it at
// each request, so that whoever is refused is told why.
func ServeTLS(ctx context.Context, l net.Listener, cert func() (*tls.Certificate, error), d *door.Door, handler http.Handler) error {
	cfg := &tls.Config{
		MinVersion:     tls.VersionTLS13,
		ClientAuth:     tls.RequestClientCert,
		NextProtos:     []string{"http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return cert() },
	}
	l = limit(l, maxConns)
	return Serve(ctx, tls.NewListener(l, cfg), handler, func(net.Conn) func(*http.Request) door.Caller {
		return func(r *http.Request) door.Caller { return d.TLS(r.TLS) }
	})
}

// peerUID is the uid of the process that connected (SO_PEERCRED, unix(7)).
func peerUID(c net.Conn) (int, error) {
	uc, ok := c.(*net.UnixConn)
	if !ok {
		return 0, fmt.Errorf("a %T is no unix socket", c)
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, err
	}
	if credErr != nil {
		return 0, credErr
	}
	return int(cred.Uid), nil
}

// limit lets n connections of l be open at once.
func limit(l net.Listener, n int) net.Listener {
	done := make(chan struct{})
	return &limitListener{Listener: l, slots: make(chan struct{}, n), done: done, end: sync.OnceFunc(func() { close(done) })}
}

type limitListener struct {
	net.Listener
	slots chan struct{}
	done  chan struct{}
	end   func()
}

// Accept waits for a free place first, and for a connection then.
func (l *limitListener) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.done:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.slots
		return nil, err
	}
	return &limitConn{Conn: c, free: sync.OnceFunc(func() { <-l.slots })}, nil
}

// Close ends a waiting Accept too.
func (l *limitListener) Close() error {
	l.end()
	return l.Listener.Close()
}

type limitConn struct {
	net.Conn
	free func()
}

func (c *limitConn) Close() error {
	defer c.free()
	return c.Conn.Close()
}
