// Command mesh-catalogue is the component that holds the catalogue seat.
package main

import (
	"time"

	"kingpost/internal/catalogue"
	"kingpost/internal/component"
	"kingpost/internal/mesh/artifact"
	"kingpost/internal/mesh/seat"
)

func main() {
	component.Main(component.Component{
		Name:    "mesh-catalogue",
		Summary: "says what stands in the artifact store",
		State:   "/var/lib/catalogue",
		Memory:  48 << 20,
		Serve:   component.Alone(open),
	})
}

func open(r component.Run) (*seat.Server, error) {
	host, err := r.Host()
	if err != nil {
		return nil, err
	}
	c, err := catalogue.Open(r.State, &artifact.Client{HTTP: host.HTTP(), Base: host.BaseURL()}, time.Now)
	if err != nil {
		return nil, err
	}
	return c.Server(r.Mesh, r.Log), nil
}
