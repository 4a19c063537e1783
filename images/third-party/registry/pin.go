//go:build pin

// Package pin keeps the registry's module in go.mod; nothing is compiled from here.
package pin

import _ "github.com/distribution/distribution/v3/registry"
