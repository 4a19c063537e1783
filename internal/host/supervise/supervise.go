package supervise

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/sirupsen/logrus"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
)

// Identities issues the certificates of components. The host's CA implements it.
type Identities interface {
	// Issue returns PEM: a certificate for the component MODULE, its private key (PKCS #8), and the mesh CA.
	// It is called at each start of a resource that asks for an identity.
	Issue(ctx context.Context, module string) (cert, key, ca []byte, err error)
}

// Config is where a Supervisor works. Empty paths are those of package mesh.
type Config struct {
	State   string // mesh.PathState, survives a reboot
	Run     string // mesh.PathRun, does not
	Cgroups string // mesh.PathCgroups, in a cgroup v2 mount
	// CgroupsOptional lets resources run without the limits whose controllers are missing (with a
	// warning). Without it such a resource is held.
	CgroupsOptional bool
	Seed            string // mesh.PathSeed, an OCI image layout
	Runc            string // mesh.PathRunc
	HostSocket      string // mesh.PathHostSocket
	ResolvConf      string // /etc/resolv.conf: whom the node asks for names
	// Modules loads kernel modules by name; nil where the machine has what it needs.
	Modules func(ctx context.Context, names ...string) error
	// Stub is the command that ends up in stub.Main; the spec's path is appended. Default: mesh-stub beside this program,
	// else this program with "exec".
	Stub []string

	// MinFree is how much of the data partition, in bytes, is left free by what is fetched. 0: a twentieth of it, from
	// 32 MiB to 1 GiB.
	MinFree int64

	// Now is the clock. Default: time.Now.
	Now func() time.Time
	Log *logrus.Logger
	// Identities may be nil as long as no mesh is raised; resources that ask for an identity then wait.
	Identities Identities
	// Secrets reads a module's secret from the vault, the newest version for 0. Nil while there is no vault to ask;
	// resources with secrets then wait, as they do while it fails.
	Secrets func(ctx context.Context, module, name string, version uint64) ([]byte, error)
	// Mesh returns the mesh and the node's name, empty while there is none. A declaration for another is refused.
	Mesh func() (meshName, node string)
	// Store reaches the artifact store where no resource here holds the store seat. The URL's host is
	// ignored by a RoundTripper that dials a socket. Nil: only a store that runs here is used.
	Store func() (http.RoundTripper, string, error)
	// Own is the host's own resource. Nil: it is not looked after.
	Own Own
	// Probes ask the holders of seats that serve no verbs whether they work. They are the health checks of
	// kind seat for these; holders of all other seats are asked their ping.
	Probes map[string]func(context.Context) error

	// For tests: below stands for the machine, write for atomicfile.Write.
	below func(*Supervisor) runner
	write func(path string, b []byte, perm os.FileMode) error
}

// API is what the rest of the host uses; *Supervisor implements it.
type API interface {
	// Run applies until ctx ends. Then it returns and leaves every workload running.
	Run(ctx context.Context) error
	// Declare makes d the declaration: validated, compared with the highest version and the last epoch
	// given out, persisted, applied in the background. A refusal is a *mesh.CallError (CodeBadParams or
	// CodeConflict). Declaring the very same again is no error.
	Declare(ctx context.Context, d mesh.Declaration) error
	// Declaration is the current one; false when there never was one.
	Declaration() (mesh.Declaration, bool)
	// Status is declared beside observed, resources in the declaration's order.
	Status() hostapi.Status
	// Changed returns a channel that is closed at the next change of Status. Take it before reading Status.
	Changed() <-chan struct{}
	// Epoch is the last epoch that was given to a holder of the controller seat; 0 before the first.
	Epoch() uint64
	// SeatHolder is the key of the running resource that holds seat here.
	SeatHolder(seat string) (key string, ok bool)
	// DialSeat connects to that resource's seat socket. Its path is given to nobody: whoever opened it by
	// path would follow a link that the holder put there.
	DialSeat(ctx context.Context, seat string) (net.Conn, error)
	// Clear lets a held or backing-off resource try again at once and forgets its failures, a failed spec too.
	Clear(key string) error
	// Restart stops a resource and starts it again; it returns when the new instance is ready, or with why it is not.
	Restart(ctx context.Context, key string) error
	// StopAll stops everything, dependents first, for a power off. Nothing is started after it.
	StopAll(ctx context.Context) error
	// SetSeed enables or disables the seed as a source, until the host restarts.
	SetSeed(enabled bool)
	// Logs reads the log of a resource ("MODULE/ID") or, interleaved as written, of a whole module ("MODULE").
	Logs(ctx context.Context, key string, o LogOptions) (io.ReadCloser, error)
	// FetchBundle has the files of a bundle on disk, checked, and returns their folder and list.
	FetchBundle(ctx context.Context, name, digest string, source mesh.Source) (dir string, files *mesh.BundleConfig, err error)
	// Warnings are what is wrong with the host's own files, in a person's words.
	Warnings() []string
	// OwnChanged says that what Config.Own observes has changed.
	OwnChanged()
	// AccountOf is the module whose account has this uid.
	AccountOf(uid int) (module string, ok bool)
}

// LogOptions selects a part of a log. The zero value is all that is kept.
type LogOptions struct {
	Follow bool      // go on until ctx ends
	Since  time.Time // zero: from the start
	Bytes  int64     // at most the last so many bytes of what is there already; 0: no limit
}
