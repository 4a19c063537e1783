package mesh

import (
	"context"
	"encoding/json"
)

// The seats that Kingpost itself knows. Modules may hold others.
const (
	SeatStore      = "store"
	SeatRegistry   = "registry" // the same holder as store
	SeatBroker     = "broker"
	SeatController = "controller"
	SeatCatalogue  = "catalogue"
	SeatBuilder    = "builder"
	SeatVault      = "vault"
)

// Verbs of seats that are named in more than one package.
const (
	VerbPing     = "ping"
	VerbDescribe = "describe"
)

// CallRequest is the body of a call to a seat's verb.
type CallRequest struct {
	// Probe asks for everything but the effect: authorised, decoded, state opened, nothing changed.
	Probe  bool            `json:"probe,omitempty"`
	Params json.RawMessage `json:"params,omitempty"`
}

// CallResponse is the answer. Exactly one of Result and Error is set, except after a probe, where both may be empty.
type CallResponse struct {
	Result json.RawMessage `json:"result,omitempty"`
	Error  *CallError      `json:"error,omitempty"`
}

// CallError is a refusal or failure of a verb.
type CallError struct {
	// Code is one of the Code constants.
	Code    string `json:"code"`
	Message string `json:"message"`
}

func (e *CallError) Error() string { return e.Message }

// Codes of a CallError.
const (
	CodeUnknownVerb = "unknown-verb"
	CodeDenied      = "denied"
	CodeBadParams   = "bad-params"
	CodeNotFound    = "not-found"
	CodeConflict    = "conflict"    // an older epoch, a stale plan, a lock
	CodeUnavailable = "unavailable" // nobody holds the seat, or the holder does not answer
	CodeFailed      = "failed"
)

// VerbInfo describes one implemented verb; `describe` returns a list of them, sorted by name.
type VerbInfo struct {
	Name    string   `json:"name"`
	Summary string   `json:"summary"`
	Roles   []Role   `json:"roles"`
	Params  []string `json:"params,omitempty"` // names of the parameters it takes
	Changes bool     `json:"changes"`          // whether it changes state
}

// Caller calls seats. The host implements it for those who sit on the node; a client for those outside.
type Caller interface {
	// Call sends params (nil for none, else marshalled as JSON) to verb of seat and decodes the
	// result into result (nil to discard). A refusal is a *CallError.
	Call(ctx context.Context, seat, verb string, params, result any, opts ...CallOption) error
}

// CallOption alters one call.
type CallOption func(*CallRequest)

// Probe makes a call a probe.
func Probe() CallOption { return func(r *CallRequest) { r.Probe = true } }

// Environment of a resource, set by the host where the resource asks for it.
const (
	// EnvSeatSocket is the path of the unix socket on which a holder of seats must serve HTTP
	// "POST /verbs/VERB" with a CallRequest, answering a CallResponse. The caller's identity is in HeaderCaller.
	EnvSeatSocket = "KINGPOST_SEAT_SOCKET"
	// EnvHostSocket is the path of the host's API socket.
	EnvHostSocket = "KINGPOST_HOST_SOCKET"
	// EnvIdentity is the directory with cert.pem, key.pem and ca.pem.
	EnvIdentity = "KINGPOST_IDENTITY"
	// EnvEpoch is the term that the host gave to this start of a controller.
	EnvEpoch = "KINGPOST_EPOCH"
	// EnvMesh, EnvNode and EnvModule name where the resource runs.
	EnvMesh   = "KINGPOST_MESH"
	EnvNode   = "KINGPOST_NODE"
	EnvModule = "KINGPOST_MODULE"
)

// HeaderCaller carries the caller's Identity (its URI) from the host to a seat's holder. Only the host
// can reach the socket, so it can be believed.
const HeaderCaller = "Kingpost-Caller"
