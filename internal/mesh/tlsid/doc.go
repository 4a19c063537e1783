// Package tlsid is mutual TLS between identities of a mesh: which certificate is shown, and how the
// other side's is judged. A certificate is bound to an identity (its one URI name, see mesh.Identity)
// and never to an address, so host names and IP addresses are not looked at.
//
// It never issues certificates and never decides what an identity may do.
//
// Start with Credentials (the three files that a component is given), then ClientConfig and ServerConfig.
package tlsid
