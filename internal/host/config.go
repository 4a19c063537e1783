package host

import (
	"context"
	"path/filepath"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"kingpost/internal/host/api"
	"kingpost/internal/host/supervise"
	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
)

// Paths is where a host finds and keeps things.
type Paths struct {
	Release    string // mesh.PathRelease
	Seed       string // mesh.PathSeed
	NodeConfig string // mesh.PathConfig
	Data       string // mesh.PathData, whose size and free space count
	State      string // mesh.PathState
	Run        string // mesh.PathRun
	Socket     string // mesh.PathHostSocket
	Boot       string // mesh.PathBoot
	Launcher   string // mesh.PathLauncher
	ResolvConf string
	Sys, Proc  string
}

// PathsBelow are the paths of a node whose root is root: "/" on a node, a folder where somebody tries a
// host out. /sys and /proc are always the machine's.
func PathsBelow(root string) Paths {
	at := func(p string) string { return filepath.Join(root, p) }
	return Paths{
		Release: at(mesh.PathRelease), Seed: at(mesh.PathSeed), NodeConfig: at(mesh.PathConfig),
		Data: at(mesh.PathData), State: at(mesh.PathState), Run: at(mesh.PathRun),
		Socket: at(mesh.PathHostSocket), Boot: at(mesh.PathBoot), Launcher: at(mesh.PathLauncher), ResolvConf: at("/run/resolv.conf"),
		Sys: "/sys", Proc: "/proc",
	}
}

// Folders below Paths.State that are this package's and the raise's.
func (p Paths) node() string     { return filepath.Join(p.State, "node") }
func (p Paths) identity() string { return filepath.Join(p.State, "identity") }
func (p Paths) reset() string    { return filepath.Join(p.State, filepath.Base(mesh.PathReset)) }
func (p Paths) clock() string {
	return filepath.Join(p.State, strings.TrimPrefix(mesh.PathClockSynced, mesh.PathState))
}
func (p Paths) raise() string { return filepath.Join(p.State, "raise") }

// Raiser raises this node; installer/raise has it.
type Raiser interface {
	api.Raises
	Run(ctx context.Context) error
}

// Installer installs this node onto another of its disks; installer/install has it.
type Installer interface {
	api.Installs
	Run(ctx context.Context) error
}

// Config is what a Host is made of.
type Config struct {
	Paths Paths
	// Supervisor makes the supervisor from what the host adds to its configuration.
	Supervisor func(supervise.Config) (supervise.API, error)
	Supervise  supervise.Config
	// Raiser makes the raise: node is what it may ask for, dir its folder, meshName what node.yaml asks for.
	Raiser func(node *RaiseNode, dir, meshName string) (Raiser, error)
	// ParseNodeConfig reads node.yaml.
	ParseNodeConfig func([]byte) (mesh.NodeConfig, error)

	// Disks looks at the machine's disks and says what an installation would do with them; installer/install has it.
	// boot is how the node booted, cfg is the section of node.yaml that counts.
	Disks func(ctx context.Context, boot mesh.BootInfo, cfg *mesh.InstallConfig) (hostapi.Disks, error)

	// Installer makes the installation onto another disk; installer/install has it. Nil: this host does not install.
	Installer func(node *InstallNode) Installer

	ListenAPI     string // ":7443"
	ListenStore   string // ":5000"
	BrokerAddress string // "127.0.0.1:4222"
	// Network says whether the host looks after the machine's links, name and power. A host that is only
	// tried out on somebody's machine does not.
	Network bool
	// Modules loads kernel modules of the release by name; nil where there are none.
	Modules func(ctx context.Context, names ...string) error
	// Signal asks PID 1 for "reboot" or "poweroff", after everything was stopped.
	Signal func(action string) error
	// Notify tells the launcher.
	Notify func(lines ...string) error
	Digest string // of the host that runs: "baked-in" or "sha256:..."
	// Hesitate is how long the host answers before it applies anything, waiting for a declaration other than the one it
	// has: it has failed before, and what is declared may be why. 0: it applies at once.
	Hesitate time.Duration
	// Watchdog is within how long the launcher wants to hear that the host is alive; 0: it does not ask.
	Watchdog time.Duration

	Log *logrus.Logger
	Now func() time.Time
}
