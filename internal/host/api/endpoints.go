package api

import (
	"net/http"

	"kingpost/internal/host/door"
	"kingpost/internal/mesh"
)

// endpoint is one method of one path.
type endpoint struct {
	method, pattern string
	rule            door.Rule
	handle          func(*Server, http.ResponseWriter, *http.Request, door.Caller) error
}

// endpoints is the whole API but /v2/, with who may use what. The rules:
//   - before there is a mesh the claim key may do everything, and afterwards only come back for its certificate;
//   - the node itself (root on the unix socket) has the operator's role;
//   - which verbs a caller may call is decided by the seat's holder, so every known identity may call;
//   - a declaration can hold what a viewer must not see (environment), so a viewer sees the status only.
func endpoints() []endpoint {
	const (
		operator, viewer, node, component = mesh.RoleOperator, mesh.RoleViewer, mesh.RoleNode, mesh.RoleComponent
	)
	roles := func(r ...mesh.Role) []mesh.Role { return r }
	all := roles(operator, viewer, node, component)
	controller := []string{mesh.SeatController}
	return []endpoint{
		{"GET", "/v1/ping", door.Rule{Open: true}, (*Server).ping},
		{"GET", "/v1/openapi.json", door.Rule{Open: true}, (*Server).openapi},
		{"GET", "/v1/node", door.Rule{Open: true}, (*Server).node},
		{"GET", "/v1/status", door.Rule{Claim: true, Roles: all}, (*Server).status},
		{"GET", "/v1/declaration", door.Rule{Claim: true, Roles: roles(operator, node, component), Modules: controller}, (*Server).getDeclaration},
		{"PUT", "/v1/declaration", door.Rule{Claim: true, Roles: roles(operator, node, component), Modules: controller}, (*Server).putDeclaration},
		{"GET", "/v1/logs/{module}", door.Rule{Claim: true, Roles: all}, (*Server).logs},
		{"GET", "/v1/logs/{module}/{id}", door.Rule{Claim: true, Roles: all}, (*Server).logs},
		{"POST", "/v1/call/{seat}/{verb}", door.Rule{Roles: all}, (*Server).call},
		{"POST", "/v1/resources/{module}/{id}/clear", door.Rule{Claim: true, Roles: roles(operator, node, component), Modules: controller}, (*Server).clear},
		{"POST", "/v1/raise", door.Rule{Claim: true, Returning: true, Roles: roles(operator)}, (*Server).startRaise},
		{"GET", "/v1/raise", door.Rule{Claim: true, Returning: true, Roles: roles(operator, viewer, node)}, (*Server).getRaise},
		{"GET", "/v1/disks", door.Rule{Claim: true, Roles: roles(operator, node)}, (*Server).disks},
		{"POST", "/v1/install", door.Rule{Claim: true, Roles: roles(operator)}, (*Server).startInstall},
		{"GET", "/v1/install", door.Rule{Claim: true, Roles: roles(operator, node)}, (*Server).getInstall},
		{"POST", "/v1/power", door.Rule{Claim: true, Roles: roles(operator)}, (*Server).power},
		{"POST", "/v1/reset", door.Rule{Claim: true, Roles: roles(operator)}, (*Server).reset},
	}
}
