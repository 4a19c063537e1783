// Package identity is the mesh CA and the certificates that it issues: the node's, the operator's and
// those of the components on this node.
//
// The CA's key lies below the state folder, readable by root alone, until the vault keeps it; from then
// on it is fetched from there for each signature and never written here again. Certificates are kept on
// disk, so that a node comes back after a power cut with nobody to sign anything.
//
// It never decides who may do what (package door does) and never opens a connection.
//
// Start with Authority; files.go says what lies where.
package identity
