package mesh

import "time"

// HostBakedIn is the digest by which the host in the root image is known; the root's own hash pins its bytes.
const HostBakedIn = "baked-in"

// The host's own resource: a module of the name HostModule declares which host a node runs, see CheckHost.
const (
	HostResource = "server"
	HostBundle   = "mesh-host"
	// HostProgram is the path of the program in the host's bundle.
	HostProgram = "bin/" + HostBundle
	// HostKey is the key of the host's own resource.
	HostKey = HostModule + "/" + HostResource
)

// LauncherInfo is what the launcher knows of the hosts of this release: PathLauncher, written at every change.
type LauncherInfo struct {
	// Current is the digest of the host that is to run: HostBakedIn, or that of its bundle. Good is the last one that was healthy.
	Current string `json:"current"`
	Good    string `json:"good"`
	// Previous was good before Good; empty when there is none.
	Previous string `json:"previous,omitempty"`
	// Proven is set while the current one has been well long enough in this boot.
	Proven bool `json:"proven,omitempty"`
	// Halted says why no host is started any more before the next boot.
	Halted string `json:"halted,omitempty"`
	// Refused is the last successor that the launcher did not take, RefusedReason why.
	Refused       string `json:"refused,omitempty"`
	RefusedReason string `json:"refusedReason,omitempty"`
	// Answered counts the successors that were taken or refused in this boot.
	Answered int `json:"answered,omitempty"`
	// ProveSeconds is how long a host must be well to count as good.
	ProveSeconds float64        `json:"proveSeconds,omitempty"`
	Hosts        []LauncherHost `json:"hosts,omitempty"`
}

// LauncherHost is one host that the launcher remembers.
type LauncherHost struct {
	Digest   string `json:"digest"`
	Failures int    `json:"failures"` // in a row, since it was last healthy
	Limit    int    `json:"limit"`    // so many are too many
	Good     bool   `json:"good,omitempty"`
	// Quarantined: it failed too often and is not started again until somebody clears it.
	Quarantined bool      `json:"quarantined,omitempty"`
	Damaged     string    `json:"damaged,omitempty"` // why its program on disk is not the one that was delivered
	Last        string    `json:"last,omitempty"`    // why it failed last
	At          time.Time `json:"at,omitzero"`
}

// Find returns the record of digest, nil when there is none.
func (l *LauncherInfo) Find(digest string) *LauncherHost {
	for i := range l.Hosts {
		if l.Hosts[i].Digest == digest {
			return &l.Hosts[i]
		}
	}
	return nil
}
