// Command mesh-controller is the component that holds the controller seat.
package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"

	"kingpost/internal/component"
	"kingpost/internal/controller"
	"kingpost/internal/mesh"
)

func main() {
	component.Main(component.Component{
		Name:    "mesh-controller",
		Summary: "keeps what the mesh is to be, and declares it to every node",
		State:   "/var/lib/controller",
		Memory:  64 << 20,
		Serve:   serve,
	})
}

func serve(ctx context.Context, r component.Run) (err error) {
	program, err := component.Program()
	if err != nil {
		return err
	}
	host, err := r.Host()
	if err != nil {
		return err
	}
	defer host.Close()
	opt := controller.Options{
		Dir: r.State, Mesh: r.Mesh, Node: r.Node, Arch: runtime.GOARCH, Epoch: r.Epoch, Program: program,
		Host: host, Log: r.Log,
	}
	if dir := os.Getenv(mesh.EnvIdentity); dir != "" {
		opt.CA = filepath.Join(dir, "ca.pem")
	}
	c, err := controller.Open(opt)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	ctx, fenced := context.WithCancelCause(ctx)
	defer fenced(nil)
	go func() {
		select {
		case <-c.Fenced():
			fenced(errFenced)
		case <-ctx.Done():
		}
	}()
	if err := c.Server(r.Log).ListenAndServe(ctx, r.SeatSocket); err != nil {
		return err
	}
	if cause := context.Cause(ctx); errors.Is(cause, errFenced) {
		return cause
	}
	return nil
}

var errFenced = errors.New("a later term of the controller has taken the state; this one ends")
