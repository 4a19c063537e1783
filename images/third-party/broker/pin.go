// Package broker keeps nats-server, which is built as it stands, in go.mod.
package broker

import _ "github.com/nats-io/nats-server/v2/server"
