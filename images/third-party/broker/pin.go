//go:build pin

// Package pin keeps the broker's module in go.mod; nothing is compiled from here.
package pin

import _ "github.com/nats-io/nats-server/v2/server"
