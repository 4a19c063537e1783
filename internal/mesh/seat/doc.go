// Package seat serves a seat: the verbs that the holder of a named role must answer, as HTTP on the unix
// socket that the host gives it (mesh.EnvSeatSocket). Every component of Kingpost answers through it, so
// all seats refuse, probe and describe in the same way.
//
// It never decides what a verb does, never talks to anybody but the host, and keeps no state. It believes
// mesh.HeaderCaller, because only the host can reach the socket.
//
// A newcomer starts with Verb (what is registered), then Server.answer (what happens to one call). A
// component is about ten lines:
//
//	srv := seat.New(seat.Options{Seat: "catalogue", Mesh: env.Mesh, Log: log})
//	seat.Register(srv, seat.Verb[listParams]{Name: "list", Summary: "...", Roles: seat.Everybody(), Run: cat.list})
//	err := srv.ListenAndServe(ctx, env.SeatSocket)
package seat
