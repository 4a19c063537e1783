package api

import (
	"io"
	"net/http"
	"time"
)

// Bounds on those who stall in the middle of a request: one that neither sends nor takes a byte for this
// long loses its connection. Reading a whole blob or following a log may take as long as it takes.
const (
	stall      = time.Minute
	stallCheck = 5 * time.Second // a deadline is moved at most this often
)

// Guard moves the connection's deadlines along with its progress.
func Guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		if r.Body != nil && r.Body != http.NoBody {
			r.Body = &guardedBody{ReadCloser: r.Body, rc: rc}
		}
		gw := &guardedWriter{ResponseWriter: w, rc: rc}
		next.ServeHTTP(gw, r)
		// Left to itself the last deadline would cut the next request on the same connection.
		rc.SetReadDeadline(time.Time{})
		rc.SetWriteDeadline(time.Now().Add(stall))
	})
}

type guardedBody struct {
	io.ReadCloser
	rc   *http.ResponseController
	next time.Time
}

func (b *guardedBody) Read(p []byte) (int, error) {
	if now := time.Now(); now.After(b.next) {
		b.rc.SetReadDeadline(now.Add(stall))
		b.next = now.Add(stallCheck)
	}
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		// The server goes on reading behind the handler's back to notice that the client has gone. A
		// deadline that passes then would look like that and cancel a call that takes long.
		b.rc.SetReadDeadline(time.Time{})
	}
	return n, err
}

type guardedWriter struct {
	http.ResponseWriter
	rc   *http.ResponseController
	next time.Time
}

func (w *guardedWriter) Write(p []byte) (int, error) {
	w.move()
	return w.ResponseWriter.Write(p)
}

// Flush is where a stream really waits for its client.
func (w *guardedWriter) Flush() { w.FlushError() }

// FlushError is Flush for http.ResponseController.
func (w *guardedWriter) FlushError() error {
	w.move()
	return w.rc.Flush()
}

func (w *guardedWriter) move() {
	if now := time.Now(); now.After(w.next) {
		w.rc.SetWriteDeadline(now.Add(stall))
		w.next = now.Add(stallCheck)
	}
}

// Unwrap lets http.ResponseController reach the connection.
func (w *guardedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
