// Command mesh-vault is the component that holds the vault seat.
package main

import (
	"time"

	"kingpost/internal/component"
	"kingpost/internal/mesh/seat"
	"kingpost/internal/vault"
)

func main() {
	component.Main(component.Component{
		Name:    "mesh-vault",
		Summary: "keeps secrets and signs",
		State:   "/var/lib/vault",
		Memory:  32 << 20,
		Serve:   component.Alone(open),
	})
}

func open(r component.Run) (*seat.Server, error) {
	v, err := vault.Open(r.State, time.Now)
	if err != nil {
		return nil, err
	}
	return v.Server(r.Mesh, r.Log), nil
}
