package api

import (
	"context"
	"net/http"
	"reflect"
	"time"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
)

// contract is what a caller must know of an endpoint: docs/api.md and the OpenAPI document say it, and the host keeps to it.
type contract struct {
	what   string       // for people, in a line
	query  []parameter  // what may follow ?
	body   reflect.Type // nil: none
	answer reflect.Type // nil: {} for JSON, or what content says
	also   []int        // statuses of success beside 200
	// content is the media type of an answer that is no JSON, or that streams.
	content string
	// stream says that an answer goes on until the caller ends it: the host sends no more than is read, and a caller who
	// reads nothing for a minute loses the connection.
	stream bool
	limit  time.Duration // the call ends then; 0: callLimit. Streams have none
}

type parameter struct {
	name, kind, what string // kind is a type of JSON schema
}

// Bounds of calls.
const (
	callLimit = time.Minute
	// verbLimit is longer than what any holder of a seat is waited for.
	verbLimit = 31 * time.Minute
)

// contracts has one for every endpoint, by "METHOD PATTERN".
func contracts() map[string]contract {
	follow := parameter{"follow", "boolean", "go on as more comes"}
	logs := []parameter{follow, {"since", "string", "only what is younger than this, for example 10m"}, {"bytes", "integer", "only the last so many bytes of what is there"}}
	return map[string]contract{
		"GET /v1/ping":         {what: "`{}` once the host can answer"},
		"GET /v1/openapi.json": {what: "this API for machines, OpenAPI 3.1", answer: reflect.TypeFor[map[string]any]()},
		"GET /v1/node":         {what: "who the node is and how it booted", answer: reflect.TypeFor[hostapi.Node]()},
		"GET /v1/status":       {what: "declared beside observed, and why they differ", answer: reflect.TypeFor[hostapi.Status]()},
		"GET /v1/declaration":  {what: "the declaration; 404 without one", answer: reflect.TypeFor[mesh.Declaration]()},
		"PUT /v1/declaration": {what: "declares; on disk when it is answered, applied afterwards; 409 for an older one",
			body: reflect.TypeFor[mesh.Declaration]()},
		"GET /v1/logs/{module}":      {what: "the logs of a module, in the order of time", query: logs, content: "text/plain", stream: true},
		"GET /v1/logs/{module}/{id}": {what: "the log of one resource", query: logs, content: "text/plain", stream: true},
		"POST /v1/call/{seat}/{verb}": {what: "calls a verb; its holder decides who may",
			body: reflect.TypeFor[mesh.CallRequest](), answer: reflect.TypeFor[mesh.CallResponse](), limit: verbLimit},
		"POST /v1/resources/{module}/{id}/clear": {what: "lets a held resource try again"},
		"POST /v1/raise": {what: "starts or continues a raise; 202 while it runs, 200 when it is done ([raise.md](raise.md))",
			body: reflect.TypeFor[hostapi.RaiseRequest](), answer: reflect.TypeFor[hostapi.RaiseStatus](), also: []int{http.StatusAccepted}},
		"GET /v1/raise": {what: "how the raise stands; followed, an object a line until it ends", query: []parameter{follow},
			answer: reflect.TypeFor[hostapi.RaiseStatus](), content: "application/x-ndjson", stream: true},
		"GET /v1/disks": {what: "the disks, and what an installation by node.yaml would do with them; reads, and changes nothing",
			answer: reflect.TypeFor[hostapi.Disks]()},
		"POST /v1/install": {what: "has the node install itself onto another disk, or plans it; 202 while it runs ([install.md](install.md))",
			body: reflect.TypeFor[hostapi.InstallRequest](), answer: reflect.TypeFor[hostapi.InstallStatus](), also: []int{http.StatusAccepted}},
		"GET /v1/install": {what: "how the installation stands; followed, an object a line until it is over", query: []parameter{follow},
			answer: reflect.TypeFor[hostapi.InstallStatus](), content: "application/x-ndjson", stream: true},
		"POST /v1/power": {what: "`reboot` or `poweroff`: stops everything in order first",
			body: reflect.TypeFor[hostapi.PowerRequest](), also: []int{http.StatusAccepted}},
		"POST /v1/reset": {what: "wipes the node back to unclaimed; see [cli.md](cli.md#reset)",
			body: reflect.TypeFor[hostapi.ResetRequest](), also: []int{http.StatusAccepted}},
	}
}

// bounded ends a call that takes longer than its contract allows.
func (c contract) bounded(r *http.Request) (*http.Request, context.CancelFunc) {
	if c.stream {
		return r, func() {}
	}
	limit := c.limit
	if limit == 0 {
		limit = callLimit
	}
	ctx, cancel := context.WithTimeout(r.Context(), limit)
	return r.WithContext(ctx), cancel
}
