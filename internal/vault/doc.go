// Package vault is the component that keeps secrets and signs: values under MODULE/NAME with a few versions,
// and ed25519 keys that are made on their first use and never leave it.
//
// At rest everything is sealed by AES-256-GCM under a key file that lies on the same volume. This keeps a
// secret out of whatever copies single files: logs, backups without the key file, a stray read. It does not
// protect from root on the node or from whoever holds the disk with the key file on it. A sealed value is
// bound to its name and version, so files that are exchanged or renamed do not open.
//
// A component gets its own module's secrets and nothing else; operators get all. No error, log line or file
// name carries a value.
//
// A newcomer starts with box.go (sealing), then secrets.go and keys.go, and verbs.go for who may do what.
package vault
