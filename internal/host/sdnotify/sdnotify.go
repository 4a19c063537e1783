// Package sdnotify tells the launcher how the host stands, by the protocol of sd_notify(3).
//
// It never waits for an answer. Start with Notifier.Send.
package sdnotify

import (
	"fmt"
	"net"
	"strings"
)

// Messages.
const (
	Ready    = "READY=1"
	Stopping = "STOPPING=1"
	Watchdog = "WATCHDOG=1"
)

// Notifier sends to one socket; with an empty Socket it sends nothing.
type Notifier struct {
	Socket string // $NOTIFY_SOCKET
}

// Status is a line for people.
func Status(s string) string { return "STATUS=" + strings.ReplaceAll(s, "\n", " ") }

// Send sends the lines as one message.
func (n Notifier) Send(lines ...string) error {
	if n.Socket == "" {
		return nil
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: n.Socket, Net: "unixgram"}) // "@" is an abstract name there too
	if err != nil {
		return fmt.Errorf("tell the launcher: %w", err)
	}
	defer c.Close()
	if _, err := c.Write([]byte(strings.Join(lines, "\n"))); err != nil {
		return fmt.Errorf("tell the launcher: %w", err)
	}
	return nil
}
