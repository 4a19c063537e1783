package launcher

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"kingpost/internal/mesh"
)

// Message is what a host says on its notify socket (sd_notify(3)): lines of NAME=VALUE.
type Message struct {
	Ready, Stopping bool
	// Watchdog is set when it says that it is alive.
	Watchdog bool
	Status   string
	// Successor is set when the host asks to be replaced: "KINGPOST_SUCCESSOR=DIGEST SHA256 PATH", the digest of the bundle,
	// the SHA-256 of the program in hex, and its absolute path. The path comes last, since it may hold spaces. The digest
	// "baked-in" stands alone.
	Successor *Host
	// Clear is the digest of a host that an operator lets out of quarantine: "KINGPOST_CLEAR=DIGEST".
	Clear string
}

// maxMessage bounds a message, in bytes.
const maxMessage = 4096

// ParseMessage reads a message. Names that are not known are left out, as sd_notify asks; a malformed successor is an error.
func ParseMessage(b []byte) (Message, error) {
	var m Message
	if len(b) > maxMessage {
		return m, fmt.Errorf("a notify message of %d bytes, at most %d are allowed", len(b), maxMessage)
	}
	for _, line := range strings.Split(string(b), "\n") {
		name, value, _ := strings.Cut(line, "=")
		switch name {
		case "READY":
			m.Ready = value == "1"
		case "STOPPING":
			m.Stopping = value == "1"
		case "STATUS":
			m.Status = value
		case "WATCHDOG":
			m.Watchdog = value == "1"
		case "KINGPOST_CLEAR":
			if value != BakedIn {
				if err := mesh.CheckDigest(value); err != nil {
					return m, fmt.Errorf("KINGPOST_CLEAR: %w", err)
				}
			}
			m.Clear = value
		case "KINGPOST_SUCCESSOR":
			if value == BakedIn {
				m.Successor = &Host{Digest: BakedIn}
				continue
			}
			f := strings.SplitN(value, " ", 3)
			if len(f) != 3 {
				return m, fmt.Errorf("KINGPOST_SUCCESSOR is not DIGEST SHA256 PATH")
			}
			h := Host{Digest: f[0], SHA256: f[1], Path: f[2]}
			if err := h.check(); err != nil {
				return m, err
			}
			m.Successor = &h
		}
	}
	return m, nil
}

// Notify is the socket on which the host reports. Only root can send to it, and only the host's own pid is heard.
type Notify struct {
	Path string
	fd   int
}

// ListenNotify makes the socket.
func ListenNotify(path string) (*Notify, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	_ = os.Remove(path)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make the notify socket: %w", err)
	}
	if err = unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err == nil {
		if err = os.Chmod(path, 0o600); err == nil {
			err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSCRED, 1)
		}
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("make the notify socket %s: %w", path, err)
	}
	return &Notify{path, fd}, nil
}

// Next waits for a message and returns it with its sender's pid.
func (n *Notify) Next() (Message, int, error) {
	buf := make([]byte, maxMessage+1)
	oob := make([]byte, unix.CmsgSpace(unix.SizeofUcred)+unix.CmsgSpace(4*16))
	for {
		got, gotOOB, _, _, err := unix.Recvmsg(n.fd, buf, oob, unix.MSG_CMSG_CLOEXEC)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return Message{}, 0, fmt.Errorf("read the notify socket: %w", err)
		}
		pid := sender(oob[:gotOOB])
		m, err := ParseMessage(buf[:got])
		if err != nil {
			return Message{}, pid, err
		}
		return m, pid, nil
	}
}

// sender is the pid that the kernel says a message is from; files that came with it are closed.
func sender(oob []byte) int {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return 0
	}
	pid := 0
	for i := range msgs {
		if c, err := unix.ParseUnixCredentials(&msgs[i]); err == nil {
			pid = int(c.Pid)
		}
		if fds, err := unix.ParseUnixRights(&msgs[i]); err == nil {
			for _, fd := range fds {
				unix.Close(fd)
			}
		}
	}
	return pid
}
