package imagesource

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	"kingpost/installer/diskwrite"
)

const (
	// tries is how often a download may break without a byte having come in between.
	tries = 6
	// firstPause doubles with each try.
	firstPause = 500 * time.Millisecond
	// headerTime bounds the wait for an answer, stallTime that for the next bytes.
	headerTime = 30 * time.Second
	stallTime  = 60 * time.Second
)

// ErrChanged is wrapped where the server's file is not the one any more that a download began with.
var ErrChanged = errors.New("the file on the server has changed while it was fetched")

// openURL opens a URL; pause is how long it waits before it tries again for the first time.
func openURL(ctx context.Context, name string, o Options, pause time.Duration) (_ *Image, err error) {
	u, err := url.Parse(name)
	if err != nil {
		return nil, err
	}
	client := o.Client
	if client == nil {
		tr := http.DefaultTransport.(*http.Transport).Clone()
		tr.ResponseHeaderTimeout = headerTime
		tr.DisableCompression = true // Content-Encoding would change lengths and places
		client = &http.Client{Transport: tr}
	}
	d := &download{client: client, url: name, total: -1, sum: sha256.New(), warn: o.Warn, pause: pause}
	i := &Image{Name: name, Size: -1, close: []func() error{d.close}}
	defer func() {
		if err != nil {
			i.Close()
		}
	}()
	d.ctx = ctx
	r := bufio.NewReaderSize(d, 64<<10)
	head, err := r.Peek(len(zstdMagic))
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	base := path.Base(u.Path)
	if bytes.Equal(head, zstdMagic) {
		if err := i.decompress(r, base); err != nil {
			return nil, err
		}
	} else {
		i.Source, i.Size = &streamSource{r: r, what: "fetch " + u.Redacted()}, d.total
	}
	i.Vouched, err = vouch(strings.TrimSuffix(base, ".zst"), func(file string, limit int64) ([]byte, error) {
		beside := *u
		beside.Path, beside.RawPath = path.Join(path.Dir(u.Path), file), ""
		return fetchSmall(ctx, client, beside.String(), limit)
	})
	return i, err
}

// fetchSmall fetches a file whole; fs.ErrNotExist where the server has none.
func fetchSmall(ctx context.Context, client *http.Client, name string, limit int64) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, stallTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, name, nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
		return readAll(resp.Body, limit)
	case http.StatusNotFound, http.StatusForbidden, http.StatusGone:
		return nil, fs.ErrNotExist
	}
	return nil, fmt.Errorf("the server answers %s", resp.Status)
}

// download reads a URL from its first byte to its last, over as many requests as that takes.
type download struct {
	ctx    context.Context // io.Reader has no other way; it lives as long as one download
	client *http.Client
	url    string
	warn   func(format string, args ...any)
	pause  time.Duration

	body     io.ReadCloser
	cancel   context.CancelFunc
	watch    *time.Timer
	at       int64     // bytes that were given
	total    int64     // -1: the server does not say
	etag     string    // as the first answer had it
	modified string    // Last-Modified of the first answer
	sum      hash.Hash // of what was given, to find a change without ranges
	failed   int       // tries since the last byte
}

// Read implements io.Reader.
func (d *download) Read(p []byte) (int, error) {
	for {
		if d.total >= 0 && d.at >= d.total {
			return 0, io.EOF
		}
		if d.body == nil {
			if err := d.open(); err != nil {
				if err := d.again(err); err != nil {
					return 0, err
				}
				continue
			}
		}
		d.watch.Reset(stallTime)
		n, err := d.body.Read(p)
		if n > 0 {
			d.failed = 0
			d.at += int64(n)
			d.sum.Write(p[:n])
			return n, nil
		}
		if errors.Is(err, io.EOF) && (d.total < 0 || d.at >= d.total) {
			return 0, io.EOF
		}
		if err == nil {
			continue
		}
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		d.drop()
		if err := d.again(err); err != nil {
			return 0, err
		}
	}
}

// again waits before the next try, or says that there is none.
func (d *download) again(err error) error {
	var stop *finalError
	if errors.As(err, &stop) {
		return stop.err
	}
	if d.ctx.Err() != nil {
		return context.Cause(d.ctx)
	}
	if d.failed++; d.failed >= tries {
		return fmt.Errorf("%w: fetched %d bytes, then %d tries in a row failed: %w", diskwrite.ErrSource, d.at, d.failed, err)
	}
	pause := d.pause << (d.failed - 1)
	d.warn("the download broke after %d bytes (%v); trying again in %v", d.at, err, pause)
	select {
	case <-time.After(pause):
		return nil
	case <-d.ctx.Done():
		return context.Cause(d.ctx)
	}
}

// finalError is one that another try does not mend.
type finalError struct{ err error }

func (e *finalError) Error() string { return e.err.Error() }

func final(format string, args ...any) error { return &finalError{fmt.Errorf(format, args...)} }

// open makes a request for what is not there yet, and checks that the answer is of the same file.
func (d *download) open() error {
	ctx, cancel := context.WithCancel(d.ctx)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, d.url, nil)
	if err != nil {
		cancel()
		return final("%w", err)
	}
	req.Header.Set("Accept-Encoding", "identity")
	if d.at > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", d.at))
		// A weak tag must not be used here (RFC 9110, section 13.1.5).
		if d.etag != "" && !strings.HasPrefix(d.etag, "W/") {
			req.Header.Set("If-Range", d.etag)
		} else if d.modified != "" {
			req.Header.Set("If-Range", d.modified)
		}
	}
	d.watch = time.AfterFunc(stallTime, cancel)
	resp, err := d.client.Do(req)
	if err != nil {
		d.watch.Stop()
		cancel()
		return err
	}
	d.body, d.cancel = resp.Body, cancel
	if err := d.accept(resp); err != nil {
		d.drop()
		return err
	}
	return nil
}

func (d *download) accept(resp *http.Response) error {
	switch {
	case resp.StatusCode == http.StatusOK:
		if resp.Header.Get("Content-Encoding") != "" {
			return final("%w: the server sends it encoded as %q, which was not asked for", diskwrite.ErrSource, resp.Header.Get("Content-Encoding"))
		}
	case resp.StatusCode == http.StatusPartialContent && d.at > 0:
	case resp.StatusCode == http.StatusRequestedRangeNotSatisfiable:
		return final("%w: %w: it is shorter now", diskwrite.ErrSource, ErrChanged)
	case resp.StatusCode >= 500 || resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusRequestTimeout:
		return fmt.Errorf("the server answers %s", resp.Status)
	default:
		return final("the server answers %s", resp.Status)
	}
	etag, modified := resp.Header.Get("ETag"), resp.Header.Get("Last-Modified")
	if d.at == 0 {
		d.total, d.etag, d.modified = resp.ContentLength, etag, modified
		return nil
	}
	if etag != d.etag || modified != d.modified {
		return final("%w: %w: fetch it again", diskwrite.ErrSource, ErrChanged)
	}
	if resp.StatusCode == http.StatusPartialContent {
		from, total, err := parseContentRange(resp.Header.Get("Content-Range"))
		switch {
		case err != nil:
			return final("%w: %w", diskwrite.ErrSource, err)
		case from != d.at:
			return final("%w: the server sends from byte %d where %d was asked for", diskwrite.ErrSource, from, d.at)
		case d.total >= 0 && total >= 0 && total != d.total:
			return final("%w: %w: it had %d bytes and has %d now", diskwrite.ErrSource, ErrChanged, d.total, total)
		}
		return nil
	}
	if d.total >= 0 && resp.ContentLength >= 0 && resp.ContentLength != d.total {
		return final("%w: %w: it had %d bytes and has %d now", diskwrite.ErrSource, ErrChanged, d.total, resp.ContentLength)
	}
	return d.skip()
}

// skip reads again what was given already, from a server that starts from the first byte, and checks that it is the same.
func (d *download) skip() error {
	h := sha256.New()
	r := &watched{d.body, d.watch}
	if n, err := io.CopyN(h, r, d.at); err != nil {
		return fmt.Errorf("after %d bytes of what was there already: %w", n, err)
	}
	if !bytes.Equal(h.Sum(nil), d.sum.Sum(nil)) {
		return final("%w: %w: its first %d bytes are other ones", diskwrite.ErrSource, ErrChanged, d.at)
	}
	return nil
}

// watched tells the stall timer of every read.
type watched struct {
	r     io.Reader
	timer *time.Timer
}

func (w *watched) Read(p []byte) (int, error) {
	w.timer.Reset(stallTime)
	return w.r.Read(p)
}

// parseContentRange reads "bytes FROM-TO/TOTAL" (RFC 9110, section 14.4); total is -1 for "*".
func parseContentRange(s string) (from, total int64, err error) {
	rest, ok := strings.CutPrefix(s, "bytes ")
	span, all, ok2 := strings.Cut(rest, "/")
	a, b, ok3 := strings.Cut(span, "-")
	from, err1 := strconv.ParseInt(a, 10, 64)
	to, err2 := strconv.ParseInt(b, 10, 64)
	total = -1
	var err3 error
	if all != "*" {
		total, err3 = strconv.ParseInt(all, 10, 64)
	}
	if !ok || !ok2 || !ok3 || errors.Join(err1, err2, err3) != nil || from < 0 || to < from || all != "*" && to >= total {
		return 0, 0, fmt.Errorf("the server's Content-Range is %.80q", s)
	}
	return from, total, nil
}

func (d *download) drop() {
	if d.body != nil {
		d.watch.Stop()
		d.cancel()
		d.body.Close()
		d.body = nil
	}
}

func (d *download) close() error {
	d.drop()
	d.client.CloseIdleConnections()
	return nil
}
