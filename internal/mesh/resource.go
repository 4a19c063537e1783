package mesh

import (
	"encoding/json"
	"time"
)

// Kind is the type of a resource.
type Kind string

// The four kinds of resource that a manifest may declare.
const (
	KindProcess   Kind = "process"
	KindContainer Kind = "container"
	KindVolume    Kind = "volume"
	KindFile      Kind = "file"
)

// Source says from where the bytes of a bundle or image must come.
type Source string

const (
	// SourceAny takes what is on disk already, else the store, else the seed.
	SourceAny Source = ""
	// SourceSeed takes it from the seed in the root image and nowhere else (the store itself, the temporary controller).
	SourceSeed Source = "seed"
	// SourceStore takes it from the artifact store and nowhere else; a copy that came from the seed does not count.
	SourceStore Source = "store"
)

// Resource is one thing that a manifest declares for a node. Which fields may be set depends on
// Type; Manifest.Validate refuses a field that its kind does not know.
type Resource struct {
	// ID is unique within its module: [a-z0-9][a-z0-9-]{0,62}.
	ID   string `json:"id"`
	Type Kind   `json:"type"`

	// Name is the artifact's name for a container (its image defaults to Name).
	Name string `json:"name,omitempty"`
	// Image is a container's image, by name in a manifest. Empty: Name.
	Image string `json:"image,omitempty"`
	// Bundle is a process's bundle, by name in a manifest.
	Bundle string `json:"bundle,omitempty"`
	// Digest is the manifest digest ("sha256:...") of the bundle or image. Empty in manifests, always set in declarations.
	Digest string `json:"digest,omitempty"`
	// Source restricts from where Digest may be fetched. Only declarations carry it.
	Source Source `json:"source,omitempty"`

	// Command is the program inside the bundle (default: bin/BUNDLE) or overrides an image's entrypoint.
	Command string            `json:"command,omitempty"`
	Args    []string          `json:"args,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	// Network is "host" (default for a process, its only choice) or "private" (default for a container).
	Network string `json:"network,omitempty"`
	Ports   []Port `json:"ports,omitempty"`

	// Account is the name of the account that a process or container runs as. Empty: one made for the
	// module. Begins with a letter; SystemAccounts are refused.
	Account string `json:"account,omitempty"`
	// Capabilities lists ambient capabilities ("CAP_NET_BIND_SERVICE"). None by default.
	Capabilities []string `json:"capabilities,omitempty"`
	Limits       Limits   `json:"limits,omitzero"`
	// ReadOnlyRoot makes a container's root read-only; its volumes and /tmp are not. A process's always is.
	ReadOnlyRoot bool `json:"readOnlyRoot,omitempty"`
	// Volumes mounts volume resources of the same module.
	Volumes []Mount `json:"volumes,omitempty"`
	// Files mounts file resources of the same module, read-only.
	Files []Mount `json:"files,omitempty"`
	// Secrets puts secrets of the vault, of the same module, into files that only the resource's account may read.
	Secrets []Secret `json:"secrets,omitempty"`
	// After names resources of the same module ("ID") or of another ("MODULE/ID") that must be ready first.
	After []string `json:"after,omitempty"`
	// Health says whether it works. One that does not is stopped and started again.
	Health *Health `json:"health,omitempty"`
	// Ready says whether it may be used now: what comes after it, and what it takes over from, wait for that. One that is
	// not ready runs on. Without it Health stands for both.
	Ready  *Health `json:"ready,omitempty"`
	Policy Policy  `json:"policy,omitempty"`
	Stop   Stop    `json:"stop,omitzero"`
	// Handover says how a new form or digest takes over. Empty: beside the old one where they share nothing exclusive.
	Handover HandoverWay `json:"handover,omitempty"`
	// Critical marks what must run for the node to count as good; it is also the last to be killed when memory runs out.
	Critical bool `json:"critical,omitempty"`

	// Seats names the seats that this resource holds. It is given a directory for its socket, see EnvSeatSocket.
	Seats []string `json:"seats,omitempty"`
	// Identity asks for a certificate of the mesh: the directory EnvIdentity holds cert.pem, key.pem and ca.pem.
	Identity bool `json:"identity,omitempty"`
	// HostAPI asks for the host's socket: EnvHostSocket.
	HostAPI bool `json:"hostAPI,omitempty"`

	// Content is the text of a file resource (at most MaxFileContent bytes).
	Content string `json:"content,omitempty"`
	// Mode is a file's or volume's permission bits in octal, "0640". Default 0640 for a file, 0750 for a volume.
	Mode string `json:"mode,omitempty"`
	// Size is the most that a volume may hold, in bytes; 0 is no limit.
	Size int64 `json:"size,omitempty"`
}

// Port publishes a port of a private-network container.
type Port struct {
	Host      int    `json:"host"`
	Container int    `json:"container"`
	Protocol  string `json:"protocol,omitempty"` // "tcp" (default) or "udp"
}

// Mount puts a volume or file resource, named by its ID, at an absolute path. A process sees it at the
// same path in its own mount namespace.
type Mount struct {
	Volume   string `json:"volume,omitempty"`
	File     string `json:"file,omitempty"`
	Path     string `json:"path"`
	ReadOnly bool   `json:"readOnly,omitempty"`
}

// Secret puts a secret of the module at an absolute path. The host fetches it from the vault before each start and keeps it
// in memory alone.
type Secret struct {
	// Secret is its name within the module: the vault has it as MODULE/SECRET.
	Secret string `json:"secret"`
	Path   string `json:"path"`
	// Version is the vault's; 0 is the newest there is at the start.
	Version uint64 `json:"version,omitempty"`
}

// Limits bounds a resource by cgroup v2. Zero is no limit.
type Limits struct {
	Memory int64   `json:"memory,omitempty"` // bytes, memory.max
	CPU    float64 `json:"cpu,omitempty"`    // CPUs, cpu.max
	Pids   int64   `json:"pids,omitempty"`   // pids.max
	Log    int64   `json:"log,omitempty"`    // bytes of its log that are kept; DefaultLog by default
}

// DefaultLog and MinLog are how much of a resource's log is kept by default and at least, in bytes.
const (
	DefaultLog = 16 << 20
	MinLog     = 64 << 10
)

// Policy says when a resource that exited is started again.
type Policy string

const (
	PolicyAlways    Policy = "always" // the default
	PolicyOnFailure Policy = "on-failure"
	// PolicyNever starts it once in the life of a node's boot: however it ends, it is not started again.
	PolicyNever Policy = "never"
	// PolicyOnce runs to completion: exit 0 is kept as done, across reboots; anything else is retried with backoff, then held.
	PolicyOnce Policy = "once"
)

// HandoverWay is the way in which a new form or digest of a resource takes over from the old one.
type HandoverWay string

const (
	// HandoverOverlap: the old one goes when the new one is healthy.
	HandoverOverlap HandoverWay = "overlap"
	// HandoverStopStart: the old one is stopped first, and started again if the new one does not get healthy.
	HandoverStopStart HandoverWay = "stop-start"
)

// Stop says how a resource is stopped before its cgroup is killed whole.
type Stop struct {
	Signal string   `json:"signal,omitempty"` // "SIGTERM" by default
	Grace  Duration `json:"grace,omitempty"`  // 10s by default, at most 10m
}

// Health is one check, made again and again. Exactly one of Seat, HTTP, TCP and Command is set.
type Health struct {
	Seat     bool     `json:"seat,omitempty"`     // the first seat's ping answers
	HTTP     string   `json:"http,omitempty"`     // GET of this URL gives 2xx; "unix:PATH:/url" for a socket
	TCP      string   `json:"tcp,omitempty"`      // host:port accepts
	Command  []string `json:"command,omitempty"`  // exits 0
	Interval Duration `json:"interval,omitempty"` // 5s by default
	Timeout  Duration `json:"timeout,omitempty"`  // 5s by default
	Retries  int      `json:"retries,omitempty"`  // failures in a row that count; 3 by default
	Start    Duration `json:"start,omitempty"`    // time to become healthy at first; 60s by default
}

// Duration is a time.Duration written as "10s" in JSON.
type Duration time.Duration

// MarshalJSON writes d in time.Duration's own notation.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }

// UnmarshalJSON reads time.Duration's own notation; negative values are refused.
func (d *Duration) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	v, err := time.ParseDuration(s)
	if err != nil {
		return err
	}
	if v < 0 {
		return &time.ParseError{Value: s, Message: ": a duration cannot be negative"}
	}
	*d = Duration(v)
	return nil
}

// Or returns d, or def when d is zero.
func (d Duration) Or(def time.Duration) time.Duration {
	if d == 0 {
		return def
	}
	return time.Duration(d)
}

// MaxFileContent bounds Resource.Content, in bytes.
const MaxFileContent = 1 << 20

// ImageName is the name of a container's image: Image, else Name.
func (r *Resource) ImageName() string {
	if r.Image != "" {
		return r.Image
	}
	return r.Name
}

// Artifact returns what r needs from the store, or the zero Ref for a kind that needs nothing.
func (r *Resource) Artifact() Ref {
	switch r.Type {
	case KindProcess:
		return Ref{Kind: ArtifactBundle, Name: r.Bundle}
	case KindContainer:
		return Ref{Kind: ArtifactImage, Name: r.ImageName()}
	}
	return Ref{}
}
