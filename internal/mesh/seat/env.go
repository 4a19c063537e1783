package seat

import (
	"fmt"
	"strconv"

	"kingpost/internal/mesh"
)

// Env is what the host tells a component by its environment.
type Env struct {
	SeatSocket string // where to serve
	HostSocket string // the host's API; empty where the resource did not ask for it
	Mesh       string
	Node       string
	Module     string
	Epoch      uint64 // the term of this start; only for a holder of the controller seat
}

// ParseEnv reads Env by getenv (os.Getenv). A malformed epoch is an error, an absent one is 0.
func ParseEnv(getenv func(string) string) (Env, error) {
	e := Env{
		SeatSocket: getenv(mesh.EnvSeatSocket), HostSocket: getenv(mesh.EnvHostSocket),
		Mesh: getenv(mesh.EnvMesh), Node: getenv(mesh.EnvNode), Module: getenv(mesh.EnvModule),
	}
	if s := getenv(mesh.EnvEpoch); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			return Env{}, fmt.Errorf("%s=%q is no epoch: a whole number that the host counts up at every start", mesh.EnvEpoch, s)
		}
		e.Epoch = n
	}
	return e, nil
}
