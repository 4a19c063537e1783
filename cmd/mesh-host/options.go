package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"kingpost/installer/raise"
	"kingpost/internal/host"
	"kingpost/internal/host/sdnotify"
	"kingpost/internal/host/supervise"
	"kingpost/internal/kmod"
	"kingpost/internal/mesh"
	"kingpost/internal/release"
)

var errHelp = errors.New("help was asked for")

// options are the command line.
type options struct {
	root        string
	listenAPI   string
	listenStore string
	broker      string
	cgroups     string
	runc        string
	seed        string
	nodeConfig  string
	verbose     bool
}

const usage = `mesh-host runs a node: it applies declarations and serves the node's API.

  mesh-host                          on a node, started by its launcher
  mesh-host --root-dir /tmp/node \
    --listen-api 127.0.0.1:7443      to try one out: state, sockets and node.yaml below the folder

Flags:
`

func parse(args []string, out io.Writer) (options, error) {
	o := options{}
	fs := flag.NewFlagSet("mesh-host", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.StringVar(&o.root, "root-dir", "/", "folder that stands for the node's root; other than / the machine's network, name and power are left alone")
	fs.StringVar(&o.listenAPI, "listen-api", fmt.Sprintf(":%d", mesh.PortAPI), "address of the API over TLS")
	fs.StringVar(&o.listenStore, "listen-store", fmt.Sprintf(":%d", mesh.PortStore), "address of the artifact store's front")
	fs.StringVar(&o.broker, "broker", fmt.Sprintf("127.0.0.1:%d", mesh.PortNATS), "address of the broker that runs here")
	fs.StringVar(&o.cgroups, "cgroups", mesh.PathCgroups, "cgroup v2 folder for what the host runs")
	fs.StringVar(&o.runc, "runc", mesh.PathRunc, "container runtime")
	fs.StringVar(&o.seed, "seed", "", "OCI layout of the seed (default: in the root image)")
	fs.StringVar(&o.nodeConfig, "node-config", "", "node.yaml (default: on the ESP)")
	fs.BoolVar(&o.verbose, "verbose", false, "log everything to stderr too, not warnings alone")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprint(out, usage)
			fs.SetOutput(out)
			fs.PrintDefaults()
			return o, errHelp
		}
		return o, fmt.Errorf("%w; `mesh-host --help` lists what there is", err)
	}
	if fs.NArg() > 0 {
		return o, fmt.Errorf("unknown argument %q; `mesh-host --help` lists what there is", fs.Arg(0))
	}
	abs, err := filepath.Abs(o.root)
	if err != nil {
		return o, fmt.Errorf("--root-dir %s: %w", o.root, err)
	}
	o.root = abs
	return o, nil
}

// onNode says whether this is a node and not somebody trying a host out.
func (o options) onNode() bool { return o.root == "/" }

func (o options) paths() host.Paths {
	p := host.PathsBelow(o.root)
	if o.seed != "" {
		p.Seed = o.seed
	}
	if o.nodeConfig != "" {
		p.NodeConfig = o.nodeConfig
	}
	return p
}

func (o options) config(log *logrus.Logger) host.Config {
	modules := o.modules()
	return host.Config{
		Paths: o.paths(),
		Supervisor: func(c supervise.Config) (supervise.API, error) {
			return supervise.New(c)
		},
		Supervise: supervise.Config{Cgroups: o.cgroups, CgroupsOptional: !o.onNode(), Runc: o.runc, Modules: modules},
		Raiser: func(n *host.RaiseNode, dir, meshName string) (host.Raiser, error) {
			return raise.New(raise.Config{Node: n, Dir: dir, Mesh: meshName, Log: log, Now: time.Now})
		},
		Disks:           disks,
		Installer:       o.installer(log),
		ParseNodeConfig: release.ParseNodeConfig,
		ListenAPI:       o.listenAPI, ListenStore: o.listenStore, BrokerAddress: o.broker,
		Network:  o.onNode(),
		Modules:  modules,
		Signal:   o.signal,
		Notify:   sdnotify.Notifier{Socket: os.Getenv("NOTIFY_SOCKET")}.Send,
		Digest:   digest(),
		Watchdog: watchdog(), Hesitate: hesitate(),
		Log: log,
		Now: time.Now,
	}
}

// modules returns what loads kernel modules of the node's root; nil where this is not a node. The lists are read at the
// first use: most starts need no module.
func (o options) modules() func(ctx context.Context, names ...string) error {
	if !o.onNode() {
		return nil
	}
	loader := sync.OnceValues(func() (*kmod.Loader, error) {
		var u unix.Utsname
		if err := unix.Uname(&u); err != nil {
			return nil, err
		}
		return kmod.NewLoader(os.DirFS(mesh.PathModules + "/" + unix.ByteSliceToString(u.Release[:])))
	})
	return func(ctx context.Context, names ...string) error {
		l, err := loader()
		if err != nil {
			return fmt.Errorf("load kernel modules: %w", err)
		}
		return l.Load(ctx, names...)
	}
}

// signal asks PID 1, by the launcher's protocol. A host that is only tried out just ends.
func (o options) signal(action string) error {
	if !o.onNode() {
		return nil
	}
	sig := unix.SIGTERM // reboot
	if action == "poweroff" {
		sig = unix.SIGUSR2
	}
	return unix.Kill(1, sig)
}

// A host that has failed so often in a row hesitates for so long.
const (
	hesitateAfter = 2
	hesitation    = 20 * time.Second
)

// hesitate is how long to wait before anything is applied, see host.Config.
func hesitate() time.Duration {
	if n, err := strconv.Atoi(os.Getenv("KINGPOST_HOST_FAILURES")); err == nil && n >= hesitateAfter {
		return hesitation
	}
	return 0
}

// watchdog is within how long the launcher wants to hear from the host (sd_watchdog_enabled(3)); 0: it does not ask.
func watchdog() time.Duration {
	usec, err := strconv.ParseUint(os.Getenv("WATCHDOG_USEC"), 10, 40)
	if err != nil {
		return 0
	}
	return time.Duration(usec) * time.Microsecond
}

// digest tells which host this is. The launcher says so; else a host that was delivered runs from its bundle, whose
// folder is named by its digest.
func digest() string {
	if d := os.Getenv("KINGPOST_HOST_DIGEST"); d != "" {
		return d
	}
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return "baked-in"
	}
	for _, part := range strings.Split(exe, "/") {
		if hex, ok := strings.CutPrefix(part, "sha256-"); ok {
			return "sha256:" + hex
		}
	}
	return "baked-in"
}
