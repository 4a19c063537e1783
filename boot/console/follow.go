package console

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Getter fetches a path of the host's API.
type Getter func(path string) ([]byte, error)

// Follow shows what the host says until ctx ends: at once when woken, each second while something is under way, else
// each five. While the host does not answer the block stays as it was.
func (c *Console) Follow(ctx context.Context, get Getter, wake <-chan struct{}) {
	failed := ""
	for {
		pause := 5 * time.Second
		state, err := c.refresh(get)
		switch {
		case err != nil && !errors.Is(err, errNoHost) && err.Error() != failed:
			failed = err.Error()
			c.Line("warning %s", failed)
		case err == nil:
			failed = ""
		}
		if err != nil || state != "raised" && state != "joined" {
			pause = time.Second
		}
		select {
		case <-ctx.Done():
			return
		case <-wake:
		case <-time.After(pause):
		}
	}
}

func (c *Console) refresh(get Getter) (string, error) {
	n, err := get("/v1/node")
	if err != nil {
		return "", err
	}
	r, err := get("/v1/raise")
	if err != nil {
		r = nil // a host without a raise, or one that is going down: the node's own lines are still right
	}
	st, err := get("/v1/status")
	if err != nil {
		st = nil
	}
	block, screen, state, err := answers{n, r, st}.view()
	if err != nil {
		return "", err
	}
	c.show(block, screen)
	return state, nil
}

// errNoHost is wrapped when nobody listens: the host is starting or down, which the launcher reports.
var errNoHost = errors.New("the host does not answer")

// maxAnswer bounds an answer of the host, in bytes.
const maxAnswer = 1 << 20

// Host returns a Getter for the unix socket at path. It speaks HTTP/1.0 by hand: two requests a second do not justify
// an HTTP stack, and its memory, in PID 1.
func Host(path string, timeout time.Duration) Getter {
	return func(url string) ([]byte, error) {
		return request(path, "GET", url, "", timeout)
	}
}

// Post sends JSON to the host's unix socket at path.
func Post(path, url, body string, timeout time.Duration) error {
	_, err := request(path, "POST", url, body, timeout)
	return err
}

func request(path, method, url, body string, timeout time.Duration) ([]byte, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make a socket: %w", err)
	}
	defer unix.Close(fd)
	tv := unix.NsecToTimeval(timeout.Nanoseconds())
	for _, o := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, o, &tv); err != nil {
			return nil, fmt.Errorf("bound the socket's time: %w", err)
		}
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return nil, fmt.Errorf("%w at %s: %w", errNoHost, path, err)
	}
	req := fmt.Sprintf("%s %s HTTP/1.0\r\nHost: node\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", method, url, len(body), body)
	for b := []byte(req); len(b) > 0; {
		n, err := unix.Write(fd, b)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%w: ask for %s: %w", errNoHost, url, err)
		}
		b = b[n:]
	}
	var answer bytes.Buffer
	deadline := time.Now().Add(timeout)
	buf := make([]byte, 8<<10)
	for {
		n, err := unix.Read(fd, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%w: read %s: %w", errNoHost, url, err)
		}
		if n == 0 {
			break
		}
		answer.Write(buf[:n])
		if answer.Len() > maxAnswer || time.Now().After(deadline) {
			return nil, fmt.Errorf("the host's answer to %s is longer than %d bytes or takes longer than %s", url, maxAnswer, timeout)
		}
	}
	return parseAnswer(url, answer.Bytes())
}

// parseAnswer splits an HTTP/1.0 answer (RFC 1945, section 6) whose body ends with the connection.
func parseAnswer(url string, b []byte) ([]byte, error) {
	head, body, ok := bytes.Cut(b, []byte("\r\n\r\n"))
	if !ok {
		return nil, fmt.Errorf("%w: its answer to %s ends in the header", errNoHost, url)
	}
	status, _, _ := strings.Cut(string(head), "\r\n")
	f := strings.Fields(status)
	if len(f) < 2 || !strings.HasPrefix(f[0], "HTTP/1.") {
		return nil, fmt.Errorf("the host's answer to %s is no HTTP: %.40q", url, status)
	}
	if code, err := strconv.Atoi(f[1]); err != nil || code < 200 || code > 299 {
		return nil, fmt.Errorf("the host answers %s with %.60q", url, status)
	}
	return body, nil
}
