// Package api serves the host's API (see package hostapi for what it is) on a unix socket and over TLS.
//
// It decodes, asks the door, passes on and encodes; what is done it leaves to the supervisor, the router
// and the raise. Every body, time and number of connections is bounded.
//
// Start with endpoints.go, the table of what there is and who may use it.
package api
