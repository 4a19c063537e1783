// Package controller is the component that knows what the mesh is to be: its modules with their history,
// where each is placed, and the declaration of every node. It keeps that in one database, answers the verbs
// of the controller seat, and brings declarations to the hosts until they have taken them.
//
// It never starts, stops or watches a resource (hosts do), never carries bytes of artifacts (the store
// does), and never writes once a later term of the controller has opened its database: each start gets a
// higher epoch from the host, the database remembers the highest that opened it, and every write checks.
//
// A newcomer starts with world.go (from modules to declarations, pure), then push.go and declare.go (the
// changes), db.go (the fence), courier.go (delivery) and verbs.go (what is answered).
package controller
