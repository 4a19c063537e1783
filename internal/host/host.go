package host

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"kingpost/internal/host/api"
	"kingpost/internal/host/door"
	"kingpost/internal/host/identity"
	"kingpost/internal/host/network"
	"kingpost/internal/host/node"
	"kingpost/internal/host/probe"
	"kingpost/internal/host/route"
	"kingpost/internal/host/sdnotify"
	"kingpost/internal/host/storefront"
	"kingpost/internal/host/successor"
	"kingpost/internal/host/supervise"
	"kingpost/internal/host/timesync"
	"kingpost/internal/mesh"
	"kingpost/internal/mesh/tlsid"
)

// Host is the host of one node. Make it with New, then Run it.
type Host struct {
	cfg      Config
	self     *node.Self
	settings node.Settings
	id       *identity.Authority
	door     *door.Door
	super    supervise.API
	next     *successor.Successor
	router   *route.Router
	front    *storefront.Front
	server   *api.Server
	net      *network.Manager
	clock    *timesync.Keeper // nil where the host leaves the machine's clock alone
	broker   *probe.Broker
	started  time.Time
	boot     mesh.BootInfo

	raiser    atomic.Pointer[Raiser]
	power     chan string // one action, once
	powering  atomic.Bool
	installer Installer     // nil: this host does not install
	looking   chan struct{} // held by whoever looks at the disks
}

// New reads the node's key, settings and identity, and makes them where they are missing. Nothing runs
// and nothing listens until Run.
func New(cfg Config) (*Host, error) {
	h := &Host{cfg: cfg, started: cfg.Now(), power: make(chan string, 1), looking: make(chan struct{}, 1)}
	h.boot = readBoot(cfg.Paths)
	if h.boot.Data == "" && !cfg.Network {
		h.boot.Data = cfg.Paths.Data // there was no boot, and the folder survives whatever there is to survive
	}
	var err error
	if h.self, err = node.Open(cfg.Paths.node()); err != nil {
		return nil, err
	}
	if h.settings, err = node.Load(cfg.Paths.NodeConfig, cfg.Paths.node(), cfg.ParseNodeConfig); err != nil {
		return nil, err
	}
	for _, w := range h.settings.Warnings {
		cfg.Log.Warn(w)
	}
	if h.id, err = identity.Open(cfg.Paths.identity(), cfg.Now); err != nil {
		return nil, err
	}
	if m, _ := h.id.Mesh(); m != "" { // a cut between making the mesh and freezing
		if err := h.settings.Freeze(cfg.Paths.node()); err != nil {
			return nil, err
		}
	}
	h.door = &door.Door{
		Mesh: h.id.Mesh, NodeName: h.Name, CA: h.id.CA, Operator: h.id.Operator, Now: cfg.Now,
		Claim:     func() ed25519.PublicKey { return h.settings.Key },
		AccountOf: func(uid int) (string, bool) { return h.super.AccountOf(uid) },
	}
	sc := cfg.Supervise
	sc.State, sc.Run, sc.Seed, sc.HostSocket = cfg.Paths.State, cfg.Paths.Run, cfg.Paths.Seed, cfg.Paths.Socket
	sc.Now, sc.Log, sc.Identities, sc.Mesh = cfg.Now, cfg.Log, h.id, h.id.Mesh
	sc.Secrets = h.secret
	h.broker = &probe.Broker{Address: cfg.BrokerAddress, Identity: h.credentials, Now: cfg.Now}
	builtins := map[string]route.Builtin{
		mesh.SeatStore:    &probe.Store{Seat: mesh.SeatStore, Dial: h.dialStore},
		mesh.SeatRegistry: &probe.Store{Seat: mesh.SeatRegistry, Dial: h.dialStore},
		mesh.SeatBroker:   h.broker,
	}
	// What a call of ping asks is also what health asks.
	sc.Probes = map[string]func(context.Context) error{}
	for seat, b := range builtins {
		sc.Probes[seat] = func(ctx context.Context) error {
			_, err := b.Ping(ctx)
			return err
		}
	}
	h.next = successor.New(h.succession())
	sc.Own = h.next
	if h.super, err = cfg.Supervisor(sc); err != nil {
		return nil, fmt.Errorf("start the supervisor: %w", err)
	}
	h.router = &route.Router{
		Holder: h.super.SeatHolder, Dial: h.super.DialSeat,
		Declaration: h.super.Declaration, Status: h.super.Status, Self: h.door.Self, Builtins: builtins,
	}
	h.id.SetVault(h.keeper())
	h.front = storefront.New(storefront.Config{Door: h.door, Caller: api.CallerOf, Dial: h.dialStore, Log: cfg.Log})
	if h.net, err = network.New(network.Config{
		Settings: h.settings.Network, Hostname: h.Name, Modules: cfg.Modules,
		ResolvConf: cfg.Paths.ResolvConf, Sys: cfg.Paths.Sys, Proc: cfg.Paths.Proc, Log: cfg.Log, Now: cfg.Now,
	}); err != nil {
		return nil, fmt.Errorf("node.yaml: %w", err)
	}
	if cfg.Network {
		h.clock = h.timeKeeper()
	}
	if cfg.Installer != nil {
		h.installer = cfg.Installer(&InstallNode{h})
	}
	h.server = api.New(api.Config{
		Door: h.door, Supervisor: h.super, Router: h.router, Raises: h.guardedRaises, Store: h.front, Installs: h.installs(),
		Node: h.Node, Disks: h.Disks, Power: h.Power, Reset: h.Reset, Log: cfg.Log, Now: cfg.Now,
	})
	return h, nil
}

// Run serves until ctx is done or the node was asked to stop. It says READY as soon as the unix socket
// answers: nothing that may take time (network, applying, a raise) comes before that.
func (h *Host) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l, err := api.ListenUnix(h.cfg.Paths.Socket)
	if err != nil {
		return err
	}
	failed := make(chan error, 1) // the first failure that the host cannot live with
	var wg sync.WaitGroup
	run := func(what string, f func(context.Context) error) {
		wg.Go(func() {
			if err := f(ctx); err != nil && ctx.Err() == nil {
				select {
				case failed <- fmt.Errorf("%s: %w", what, err):
				default:
				}
			}
		})
	}
	handler := h.server.Handler()
	run("api on the unix socket", func(ctx context.Context) error { return api.ServeUnix(ctx, l, h.door, handler) })
	h.notify(sdnotify.Ready, sdnotify.Status(h.summary()))
	h.cfg.Log.WithFields(map[string]any{"node": h.Name(), "id": h.self.ID, "key": h.self.Fingerprint, "host": h.cfg.Digest}).Info("host: ready")

	run("api over TLS", func(ctx context.Context) error { return h.serveTLS(ctx, h.cfg.ListenAPI, handler) })
	run("supervisor", func(ctx context.Context) error {
		h.hesitate(ctx)
		return h.super.Run(ctx)
	})
	run("successor", h.next.Run)
	run("watchdog", func(ctx context.Context) error {
		return successor.Watchdog(ctx, h.cfg.Watchdog, h.alive, h.cfg.Notify, h.cfg.Log)
	})
	run("store front", h.serveStore)
	if h.cfg.Network {
		if err := unix.Sethostname([]byte(h.Name())); err != nil {
			h.cfg.Log.WithError(err).Warn("host: set the machine's name")
		}
		run("network", h.net.Run)
		run("time", h.clock.Run)
	}
	run("raise", h.runRaise)
	if h.installer != nil {
		run("install", h.installer.Run)
	}

	var action string
	select {
	case <-ctx.Done():
	case err = <-failed:
		h.cfg.Log.WithError(err).Error("host: ends")
	case action = <-h.power:
		err = h.stopNode(ctx, action)
	}
	h.notify(sdnotify.Stopping)
	cancel()
	wg.Wait()
	return err
}

func (h *Host) runRaise(ctx context.Context) error {
	name := h.settings.NodeConfig.Mesh.Raise
	if h.installFirst() {
		name = ""
	}
	r, err := h.cfg.Raiser(&RaiseNode{h}, h.cfg.Paths.raise(), name)
	if err != nil {
		return err
	}
	h.raiser.Store(&r)
	return r.Run(ctx)
}

// guardedRaises is what the API starts raises by.
func (h *Host) guardedRaises() api.Raises {
	if r := h.raises(); r != nil {
		return guarded{r, h}
	}
	return nil
}

func (h *Host) raises() api.Raises {
	if r := h.raiser.Load(); r != nil {
		return *r
	}
	return nil
}

// serveTLS serves on addr, and tries again as long as the address cannot be had.
func (h *Host) serveTLS(ctx context.Context, addr string, handler httpHandler) error {
	told := false
	for {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
		if err == nil {
			return api.ServeTLS(ctx, l, h.certificate, h.door, handler)
		}
		if ctx.Err() != nil {
			return nil
		}
		if !told {
			h.cfg.Log.WithError(err).Error("host: cannot listen; it is tried again until that works")
			told = true
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(3 * time.Second):
		}
	}
}

// serveStore keeps the store's own port open as long as a store runs here.
func (h *Host) serveStore(ctx context.Context) error {
	for ctx.Err() == nil {
		changed := h.super.Changed()
		if _, ok := h.super.SeatHolder(mesh.SeatStore); !ok || h.id.CA() == nil {
			select {
			case <-changed:
			case <-ctx.Done():
			}
			continue
		}
		open, shut := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() { done <- h.serveTLS(open, h.cfg.ListenStore, api.Guard(h.front)) }()
		for ok := true; ok && ctx.Err() == nil; {
			changed := h.super.Changed()
			if _, ok = h.super.SeatHolder(mesh.SeatStore); !ok {
				break
			}
			select {
			case <-changed:
			case <-ctx.Done():
			}
		}
		shut()
		if err := <-done; err != nil {
			return err
		}
	}
	return nil
}

func (h *Host) dialStore(ctx context.Context) (net.Conn, error) {
	return h.super.DialSeat(ctx, mesh.SeatStore)
}

// credentials are the node's in its mesh.
func (h *Host) credentials() (*tlsid.Credentials, error) {
	return h.id.Node(context.Background(), h.self.Key)
}

// certificate is what the node shows: that of its mesh, else its own. Both are of the same key.
func (h *Host) certificate() (*tls.Certificate, error) {
	c, err := h.credentials()
	switch {
	case errors.Is(err, identity.ErrNoMesh):
		return &h.self.Certificate, nil
	case err != nil:
		// Whoever pinned the key can still come in and see what is wrong.
		h.cfg.Log.WithError(err).Warn("host: the node's certificate cannot be had; its own one is shown")
		return &h.self.Certificate, nil
	}
	return &c.Certificate, nil
}

func (h *Host) notify(lines ...string) {
	if err := h.cfg.Notify(lines...); err != nil {
		h.cfg.Log.WithError(err).Warn("host: the launcher cannot be told")
	}
}
