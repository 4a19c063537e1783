package artifact

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"kingpost/internal/mesh"
)

// Client speaks the OCI distribution protocol to one store. It implements Source and is safe for concurrent use.
type Client struct {
	// HTTP carries the requests; its transport decides about sockets, TLS and timeouts.
	HTTP *http.Client
	// Base is the scheme and host of the store: "https://10.0.0.1:5000". Over a unix socket the host is a mere name.
	Base string
}

// NewClient returns a client of the one store that dial connects to.
func NewClient(dial func(context.Context) (net.Conn, error)) *Client {
	tr := &http.Transport{
		DialContext:         func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		DisableCompression:  true,
		MaxIdleConnsPerHost: 4,
	}
	return &Client{HTTP: &http.Client{Transport: tr}, Base: "http://store"}
}

// StoreError is a refusal by the store.
type StoreError struct {
	Method, Path string
	Status       int
	Code         string // the specification's code: "BLOB_UNKNOWN"
	Message      string
}

func (e *StoreError) Error() string {
	s := fmt.Sprintf("store: %s %s: %d %s", e.Method, e.Path, e.Status, http.StatusText(e.Status))
	if e.Code != "" {
		s += ": " + e.Code
	}
	if e.Message != "" {
		s += ": " + e.Message
	}
	return s
}

// Is makes a 404 an fs.ErrNotExist and a 401 or 403 an fs.ErrPermission.
func (e *StoreError) Is(target error) bool {
	switch target {
	case fs.ErrNotExist:
		return e.Status == http.StatusNotFound
	case fs.ErrPermission:
		return e.Status == http.StatusUnauthorized || e.Status == http.StatusForbidden
	}
	return false
}

// acceptManifests is what this package can read.
const acceptManifests = ocispec.MediaTypeImageManifest + ", " + ocispec.MediaTypeImageIndex + ", " + dockerManifest + ", " + dockerList

// Ping asks whether a store answers at all: GET /v2/.
func (c *Client) Ping(ctx context.Context) error {
	resp, err := c.do(ctx, http.MethodGet, "/v2/", nil, 0, nil)
	if err != nil {
		return err
	}
	drain(resp)
	return nil
}

// Resolve implements Source.
func (c *Client) Resolve(ctx context.Context, ref mesh.Ref, tag string) (ocispec.Descriptor, error) {
	if err := checkTag(tag); err != nil {
		return ocispec.Descriptor{}, err
	}
	raw, mt, err := c.manifest(ctx, ref, tag)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	return ocispec.Descriptor{MediaType: mt, Digest: digestOf(raw), Size: int64(len(raw))}, nil
}

// Manifest implements Source.
func (c *Client) Manifest(ctx context.Context, ref mesh.Ref, digest string) ([]byte, error) {
	if err := CheckDigest(digest); err != nil {
		return nil, err
	}
	raw, _, err := c.manifest(ctx, ref, digest)
	if err != nil {
		return nil, err
	}
	if got := DigestOf(raw); got != digest {
		return nil, &DigestError{Want: digest, Got: got}
	}
	return raw, nil
}

func (c *Client) manifest(ctx context.Context, ref mesh.Ref, reference string) ([]byte, string, error) {
	resp, err := c.do(ctx, http.MethodGet, c.path(ref, "manifests", reference), nil, 0, http.Header{"Accept": {acceptManifests}})
	if err != nil {
		return nil, "", err
	}
	defer drain(resp)
	raw, err := io.ReadAll(io.LimitReader(resp.Body, MaxManifest+1))
	if err == nil && len(raw) > MaxManifest {
		err = fmt.Errorf("manifest %s of %s has more than %d bytes", reference, ref, MaxManifest)
	}
	return raw, resp.Header.Get("Content-Type"), err
}

// Tags lists the tags of ref's repository; none when the store does not know it.
func (c *Client) Tags(ctx context.Context, ref mesh.Ref) ([]string, error) {
	var out []string
	err := c.pages(ctx, "/v2/"+ref.Repository()+"/tags/list?n=1000", func(body []byte) error {
		var page struct {
			Tags []string `json:"tags"`
		}
		err := json.Unmarshal(body, &page)
		out = append(out, page.Tags...)
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return out, err
}

// Repositories lists what the store holds, as far as it is named KIND/NAME.
func (c *Client) Repositories(ctx context.Context) ([]mesh.Ref, error) {
	var out []mesh.Ref
	err := c.pages(ctx, "/v2/_catalog?n=1000", func(body []byte) error {
		var page struct {
			Repositories []string `json:"repositories"`
		}
		err := json.Unmarshal(body, &page)
		for _, r := range page.Repositories {
			if ref, _, err := ParseRef(r + ":x"); err == nil {
				out = append(out, ref)
			}
		}
		return err
	})
	return out, err
}

// maxPages bounds a listing that never ends.
const maxPages = 1000

// pages follows the Link headers of a listing (distribution specification, "Content Discovery").
func (c *Client) pages(ctx context.Context, p string, do func([]byte) error) error {
	for range maxPages {
		resp, err := c.do(ctx, http.MethodGet, p, nil, 0, nil)
		if err != nil {
			return err
		}
		body, err := io.ReadAll(io.LimitReader(resp.Body, MaxManifest))
		drain(resp)
		if err == nil {
			err = do(body)
		}
		if err != nil {
			return fmt.Errorf("store: GET %s: %w", p, err)
		}
		link, _, _ := strings.Cut(resp.Header.Get("Link"), ";")
		link = strings.Trim(link, " <>")
		if link == "" {
			return nil
		}
		if p, err = samePlace(link); err != nil {
			return err
		}
	}
	return fmt.Errorf("store: a listing has more than %d pages", maxPages)
}

// samePlace keeps a URL's path and query: whatever host and scheme a store believes it has, it is asked where
// it was reached.
func samePlace(location string) (string, error) {
	u, err := url.Parse(location)
	if err != nil {
		return "", fmt.Errorf("store: bad location %.200q: %w", location, err)
	}
	if !strings.HasPrefix(u.Path, "/v2/") {
		return "", fmt.Errorf("store: location %.200q is not below /v2/", location)
	}
	return u.RequestURI(), nil
}

func (c *Client) path(ref mesh.Ref, what, reference string) string {
	return "/v2/" + ref.Repository() + "/" + what + "/" + reference
}

// do sends one request and turns every status but 2xx into a StoreError. size is the body's length in bytes.
func (c *Client) do(ctx context.Context, method, p string, body io.Reader, size int64, header http.Header) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.Base+p, body)
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.ContentLength = size
		if size == 0 {
			req.Body = http.NoBody
		}
	}
	for k, v := range header {
		req.Header[k] = v
	}
	resp, err := c.HTTP.Do(req)
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer drain(resp)
	e := &StoreError{Method: method, Path: req.URL.Path, Status: resp.StatusCode}
	raw, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	var answer struct {
		Errors []struct{ Code, Message string } `json:"errors"`
	}
	if json.Unmarshal(raw, &answer) == nil && len(answer.Errors) > 0 {
		e.Code, e.Message = answer.Errors[0].Code, answer.Errors[0].Message
	}
	return nil, e
}

// drain lets the connection be used again.
func drain(resp *http.Response) {
	io.CopyN(io.Discard, resp.Body, 64<<10)
	resp.Body.Close()
}
