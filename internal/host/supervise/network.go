package supervise

import (
	"runtime"

	"github.com/vishvananda/netns"

	"kingpost/internal/host/privnet"
)

// endpoint is a container with a private network, as package privnet knows it.
func endpoint(r *runRecord) privnet.Endpoint {
	sp := r.Spec
	return privnet.Endpoint{
		Name: sp.name(), Module: sp.Module, ID: sp.ID, Ports: sp.Ports, Address: r.Address, Trial: r.Trial, Since: r.Since,
		// Who has a certificate of the mesh is meant to use it.
		MeshPorts: sp.Identity,
	}
}

// inNetwork runs f on a thread that is in the network of process pid. f must not start goroutines that open sockets.
func inNetwork(pid int, f func() error) error {
	done := make(chan error, 1)
	go func() {
		// The thread is not unlocked unless it is back home: the runtime then ends it with the goroutine.
		runtime.LockOSThread()
		home, err := netns.Get()
		if err != nil {
			done <- err
			return
		}
		defer home.Close()
		ns, err := netns.GetFromPid(pid)
		if err != nil {
			done <- err
			return
		}
		defer ns.Close()
		if err := netns.Set(ns); err != nil {
			done <- err
			return
		}
		ferr := f()
		if err := netns.Set(home); err == nil {
			runtime.UnlockOSThread()
		}
		done <- ferr
	}()
	return <-done
}
