package host

import (
	"context"
	"os"
	"strconv"
	"strings"
	"time"

	"kingpost/internal/atomicfile"
	"kingpost/internal/host/timesync"
	"kingpost/internal/mesh/hostapi"
	"kingpost/internal/mesh/tlsid"
)

// keepEvery is how often a confirmed time is written to disk: it is a floor for a next boot, not a record.
const keepEvery = 10 * time.Minute

// timeKeeper makes what keeps the machine's clock right.
func (h *Host) timeKeeper() *timesync.Keeper {
	var kept time.Time // by the monotonic clock, which nobody sets
	kernel := timesync.Kernel{}
	return timesync.New(timesync.Config{
		Servers: h.timeServers, Changed: h.net.Changed, Ask: h.askTime, Clock: kernel,
		Floor: func() time.Time { return clockFloor(h.boot.Release.Date, h.cfg.Paths.clock()) },
		Keep: func(t time.Time) {
			if now := time.Now(); kept.IsZero() || now.Sub(kept) >= keepEvery {
				kept = now
				if err := atomicfile.Write(h.cfg.Paths.clock(), []byte(strconv.FormatInt(t.Unix(), 10)+"\n"), 0o600); err != nil {
					h.cfg.Log.WithError(err).Warn("host: keep the confirmed time on disk")
				}
			}
		},
		Log: h.cfg.Log,
	})
}

// timeServers are those of node.yaml or DHCP; a joined node that has none asks its control-node.
func (h *Host) timeServers() ([]string, string) {
	servers, from := h.net.TimeServers()
	if len(servers) > 0 {
		return servers, from
	}
	if m, err := h.id.Membership(); err == nil && m.Joined && m.ControlNode != "" {
		return []string{m.ControlNode}, fromControlNode
	}
	return nil, ""
}

const fromControlNode = "control-node"

// askTime asks a time server, or the control-node by its API.
func (h *Host) askTime(ctx context.Context, server string) (timesync.Sample, error) {
	now := timesync.Kernel{}.Now
	if _, from := h.timeServers(); from != fromControlNode {
		return timesync.NTP(now)(ctx, server)
	}
	cred, err := h.credentials()
	if err != nil {
		return timesync.Sample{}, err
	}
	client, err := hostapi.Dial(server, hostapi.Options{Credentials: tlsid.Fixed(cred)})
	if err != nil {
		return timesync.Sample{}, err
	}
	defer client.Close()
	return timesync.Node(now, client)(ctx, server)
}

// clockFloor is the earliest that it can be: the release's date, or the last time on disk that servers confirmed.
func clockFloor(date, path string) time.Time {
	floor, _ := time.Parse(time.DateOnly, date) // the zero time where the release has no date
	b, err := os.ReadFile(path)
	if err != nil {
		return floor
	}
	if sec, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil {
		if t := time.Unix(sec, 0).UTC(); t.After(floor) {
			return t
		}
	}
	return floor
}

// timeStatus is how the clock stands, for GET /v1/node.
func (h *Host) timeStatus() *hostapi.TimeStatus {
	if h.clock == nil {
		return nil
	}
	s := h.clock.Status()
	return &hostapi.TimeStatus{Synced: s.Synced, From: s.From, Server: s.Server, Offset: s.Offset.Seconds(), Reason: s.Reason}
}
