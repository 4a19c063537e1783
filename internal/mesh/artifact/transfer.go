package artifact

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"slices"
	"strings"

	"kingpost/internal/mesh"
)

// resumes bounds how often one download goes on where it broke off, counted anew whenever bytes came.
const resumes = 3

// Blob implements Source. A download that breaks off is resumed by range.
func (c *Client) Blob(ctx context.Context, ref mesh.Ref, digest string, size int64) (io.ReadCloser, error) {
	if err := CheckDigest(digest); err != nil {
		return nil, err
	}
	d := &download{ctx: ctx, c: c, path: c.path(ref, "blobs", digest), size: size}
	if err := d.open(); err != nil {
		return nil, err
	}
	return VerifyReader(d, digest, size), nil
}

// BlobFrom opens a blob at an offset in bytes, below its size, to go on with one that is on disk in part. Nothing is
// verified: who has the whole of it does that.
func (c *Client) BlobFrom(ctx context.Context, ref mesh.Ref, digest string, size, offset int64) (io.ReadCloser, error) {
	if err := CheckDigest(digest); err != nil {
		return nil, err
	}
	d := &download{ctx: ctx, c: c, path: c.path(ref, "blobs", digest), size: size, offset: offset}
	if err := d.open(); err != nil {
		return nil, err
	}
	return d, nil
}

// download reads a blob over as many requests as it takes.
type download struct {
	ctx    context.Context
	c      *Client
	path   string
	size   int64
	offset int64
	tries  int
	resp   *http.Response
}

func (d *download) open() error {
	var h http.Header
	if d.offset > 0 {
		h = http.Header{"Range": {fmt.Sprintf("bytes=%d-%d", d.offset, d.size-1)}}
	}
	resp, err := d.c.do(d.ctx, http.MethodGet, d.path, nil, 0, h)
	if err != nil {
		return err
	}
	if d.offset > 0 && resp.StatusCode != http.StatusPartialContent {
		// The store knows no ranges: what was read already is read over.
		if _, err := io.CopyN(io.Discard, resp.Body, d.offset); err != nil {
			resp.Body.Close()
			return err
		}
	}
	d.resp = resp
	return nil
}

func (d *download) Read(p []byte) (int, error) {
	for {
		n, err := 0, error(nil)
		if d.resp == nil {
			err = d.open()
		}
		if err == nil {
			n, err = d.resp.Body.Read(p)
			d.offset += int64(n)
		}
		if n > 0 {
			d.tries = 0
			if err != nil && (err != io.EOF || d.offset < d.size) {
				d.drop()
				err = nil
			}
			return n, err
		}
		if err == nil {
			continue
		}
		if err == io.EOF && d.offset >= d.size {
			return 0, io.EOF
		}
		d.drop()
		var refused *StoreError
		if d.tries++; d.tries > resumes || d.ctx.Err() != nil || errors.As(err, &refused) {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return 0, fmt.Errorf("download broke off at byte %d of %d: %w", d.offset, d.size, err)
		}
	}
}

func (d *download) drop() {
	if d.resp != nil {
		d.resp.Body.Close()
		d.resp = nil
	}
}

func (d *download) Close() error {
	d.drop()
	return nil
}

// HasBlob reports whether ref's repository has the blob.
func (c *Client) HasBlob(ctx context.Context, ref mesh.Ref, digest string) (bool, error) {
	return c.head(ctx, c.path(ref, "blobs", digest), nil)
}

// HasManifest reports whether ref's repository has the manifest, by digest or tag.
func (c *Client) HasManifest(ctx context.Context, ref mesh.Ref, reference string) (bool, error) {
	return c.head(ctx, c.path(ref, "manifests", reference), http.Header{"Accept": {acceptManifests}})
}

func (c *Client) head(ctx context.Context, p string, h http.Header) (bool, error) {
	resp, err := c.do(ctx, http.MethodHead, p, nil, 0, h)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	drain(resp)
	return true, nil
}

// PushOption alters a push.
type PushOption func(*pushOptions)

type pushOptions struct{ from []mesh.Ref }

// MountFrom names repositories of the same store that may hold blobs already, as a component's bundle and
// image do; such a blob is mounted instead of sent again.
func MountFrom(refs ...mesh.Ref) PushOption {
	return func(o *pushOptions) { o.from = append(o.from, refs...) }
}

// Push brings an artifact into the store: the blobs that are missing, then the manifest under its tag (under
// its digest alone when the tag is empty). It can be repeated at any time.
func (c *Client) Push(ctx context.Context, a *Artifact, opts ...PushOption) error {
	var o pushOptions
	for _, f := range opts {
		f(&o)
	}
	for _, b := range a.Blobs {
		if err := c.pushBlob(ctx, a.Ref, b, o.from); err != nil {
			return fmt.Errorf("push blob %s of %s: %w", b.Digest, a.Ref, err)
		}
	}
	reference := a.Tag
	if reference == "" {
		reference = string(a.Desc.Digest)
	}
	if err := c.pushManifest(ctx, a, reference); err != nil {
		return fmt.Errorf("push manifest of %s:%s: %w", a.Ref, a.Tag, err)
	}
	return nil
}

func (c *Client) pushManifest(ctx context.Context, a *Artifact, reference string) error {
	m := memBlob(a.Desc.MediaType, a.Manifest)
	body, err := m.Open(ctx)
	if err != nil {
		return err
	}
	resp, err := c.do(ctx, http.MethodPut, c.path(a.Ref, "manifests", reference), body, m.Size, http.Header{"Content-Type": {m.MediaType}})
	if err != nil {
		return err
	}
	defer drain(resp)
	if got := resp.Header.Get("Docker-Content-Digest"); got != "" && got != string(a.Desc.Digest) {
		return &DigestError{Want: string(a.Desc.Digest), Got: got}
	}
	return nil
}

// smallBlob is what is sent without a question whether it is there: the question takes as long. In bytes.
const smallBlob = 64 << 10

// pushBlob sends a blob in one request (distribution specification, "POST then PUT").
func (c *Client) pushBlob(ctx context.Context, ref mesh.Ref, b Blob, from []mesh.Ref) error {
	if b.Size > smallBlob {
		if ok, err := c.HasBlob(ctx, ref, string(b.Digest)); ok || err != nil {
			return err
		}
	} else {
		from = nil
	}
	location, err := c.startUpload(ctx, ref, b, from)
	if err != nil || location == "" {
		return err
	}
	rc, err := b.Open(ctx)
	if err != nil {
		return err
	}
	defer rc.Close()
	sep := "?"
	if strings.Contains(location, "?") {
		sep = "&"
	}
	h := http.Header{"Content-Type": {"application/octet-stream"}}
	resp, err := c.do(ctx, http.MethodPut, location+sep+"digest="+string(b.Digest), rc, b.Size, h)
	if err != nil {
		return err
	}
	drain(resp)
	return nil
}

// startUpload returns where to send the blob, or "" when it could be mounted from another repository. A mount of what is
// not there begins an upload (distribution specification, "Mounting a blob from another repository"), so the last of
// those that may have it needs no question before.
func (c *Client) startUpload(ctx context.Context, ref mesh.Ref, b Blob, from []mesh.Ref) (string, error) {
	base := "/v2/" + ref.Repository() + "/blobs/uploads/"
	start := base
	from = slices.DeleteFunc(slices.Clone(from), func(f mesh.Ref) bool { return f == ref })
	for i, f := range from {
		has := i == len(from)-1
		if !has {
			ok, err := c.HasBlob(ctx, f, string(b.Digest))
			has = ok && err == nil
		}
		if has {
			start = base + "?mount=" + string(b.Digest) + "&from=" + f.Repository()
			break
		}
	}
	resp, err := c.do(ctx, http.MethodPost, start, nil, 0, nil)
	if err != nil {
		return "", err
	}
	drain(resp)
	if resp.StatusCode == http.StatusCreated {
		return "", nil
	}
	return samePlace(resp.Header.Get("Location"))
}

// Delete removes a manifest by digest. What is not there is no error.
func (c *Client) Delete(ctx context.Context, ref mesh.Ref, digest string) error {
	if err := CheckDigest(digest); err != nil {
		return err
	}
	resp, err := c.do(ctx, http.MethodDelete, c.path(ref, "manifests", digest), nil, 0, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	drain(resp)
	return nil
}

// Copy brings one artifact from src into the store and gives it tag ("" for none).
func (c *Client) Copy(ctx context.Context, src Source, ref mesh.Ref, tag, digest string, opts ...PushOption) error {
	a, err := Load(ctx, src, ref, tag, digest)
	if err != nil {
		return err
	}
	return c.Push(ctx, a, opts...)
}

var (
	_ Source = (*Client)(nil)
	_ Source = (*Layout)(nil)
)
