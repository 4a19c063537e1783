package verbs

import (
	"time"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
)

// PushParams brings a module, or a new version or form of it, into the mesh.
type PushParams struct {
	Manifest mesh.Manifest `json:"manifest"`
	// Digests binds the manifest's names, per architecture. What is missing for the nodes that the module
	// is placed on is asked of the catalogue.
	Digests mesh.Digests `json:"digests,omitempty"`
	// Placement names the nodes that run the module. Absent: where it is now, or the control-node
	// when it is nowhere.
	// An empty list takes it off every node.
	Placement *[]string `json:"placement,omitempty"`
	// Hold keeps what is declared as it is until `declare`.
	Hold bool `json:"hold,omitempty"`
	// Plan is the revision of a plan; when the mesh changed since, the push is refused as a conflict.
	Plan uint64 `json:"plan,omitempty"`
}

// PushResult says what a push did.
type PushResult struct {
	Module   string   `json:"module"`
	Version  uint64   `json:"version"`  // of the module's history, counted from 1
	Same     bool     `json:"same"`     // it was there already; nothing was stored
	Declared bool     `json:"declared"` // false: held until `declare`, Reason says why
	Reason   string   `json:"reason,omitempty"`
	Revision uint64   `json:"revision"` // of the mesh's state, after
	Changes  []Change `json:"changes,omitempty"`
}

// RemoveParams takes a module off the mesh.
type RemoveParams struct {
	Module string `json:"module"`
	Plan   uint64 `json:"plan,omitempty"` // see PushParams.Plan
}

// RemoveResult says what a removal did.
type RemoveResult struct {
	Module   string   `json:"module"`
	Revision uint64   `json:"revision"` // of the mesh's state, after
	Changes  []Change `json:"changes,omitempty"`
	// Kept are the volumes whose content stays on its node, "MODULE/ID on NODE". A module of the same name gets it again.
	Kept []string `json:"kept,omitempty"`
}

// PlanParams asks what a push would change; without a manifest, what `declare` would.
type PlanParams struct {
	Manifest  *mesh.Manifest `json:"manifest,omitempty"`
	Digests   mesh.Digests   `json:"digests,omitempty"`
	Placement *[]string      `json:"placement,omitempty"`
}

// PlanResult is a plan. Nothing was changed by making it.
type PlanResult struct {
	// Revision is the state that the plan was made for; give it to declare or push as `plan`.
	Revision uint64   `json:"revision"`
	Changes  []Change `json:"changes"`
	// Refused says why declaring it would be refused; empty when it would not.
	Refused string `json:"refused,omitempty"`
}

// Change is one resource that would be, or was, declared differently.
type Change struct {
	Node string `json:"node"`
	Key  string `json:"key"` // "MODULE/ID"
	// Action is "add", "remove", "change" or "handover" (a running resource changes its form or digest).
	Action string `json:"action"`
	Why    string `json:"why"`
	// From and To are the digests before and after, where there are any.
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
}

// DeclareParams writes declarations.
type DeclareParams struct {
	Node string `json:"node,omitempty"` // only this node's; absent: every node's
	Plan uint64 `json:"plan,omitempty"` // see PushParams.Plan
}

// DeclareResult says what was written.
type DeclareResult struct {
	Revision     uint64     `json:"revision"`
	Declarations []Declared `json:"declarations"`
	Changes      []Change   `json:"changes,omitempty"`
}

// Declared is a node's declaration in short.
type Declared struct {
	Node string `json:"node"`
	mesh.Version
	Changed   bool `json:"changed"` // false: it was so already and is not sent again
	Resources int  `json:"resources"`
}

// StatusResult is the mesh at a glance.
type StatusResult struct {
	Mesh     string `json:"mesh"`
	Node     string `json:"node"`     // the control-node
	Epoch    uint64 `json:"epoch"`    // the controller's term
	Revision uint64 `json:"revision"` // of the mesh's state
	// Declaring is false until the first `declare`: until then a push only stores.
	Declaring bool           `json:"declaring"`
	Settled   bool           `json:"settled"` // every node has reached what is declared
	Nodes     []NodeStatus   `json:"nodes"`
	Modules   []ModuleStatus `json:"modules"`
	Seats     []SeatStatus   `json:"seats"`
	// Held is what waits for somebody, and why.
	Held []Held `json:"held,omitempty"`
}

// NodeStatus is one node: what it must run beside what it says.
type NodeStatus struct {
	Name     string       `json:"name"`
	Arch     string       `json:"arch"`
	Control  bool         `json:"control"`
	Declared mesh.Version `json:"declared"`
	// Delivered is whether the node's host has taken Declared; Reason says why not, or why it is not settled.
	Delivered bool   `json:"delivered"`
	Reason    string `json:"reason,omitempty"`
	// Host is what the node's host reports; nil while it does not answer.
	Host *hostapi.Status `json:"host,omitempty"`
}

// ModuleStatus is one module.
type ModuleStatus struct {
	Module      string   `json:"module"`
	Version     string   `json:"version,omitempty"` // the manifest's own, for people
	Description string   `json:"description,omitempty"`
	Current     uint64   `json:"current"` // the version of its history that is declared; 0: none yet
	Latest      uint64   `json:"latest"`
	Placement   []string `json:"placement"`
	Seats       []string `json:"seats,omitempty"`
	Resources   []string `json:"resources"` // "ID (kind)"
	// State is the worst state of its resources in the hosts' words, "held" while Latest waits, or "declared".
	State string `json:"state"`
}

// ModulesParams selects modules.
type ModulesParams struct {
	Module string `json:"module,omitempty"` // one module, with manifest, digests and history
}

// ModulesResult lists modules.
type ModulesResult struct {
	Modules []ModuleDetail `json:"modules"`
}

// ModuleDetail is a module with what it is bound to.
type ModuleDetail struct {
	ModuleStatus
	Digests mesh.Digests    `json:"digests,omitempty"` // of the current version, or the latest where none is declared
	History []ModuleVersion `json:"history,omitempty"` // newest first
}

// ModuleVersion is one version in a module's history.
type ModuleVersion struct {
	Number   uint64         `json:"number"`
	At       time.Time      `json:"at"`
	By       string         `json:"by"`
	Version  string         `json:"version,omitempty"`
	SHA256   string         `json:"sha256"` // of the manifest as JSON
	Digests  mesh.Digests   `json:"digests,omitempty"`
	Manifest *mesh.Manifest `json:"manifest,omitempty"` // only when one module was asked for
}

// SeatStatus is who holds a seat.
type SeatStatus struct {
	Seat  string `json:"seat"`
	Node  string `json:"node"`
	Key   string `json:"key"` // "MODULE/ID"
	State string `json:"state,omitempty"`
}

// Held is one thing that waits.
type Held struct {
	What string `json:"what"` // "MODULE", "MODULE/ID on NODE" or "node NODE"
	Why  string `json:"why"`
}

// ModuleMovedParams records that a module runs elsewhere now.
type ModuleMovedParams struct {
	Module string `json:"module"`
	From   string `json:"from"`
	To     string `json:"to"`
	// Operation identifies the move: the same one again changes nothing and answers as before.
	Operation string `json:"operation"`
}

// ModuleMovedResult says where the module is placed now.
type ModuleMovedResult struct {
	Placement []string `json:"placement"`
	Revision  uint64   `json:"revision"`
	Again     bool     `json:"again"` // the operation was known already
}

// TokenParams asks for a join token.
type TokenParams struct {
	Node string        `json:"node,omitempty"` // the only name that may join with it
	TTL  mesh.Duration `json:"ttl,omitempty"`  // 1h by default, at most 168h
}

// TokenResult is a join token. It is shown once; the controller keeps only the hash of its secret.
type TokenResult struct {
	Token   string    `json:"token"`
	ID      string    `json:"id"`
	Node    string    `json:"node,omitempty"`
	Expires time.Time `json:"expires"`
}
