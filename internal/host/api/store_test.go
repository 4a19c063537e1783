package api

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"kingpost/internal/mesh/artifact"
	"kingpost/internal/mesh/hostapi"
)

// A stock client pushes and pulls through the front, over TLS and the unix socket, by role.
func TestStoreFront(t *testing.T) {
	r := newRig(t)
	r.raise(t)
	var want v1.Hash // what was pushed last
	root := r.dial(t, r.socket, hostapi.Options{})
	for _, tc := range []struct {
		name       string
		c          *hostapi.Client
		push, pull bool
	}{
		{"operator", r.operator(t), true, true},
		{"root on the socket", root, true, true},
		{"controller", r.component(t, "controller"), true, true},
		{"builder", r.component(t, "builder"), true, true},
		{"vault", r.component(t, "vault"), false, true},
		{"claim key after the raise", r.keyClient(t, r.claimK), false, false},
		{"no certificate", r.keyClient(t, nil), false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			host := strings.TrimPrefix(strings.TrimPrefix(tc.c.BaseURL(), "https://"), "http://")
			opts := []name.Option{name.StrictValidation}
			if strings.HasPrefix(tc.c.BaseURL(), "http://") {
				opts = append(opts, name.Insecure)
				host += ":80"
			}
			ref, err := name.NewTag(host+"/image/thing:1", opts...)
			if err != nil {
				t.Fatal(err)
			}
			tr := remote.WithTransport(tc.c.HTTP().Transport)
			image, err := random.Image(256<<10, 2) // what is there already would not be pushed
			if err != nil {
				t.Fatal(err)
			}
			if tc.push {
				if want, err = image.Digest(); err != nil {
					t.Fatal(err)
				}
			}
			if err := remote.Write(ref, image, tr); (err == nil) != tc.push {
				t.Errorf("push: %v", err)
			}
			var got v1.Hash
			if d, err := remote.Get(ref, tr); (err == nil) != tc.pull {
				t.Errorf("pull: %v", err)
			} else if err == nil {
				got = d.Digest
				im, err := d.Image()
				if err != nil {
					t.Fatal(err)
				}
				layers, err := im.Layers()
				if err != nil {
					t.Fatal(err)
				}
				rc, err := layers[0].Compressed()
				if err != nil {
					t.Fatal(err)
				}
				if _, err := io.Copy(io.Discard, rc); err != nil {
					t.Error(err)
				}
				rc.Close()
			}
			if tc.pull && got != want {
				t.Errorf("pulled %s, want %s", got, want)
			}
			ours := &artifact.Client{HTTP: tc.c.HTTP(), Base: tc.c.BaseURL()}
			if err := ours.Ping(context.Background()); (err == nil) != tc.pull {
				t.Errorf("our own client: %v", err)
			}
		})
	}
	log := r.log.String()
	for _, w := range []string{"store: write", "caller=\"kingpost://home/operator/operator\"", "method=PUT", "/v2/image/thing/manifests/1", "store: write refused"} {
		if !strings.Contains(log, w) {
			t.Errorf("the audit log has no %s", w)
		}
	}
}

// What the front decides about must be what the store sees.
func TestStorePaths(t *testing.T) {
	r := newRig(t)
	r.raise(t)
	c := r.dial(t, r.socket, hostapi.Options{})
	for _, tc := range []struct {
		method, path string
		want         int
	}{
		{"GET", "/v2/", 200},
		{"GET", "/v2/image/absent/manifests/1", 404},
		{"GET", "/v2/%2e%2e/v1/status", 404},
		{"GET", "/v2/a/%2e%2e/%2e%2e/x", 404},
		{"CONNECT", "/v2/", 405},
		{"TRACE", "/v2/", 405},
	} {
		req, err := http.NewRequest(tc.method, c.BaseURL()+tc.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := c.HTTP().Transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != tc.want && !(resp.StatusCode == 301 && tc.want == 404) && !(tc.method == "CONNECT" && resp.StatusCode/100 == 4) {
			t.Errorf("%s %s: got %d, want %d", tc.method, tc.path, resp.StatusCode, tc.want)
		}
	}
}
