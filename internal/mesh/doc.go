// Package mesh holds the shared words of Kingpost as types: manifest, resource, declaration, seat,
// identity, node configuration and the paths that every program on a node agrees on.
//
// It decides nothing, does no I/O beyond the readers it is given, and imports nothing of Kingpost
// but leaves. A newcomer starts with Resource (what can be declared), then Manifest (what a module
// delivers) and Declaration (what one node must run).
package mesh
