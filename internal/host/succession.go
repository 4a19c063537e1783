package host

import (
	"context"
	"encoding/json"
	"os"
	"time"

	"kingpost/internal/host/successor"
	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
)

// succession is what the host's own resource works with. The supervisor is there by the time it is used.
func (h *Host) succession() successor.Config {
	return successor.Config{
		Digest: h.cfg.Digest, PID: os.Getpid(), Since: h.started, Arch: h.boot.Release.Architecture,
		Launcher:    h.launcher,
		Declaration: func() (mesh.Declaration, bool) { return h.super.Declaration() },
		Changed:     func() <-chan struct{} { return h.super.Changed() },
		Fetch: func(ctx context.Context, name, digest string, source mesh.Source) (string, *mesh.BundleConfig, error) {
			return h.super.FetchBundle(ctx, name, digest, source)
		},
		Notify: h.cfg.Notify, Poke: func() { h.super.OwnChanged() }, Log: h.cfg.Log,
	}
}

// launcher reads what the launcher knows of hosts.
func (h *Host) launcher() (mesh.LauncherInfo, bool) {
	var l mesh.LauncherInfo
	b, err := os.ReadFile(h.cfg.Paths.Launcher)
	return l, err == nil && json.Unmarshal(b, &l) == nil
}

// hesitate waits before anything is applied where this host has failed before: a declaration at which it crashes would
// otherwise never give the one that corrects it the time to come.
func (h *Host) hesitate(ctx context.Context) {
	if h.cfg.Hesitate <= 0 {
		return
	}
	h.cfg.Log.WithField("wait", h.cfg.Hesitate.String()).Warn("host: it has failed before, and waits for another declaration before it applies the one it has")
	first, _ := h.super.Declaration()
	over := time.After(h.cfg.Hesitate)
	for {
		changed := h.super.Changed()
		if d, _ := h.super.Declaration(); d.Version != first.Version {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-over:
			return
		case <-changed:
		}
	}
}

// alive asks the host for its status through its own socket: the answer goes through its listener, its door, the API and
// every lock of the supervisor, so a host that can give it is none that hangs.
func (h *Host) alive(ctx context.Context) error {
	c, err := hostapi.Dial(h.cfg.Paths.Socket, hostapi.Options{})
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Status(ctx)
	return err
}
