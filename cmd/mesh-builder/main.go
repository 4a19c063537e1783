// Command mesh-builder is the component that holds the builder seat.
package main

import (
	"context"
	"time"

	"kingpost/internal/builderd"
	"kingpost/internal/component"
	"kingpost/internal/mesh/artifact"
)

func main() {
	component.Main(component.Component{
		Name:    "mesh-builder",
		Summary: "makes bundles inside the mesh",
		State:   "/var/lib/builder",
		Memory:  128 << 20,
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
	b, err := builderd.Open(r.State, &artifact.Client{HTTP: host.HTTP(), Base: host.BaseURL()}, time.Now)
	if err != nil {
		return err
	}
	return b.Server(r.Mesh, r.Log).ListenAndServe(ctx, r.SeatSocket)
}
