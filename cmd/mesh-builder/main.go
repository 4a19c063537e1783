// Command mesh-builder is the component that holds the builder seat.
package main

import (
	"time"

	"kingpost/internal/builderd"
	"kingpost/internal/component"
	"kingpost/internal/mesh/artifact"
	"kingpost/internal/mesh/seat"
)

func main() {
	component.Main(component.Component{
		Name:    "mesh-builder",
		Summary: "makes bundles inside the mesh",
		State:   "/var/lib/builder",
		Memory:  128 << 20,
		Serve:   component.Alone(open),
	})
}

func open(r component.Run) (*seat.Server, error) {
	host, err := r.Host()
	if err != nil {
		return nil, err
	}
	b, err := builderd.Open(r.State, &artifact.Client{HTTP: host.HTTP(), Base: host.BaseURL()}, time.Now)
	if err != nil {
		return nil, err
	}
	return b.Server(r.Mesh, r.Log), nil
}
