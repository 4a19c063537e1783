package hostapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"kingpost/internal/mesh"
)

// Ping returns nil once the host answers.
func (c *Client) Ping(ctx context.Context) error {
	return c.get(ctx, http.MethodGet, "/v1/ping", nil, nil)
}

// Node is who the node is and how it stands.
func (c *Client) Node(ctx context.Context) (*Node, error) {
	var n Node
	return &n, c.get(ctx, http.MethodGet, "/v1/node", nil, &n)
}

// Status is declared beside observed.
func (c *Client) Status(ctx context.Context) (*Status, error) {
	var s Status
	return &s, c.get(ctx, http.MethodGet, "/v1/status", nil, &s)
}

// Declaration is what the node must run, nil when nothing is declared yet.
func (c *Client) Declaration(ctx context.Context) (*mesh.Declaration, error) {
	var d mesh.Declaration
	err := c.get(ctx, http.MethodGet, "/v1/declaration", nil, &d)
	var e *Error
	if errors.As(err, &e) && e.Status == http.StatusNotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &d, nil
}

// Declare gives the node a declaration; it is on the node's disk when Declare returns, and applied
// afterwards. An older one is an *Error with mesh.CodeConflict.
func (c *Client) Declare(ctx context.Context, d *mesh.Declaration) error {
	return c.get(ctx, http.MethodPut, "/v1/declaration", d, nil)
}

// LogQuery selects a part of a log. The zero value is all that is kept.
type LogQuery struct {
	Follow bool          // go on until ctx is done
	Since  time.Duration // not older than this; 0: from the start
	Bytes  int64         // at most the last so many bytes of what is there already; 0: no limit
}

// Logs reads the log of a resource ("MODULE/ID") or of a module. The host sends no more than is read.
func (c *Client) Logs(ctx context.Context, key string, q LogQuery) (io.ReadCloser, error) {
	v := url.Values{}
	if q.Follow {
		v.Set("follow", "1")
	}
	if q.Since > 0 {
		v.Set("since", q.Since.String())
	}
	if q.Bytes > 0 {
		v.Set("bytes", strconv.FormatInt(q.Bytes, 10))
	}
	resp, err := c.do(ctx, http.MethodGet, (&url.URL{Path: "/v1/logs/" + key, RawQuery: v.Encode()}).String(), nil)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// CallRaw calls a verb of a seat with a request as it is. A refusal by the seat's holder is in the response;
// one by the host (denied, unavailable) is a *mesh.CallError.
func (c *Client) CallRaw(ctx context.Context, seat, verb string, req mesh.CallRequest) (mesh.CallResponse, error) {
	var resp mesh.CallResponse
	err := c.get(ctx, http.MethodPost, "/v1/call/"+url.PathEscape(seat)+"/"+url.PathEscape(verb), req, &resp)
	var e *Error
	if errors.As(err, &e) {
		return resp, &mesh.CallError{Code: e.Code, Message: e.Message}
	}
	return resp, err
}

// Call implements mesh.Caller.
func (c *Client) Call(ctx context.Context, seat, verb string, params, result any, opts ...mesh.CallOption) error {
	var req mesh.CallRequest
	for _, o := range opts {
		o(&req)
	}
	if params != nil {
		b, err := json.Marshal(params)
		if err != nil {
			return fmt.Errorf("call %s %s: write the parameters: %w", seat, verb, err)
		}
		req.Params = b
	}
	resp, err := c.CallRaw(ctx, seat, verb, req)
	if err != nil {
		return err
	}
	if resp.Error != nil {
		return resp.Error
	}
	if result == nil || len(resp.Result) == 0 {
		return nil
	}
	if err := json.Unmarshal(resp.Result, result); err != nil {
		return fmt.Errorf("call %s %s: read the result: %w", seat, verb, err)
	}
	return nil
}

var _ mesh.Caller = (*Client)(nil)

// Clear lets a held resource ("MODULE/ID") try again.
func (c *Client) Clear(ctx context.Context, key string) error {
	return c.get(ctx, http.MethodPost, (&url.URL{Path: "/v1/resources/" + key + "/clear"}).String(), nil, nil)
}

// StartRaise starts a raise, or continues the one under way, and returns how it stands. State is "done"
// when the node is raised already. Another mesh is an *Error with mesh.CodeConflict.
func (c *Client) StartRaise(ctx context.Context, req RaiseRequest) (*RaiseStatus, error) {
	var s RaiseStatus
	return &s, c.get(ctx, http.MethodPost, "/v1/raise", req, &s)
}

// Raise is how the raise stands.
func (c *Client) Raise(ctx context.Context) (*RaiseStatus, error) {
	var s RaiseStatus
	return &s, c.get(ctx, http.MethodGet, "/v1/raise", nil, &s)
}

// FollowRaise calls each with the raise's status, now and at every change, until the raise has ended, each
// returns an error (which is returned), or ctx is done. While each runs the host queues nothing: statuses
// that change meanwhile are left out, the newest never. It returns nil when the host ended the stream in
// order; the connection's error otherwise, after which the caller may simply follow again.
func (c *Client) FollowRaise(ctx context.Context, each func(RaiseStatus) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	resp, err := c.do(ctx, http.MethodGet, "/v1/raise?follow=1", nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	dec := json.NewDecoder(resp.Body)
	for {
		var s RaiseStatus
		if err := dec.Decode(&s); err == io.EOF {
			return nil
		} else if err != nil {
			return fmt.Errorf("follow the raise: %w", err)
		}
		if err := each(s); err != nil {
			return err
		}
	}
}

// Power stops the node in order: "reboot" or "poweroff". It returns when the node has begun to.
func (c *Client) Power(ctx context.Context, action string) error {
	return c.get(ctx, http.MethodPost, "/v1/power", PowerRequest{Action: action}, nil)
}

// Reset wipes the node back to unclaimed: it keeps its release and gets a new key. It returns when the node has taken it
// down for good and begins to reboot. Another name than the node's own is an *Error with mesh.CodeConflict.
func (c *Client) Reset(ctx context.Context, req ResetRequest) error {
	return c.get(ctx, http.MethodPost, "/v1/reset", req, nil)
}
