// Command mesh-host is the host of a node: it applies the newest declaration, serves the node's API and
// stands before its artifact store. The launcher starts it, and starts it again.
//
// It can be tried out on any Linux machine: `mesh-host --root-dir DIR` keeps everything below DIR and
// leaves the machine's network, name and power alone.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"kingpost/internal/host"
	"kingpost/internal/host/stub"
)

func main() {
	// The stub between the host and a process, for a host that has no mesh-stub beside it.
	if len(os.Args) > 1 && os.Args[1] == "exec" {
		os.Exit(stub.Main(os.Args[2:]))
	}
	os.Exit(serve(os.Args[1:]))
}

// The host is small and mostly idle: a heap that is collected earlier costs it nothing that anybody
// notices, and leaves memory to what the node is for. The limit is soft; a push of a large declaration may pass it.
const (
	gcPercent   = 50
	memoryLimit = 48 << 20 // bytes
)

func serve(args []string) int {
	o, err := parse(args, os.Stderr)
	if errors.Is(err, errHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mesh-host:", err)
		return 2
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit)
	}
	// What the host writes holds keys; what others must read is opened on purpose.
	unix.Umask(0o022)

	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	log, closeLog := openLog(o)
	defer closeLog()
	h, err := host.New(o.config(log))
	if err != nil {
		log.WithError(err).Error("host: cannot start")
		return 1
	}
	if err := h.Run(ctx); err != nil {
		log.WithError(err).Error("host: ended")
		return 1
	}
	return 0
}
