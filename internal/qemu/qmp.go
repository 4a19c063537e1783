package qemu

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// QMP is a connection to QEMU's machine protocol (docs/interop/qmp-spec in QEMU's source).
type QMP struct {
	conn net.Conn
	done chan struct{} // closed when the reader has ended

	mu      sync.Mutex
	next    uint64
	waiting map[uint64]chan qmpMessage
	events  []Event
	err     error // why the reader ended
}

// Event is something that happened to the machine: "SHUTDOWN", "RESET", "POWERDOWN".
type Event struct {
	Name string
	Time time.Time
	Data json.RawMessage
}

type qmpMessage struct {
	ID     *uint64         `json:"id"`
	Return json.RawMessage `json:"return"`
	Error  *struct {
		Class string `json:"class"`
		Desc  string `json:"desc"`
	} `json:"error"`
	Event     string          `json:"event"`
	Data      json.RawMessage `json:"data"`
	Timestamp struct {
		Seconds      int64 `json:"seconds"`
		Microseconds int64 `json:"microseconds"`
	} `json:"timestamp"`
}

// maxEvents bounds what QMP keeps; a machine that resets in a loop must not fill memory.
const maxEvents = 1000

// dialQMP connects to the socket, which QEMU makes a moment after it was started, and negotiates.
func dialQMP(ctx context.Context, path string) (*QMP, error) {
	var conn net.Conn
	for {
		var err error
		if conn, err = (&net.Dialer{}).DialContext(ctx, "unix", path); err == nil {
			break
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("connect to QMP at %s: %w (%w)", path, context.Cause(ctx), err)
		case <-time.After(20 * time.Millisecond):
		}
	}
	q := &QMP{conn: conn, done: make(chan struct{}), waiting: map[uint64]chan qmpMessage{}}
	go q.read()
	if err := q.Run(ctx, "qmp_capabilities", nil, nil); err != nil {
		q.Close()
		return nil, err
	}
	return q, nil
}

func (q *QMP) read() {
	defer close(q.done)
	dec := json.NewDecoder(bufio.NewReader(q.conn))
	for {
		var m qmpMessage
		if err := dec.Decode(&m); err != nil {
			q.mu.Lock()
			q.err = err
			for _, c := range q.waiting {
				close(c)
			}
			q.waiting = nil
			q.mu.Unlock()
			return
		}
		q.mu.Lock()
		switch {
		case m.Event != "":
			if len(q.events) < maxEvents {
				t := time.Unix(m.Timestamp.Seconds, m.Timestamp.Microseconds*1000)
				q.events = append(q.events, Event{m.Event, t, m.Data})
			}
		case m.ID != nil:
			if c := q.waiting[*m.ID]; c != nil {
				c <- m
				delete(q.waiting, *m.ID)
			}
		}
		q.mu.Unlock()
	}
}

// errClosed is why a command fails after QEMU has ended.
var errClosed = errors.New("QEMU has ended")

// Run executes a command with args (nil for none) and decodes its answer into result (nil to discard).
func (q *QMP) Run(ctx context.Context, command string, args, result any) error {
	c := make(chan qmpMessage, 1)
	q.mu.Lock()
	if q.waiting == nil {
		q.mu.Unlock()
		return fmt.Errorf("QMP %s: %w", command, errClosed)
	}
	q.next++
	id := q.next
	q.waiting[id] = c
	request := struct {
		Execute   string `json:"execute"`
		Arguments any    `json:"arguments,omitempty"`
		ID        uint64 `json:"id"`
	}{command, args, id}
	err := json.NewEncoder(q.conn).Encode(request)
	q.mu.Unlock()
	if err != nil {
		return fmt.Errorf("QMP %s: %w", command, err)
	}
	select {
	case m, ok := <-c:
		switch {
		case !ok:
			return fmt.Errorf("QMP %s: %w", command, errClosed)
		case m.Error != nil:
			return fmt.Errorf("QMP %s: %s", command, m.Error.Desc)
		case result != nil:
			if err := json.Unmarshal(m.Return, result); err != nil {
				return fmt.Errorf("QMP %s: %w", command, err)
			}
		}
		return nil
	case <-ctx.Done():
		q.mu.Lock()
		delete(q.waiting, id)
		q.mu.Unlock()
		return fmt.Errorf("QMP %s: %w", command, context.Cause(ctx))
	}
}

// Monitor executes a line of QEMU's human monitor and returns what it prints.
func (q *QMP) Monitor(ctx context.Context, line string) (string, error) {
	var out string
	err := q.Run(ctx, "human-monitor-command", map[string]string{"command-line": line}, &out)
	return out, err
}

// Events returns the events so far, oldest first, at most the first thousand.
func (q *QMP) Events() []Event {
	q.mu.Lock()
	defer q.mu.Unlock()
	return append([]Event(nil), q.events...)
}

// Close ends the connection and waits for its reader.
func (q *QMP) Close() error {
	err := q.conn.Close()
	<-q.done
	return err
}
