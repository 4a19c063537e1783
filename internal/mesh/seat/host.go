package seat

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
)

// maxAnswer bounds what the host may answer, in bytes.
const maxAnswer = 32 << 20

// Host is a component's way to the host of its own node: the unix socket of mesh.EnvHostSocket. The
// socket's peer uid tells the host which component calls. It implements mesh.Caller.
type Host struct {
	client *http.Client
}

// NewHost makes a client for the host's socket; it connects when it is used.
func NewHost(socket string) *Host {
	return &Host{client: HostHTTP(socket)}
}

// HostHTTP is an HTTP client all of whose connections go to the unix socket, whatever host a URL names.
func HostHTTP(socket string) *http.Client {
	d := &net.Dialer{Timeout: 5 * time.Second}
	return &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			if socket == "" {
				return nil, fmt.Errorf("%s is not set: the resource's manifest must ask for hostAPI", mesh.EnvHostSocket)
			}
			return d.DialContext(ctx, "unix", socket)
		},
		MaxIdleConns: 4, IdleConnTimeout: 30 * time.Second, DisableCompression: true,
	}}
}

// Node is who the node is.
func (h *Host) Node(ctx context.Context) (n hostapi.Node, err error) {
	return n, h.do(ctx, http.MethodGet, "/v1/node", nil, &n)
}

// Status is declared beside observed.
func (h *Host) Status(ctx context.Context) (s hostapi.Status, err error) {
	return s, h.do(ctx, http.MethodGet, "/v1/status", nil, &s)
}

// Declare gives the host a declaration; see hostapi for what it refuses.
func (h *Host) Declare(ctx context.Context, d mesh.Declaration) error {
	return h.do(ctx, http.MethodPut, "/v1/declaration", d, nil)
}

// Call calls a seat; see mesh.Caller.
func (h *Host) Call(ctx context.Context, seat, verb string, params, result any, opts ...mesh.CallOption) error {
	var req mesh.CallRequest
	if params != nil {
		data, err := json.Marshal(params)
		if err != nil {
			return fmt.Errorf("call %s %s: %w", seat, verb, err)
		}
		req.Params = data
	}
	for _, o := range opts {
		o(&req)
	}
	var resp mesh.CallResponse
	if err := h.do(ctx, http.MethodPost, "/v1/call/"+url.PathEscape(seat)+"/"+url.PathEscape(verb), req, &resp); err != nil {
		return err
	}
	if resp.Error != nil {
		return resp.Error
	}
	if result == nil || len(resp.Result) == 0 {
		return nil
	}
	if err := json.Unmarshal(resp.Result, result); err != nil {
		return fmt.Errorf("the answer of %s %s: %w", seat, verb, err)
	}
	return nil
}

// do makes one request. What the host refuses is a *hostapi.Error.
func (h *Host) do(ctx context.Context, method, path string, body, result any) error {
	var rd io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("%s %s: %w", method, path, err)
		}
		rd = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://host"+path, rd)
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := h.client.Do(req)
	if err != nil {
		return fmt.Errorf("ask the host: %w", err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err == nil && len(data) > maxAnswer {
		err = fmt.Errorf("it is larger than %d bytes", maxAnswer)
	}
	if err != nil {
		return fmt.Errorf("read the host's answer to %s %s: %w", method, path, err)
	}
	if resp.StatusCode/100 != 2 {
		return refused(resp.StatusCode, method, path, data)
	}
	if result == nil {
		return nil
	}
	if err := json.Unmarshal(data, result); err != nil {
		return fmt.Errorf("the host's answer to %s %s: %w", method, path, err)
	}
	return nil
}

// refused reads the two shapes that a refusal can have.
func refused(status int, method, path string, data []byte) error {
	var call mesh.CallResponse
	if json.Unmarshal(data, &call) == nil && call.Error != nil {
		return call.Error
	}
	he := new(hostapi.Error)
	if json.Unmarshal(data, he) != nil || he.Message == "" {
		he.Message = fmt.Sprintf("%s %s: %s", method, path, http.StatusText(status))
	}
	he.Status = status
	if he.Code == "" {
		he.Code = mesh.CodeFailed
	}
	return he
}

// Away reports whether err says that the host itself did not answer, as opposed to refusing.
func Away(err error) bool {
	var he *hostapi.Error
	var ce *mesh.CallError
	return err != nil && !errors.As(err, &he) && !errors.As(err, &ce)
}
