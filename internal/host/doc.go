// Package host puts the host together: who the node is, the doors, the API, the supervisor, the store's
// front, the network, and what a raise needs of its node.
//
// It decides nothing that one of its parts decides, and knows no step of a raise: RaiseNode is what a
// raise may ask for, and the program brings the raise itself.
//
// A newcomer starts with Host.Run, which shows what runs, and in which order it becomes reachable. The
// parts: node (key, id, node.yaml), identity (mesh CA), door (who may what), api, route (calls to seats),
// probe, storefront, network, supervise (what is declared).
package host
