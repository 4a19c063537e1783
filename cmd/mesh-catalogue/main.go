// Command mesh-catalogue is the component that holds the catalogue seat.
package main

import (
	"context"
	"time"

	"kingpost/internal/catalogue"
	"kingpost/internal/component"
	"kingpost/internal/mesh/artifact"
)

func main() {
	component.Main(component.Component{
		Name:    "mesh-catalogue",
		Summary: "says what stands in the artifact store",
		State:   "/var/lib/catalogue",
		Memory:  48 << 20,
		Serve:   serve,
	})
}

func serve(ctx context.Context, r component.Run) error {
	host, err := r.Host()
	if err != nil {
		return err
	}
	defer host.Close()
	release, err := component.Lock(ctx, r.State)
	if err != nil {
		return err
	}
	defer release()
	c, err := catalogue.Open(r.State, &artifact.Client{HTTP: host.HTTP(), Base: host.BaseURL()}, time.Now)
	if err != nil {
		return err
	}
	return c.Server(r.Mesh, r.Log).ListenAndServe(ctx, r.SeatSocket)
}
