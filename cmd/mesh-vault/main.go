// Command mesh-vault is the component that holds the vault seat.
package main

import (
	"context"
	"time"

	"kingpost/internal/component"
	"kingpost/internal/vault"
)

func main() {
	component.Main(component.Component{
		Name:    "mesh-vault",
		Summary: "keeps secrets and signs",
		State:   "/var/lib/vault",
		Memory:  32 << 20,
		Serve:   serve,
	})
}

func serve(ctx context.Context, r component.Run) error {
	release, err := component.Lock(ctx, r.State)
	if err != nil {
		return err
	}
	defer release()
	v, err := vault.Open(r.State, time.Now)
	if err != nil {
		return err
	}
	return v.Server(r.Mesh, r.Log).ListenAndServe(ctx, r.SeatSocket)
}
