// Package privnet is a node's private network: a bridge with a link, an IPv4 and an IPv6 address for each container
// that asked for it, the ports that the node publishes for them, their names, and their way out.
//
// Everything that carries a packet is in the kernel (bridge, nf_tables), so connections live on while the host is
// away; only names are answered by the host itself. It never routes for anybody but its containers, never opens the
// node's own ports to them but for names and, where a container has an identity of the mesh, the mesh's ports, and
// keeps no state on disk: the next host tells it by Adopt what runs.
//
// Start with Network. What is let through is in rules.go, how names are answered in names.go.
package privnet
