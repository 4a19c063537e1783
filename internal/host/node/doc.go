// Package node is who a node is before and beside any mesh: its key, its id, its name, and what node.yaml
// says.
//
// It never talks to anybody. Start with Open (key and id, made at the first boot) and then Settings
// (node.yaml, and what of it is frozen).
package node
