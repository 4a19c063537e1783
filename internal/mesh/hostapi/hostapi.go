// Package hostapi is the host's API as types, and a client for it. The API is HTTP and JSON, version 1,
// on a unix socket on the node (the peer's uid decides) and over mTLS on mesh.PortAPI.
//
//	GET  /v1/ping                      {} once the host can answer
//	GET  /v1/openapi.json              all of this for machines
//	GET  /v1/node                      Node
//	GET  /v1/status                    Status: declared, observed, and why they differ
//	GET  /v1/declaration               mesh.Declaration, 404 when there is none
//	PUT  /v1/declaration               mesh.Declaration; 409 when its version is lower than the applied one
//	GET  /v1/logs/MODULE[/ID]          text; ?follow=1 ?since=10m ?bytes=N
//	POST /v1/call/SEAT/VERB            mesh.CallRequest -> mesh.CallResponse
//	POST /v1/resources/MODULE/ID/clear lets a held resource try again
//	POST /v1/raise                     RaiseRequest -> RaiseStatus (202 started or going on, 200 raised already)
//	GET  /v1/raise                     RaiseStatus; ?follow=1 streams one JSON object per line until it ends
//	GET  /v1/disks                     Disks
//	POST /v1/install                   InstallRequest -> InstallStatus
//	GET  /v1/install                   InstallStatus; ?follow=1 streams one JSON object per line until it is over
//	POST /v1/power                     PowerRequest
//	POST /v1/reset                     ResetRequest
//	     /v2/...                       the artifact store (OCI distribution specification), by role
//
// An error is an Error with a matching HTTP status.
package hostapi

import (
	"time"

	"kingpost/internal/mesh"
)

// Error is the body of every answer that is not 2xx.
type Error struct {
	Status  int    `json:"status"`
	Code    string `json:"code"` // a mesh.Code constant
	Message string `json:"message"`
}

func (e *Error) Error() string { return e.Message }

// Node is who a node is and how it stands.
type Node struct {
	Name    string           `json:"name"`
	ID      string           `json:"id"`  // hex, made at first boot, never changes
	Key     string           `json:"key"` // "SHA256:..." fingerprint of the node's public key (PKIX), shown on its console
	Release mesh.ReleaseInfo `json:"release"`
	Boot    mesh.BootInfo    `json:"boot"`
	Claimed bool             `json:"claimed"`
	Claim   string           `json:"claim,omitempty"` // fingerprint of the claim key
	Mesh    string           `json:"mesh,omitempty"`
	// State is one word: "unclaimed", "claimed", "raising", "raised", "joined".
	State     string    `json:"state"`
	Addresses []string  `json:"addresses"`
	Time      time.Time `json:"time"`
	// Clock says who keeps Time right; nil where this host does not look after the machine's clock.
	Clock    *TimeStatus `json:"clock,omitempty"`
	Uptime   float64     `json:"uptime"` // seconds
	Host     HostInfo    `json:"host"`
	DataSize int64       `json:"dataSize"` // bytes
	DataFree int64       `json:"dataFree"` // bytes
	// Install is how an installation from this node onto another disk stands, without its plan; nil where there is none.
	Install  *InstallStatus `json:"install,omitempty"`
	Warnings []string       `json:"warnings,omitempty"`
}

// TimeStatus is how a node's clock stands.
type TimeStatus struct {
	Synced bool    `json:"synced"`
	From   string  `json:"from,omitempty"`   // who named the server: "node.yaml", "DHCP" or "control-node"
	Server string  `json:"server,omitempty"` // whose time was taken last
	Offset float64 `json:"offset,omitempty"` // seconds by which the clock was off then
	Reason string  `json:"reason,omitempty"` // why it is not synced
}

// HostInfo tells which host program runs.
type HostInfo struct {
	Digest string    `json:"digest"` // "baked-in" or a bundle digest
	PID    int       `json:"pid"`
	Since  time.Time `json:"since"`
	Memory int64     `json:"memory,omitempty"` // resident, in bytes
	Init   int64     `json:"init,omitempty"`   // resident memory of PID 1, in bytes
	// Launcher is what the launcher knows of this and other hosts; nil where there is none.
	Launcher *mesh.LauncherInfo `json:"launcher,omitempty"`
}

// Status is declared beside observed.
type Status struct {
	Declared  mesh.Version     `json:"declared"`
	Applied   mesh.Version     `json:"applied"` // the last version of which everything was reached
	Settled   bool             `json:"settled"` // everything declared is as declared
	Resources []ResourceStatus `json:"resources"`
}

// ResourceStatus is one resource as observed.
type ResourceStatus struct {
	Key    string    `json:"key"` // "MODULE/ID"
	Module string    `json:"module"`
	ID     string    `json:"id"`
	Type   mesh.Kind `json:"type"`
	// State is one word: "waiting", "fetching", "starting", "running", "healthy", "unready", "stopping", "done", "backoff", "held", "present", "failed".
	State string `json:"state"`
	// Ready says that others may use it: what comes after it goes on.
	Ready bool `json:"ready,omitempty"`
	// Reason says why State is not what was declared; empty when it is.
	Reason string `json:"reason,omitempty"`
	Digest string `json:"digest,omitempty"`
	// Source is from where the running bytes were fetched: "seed" or "store".
	Source   mesh.Source `json:"source,omitempty"`
	PID      int         `json:"pid,omitempty"`
	Since    time.Time   `json:"since,omitzero"`
	Restarts int         `json:"restarts,omitempty"`
	Exit     *int        `json:"exit,omitempty"` // of the last run that ended
	Seats    []string    `json:"seats,omitempty"`
	Epoch    uint64      `json:"epoch,omitempty"`  // of a controller's running instance
	Memory   int64       `json:"memory,omitempty"` // bytes, memory.current
	Critical bool        `json:"critical,omitempty"`
	// Wanted is what is declared, beside Type, Digest and Source, which are of what runs. Nil: it is no longer declared.
	Wanted *Wanted `json:"wanted,omitempty"`
	// Handover is the latest one since the host started.
	Handover *Handover `json:"handover,omitempty"`
}

// Wanted is what is declared of a resource.
type Wanted struct {
	Type   mesh.Kind   `json:"type"`
	Digest string      `json:"digest,omitempty"`
	Source mesh.Source `json:"source,omitempty"` // empty: any
}

// Handover is the change of a running resource's form or digest.
type Handover struct {
	Way mesh.HandoverWay `json:"way"`
	Why string           `json:"why"` // it went this way
	// State is "under way", "done", or "failed": then the old one runs.
	State  string    `json:"state"`
	Type   mesh.Kind `json:"type"`
	Digest string    `json:"digest"` // of the new one
	PID    int       `json:"pid,omitempty"`
	Since  time.Time `json:"since"`
}

// RaiseRequest starts or continues a raise.
type RaiseRequest struct {
	Mesh string `json:"mesh"`
	// Operator is the operator's public key, in the form of mesh.NodeConfig.Claim. Empty: the claim key.
	Operator string `json:"operator,omitempty"`
	// Manifests replace the seed's module manifests of the same name.
	Manifests []mesh.Manifest `json:"manifests,omitempty"`
}

// RaiseStatus is how a raise stands.
type RaiseStatus struct {
	Mesh string `json:"mesh,omitempty"`
	// State is "none", "running", "refused" (preflight says no, nothing was changed), "failed" (gave up for now, a rerun continues) or "done".
	State   string      `json:"state"`
	Step    int         `json:"step"` // 1 to 10, the step under way
	Steps   []RaiseStep `json:"steps"`
	Started time.Time   `json:"started,omitzero"`
	Ended   time.Time   `json:"ended,omitzero"`
	// Certificate is the operator's certificate and CA the mesh CA, both PEM, from step 2 on.
	Certificate string `json:"certificate,omitempty"`
	CA          string `json:"ca,omitempty"`
}

// RaiseStep is one of the ten steps.
type RaiseStep struct {
	Number int    `json:"number"`
	Name   string `json:"name"`
	// State is "pending", "running", "done" or "refused".
	State    string   `json:"state"`
	Reason   string   `json:"reason,omitempty"` // what it waits for, or why it was refused
	Warnings []string `json:"warnings,omitempty"`
	Seconds  float64  `json:"seconds,omitempty"`
}

// PowerRequest stops a node in order.
type PowerRequest struct {
	Action string `json:"action"` // "reboot" or "poweroff"
}

// ResetRequest wipes a node back to unclaimed.
type ResetRequest struct {
	Name string `json:"name"` // the node's own, said once more
	// KeepClaim lets the claim of node.yaml count afterwards; its mesh and install do not until it is edited.
	KeepClaim bool `json:"keepClaim,omitempty"`
}
