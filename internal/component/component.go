// Package component is what the main functions of the mesh's components share: the one command `serve`,
// logging to standard error, a small memory footprint, and an orderly end on SIGTERM.
//
// It knows no component. A newcomer starts with Main.
package component

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/sirupsen/logrus"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
	"kingpost/internal/mesh/seat"
)

// Component is a program that serves one seat.
type Component struct {
	Name    string // "mesh-controller"
	Summary string
	State   string // the default state folder
	// Memory is the soft limit of the Go heap in bytes (runtime/debug.SetMemoryLimit). GOMEMLIMIT overrides it.
	Memory int64
	// Serve runs until ctx ends.
	Serve func(ctx context.Context, r Run) error
}

// Run is one start of a component.
type Run struct {
	seat.Env
	State string // the state folder
	Log   *logrus.Logger
}

// Host makes a client of the host of the component's own node. It connects when it is used.
func (r Run) Host() (*hostapi.Client, error) {
	if r.HostSocket == "" {
		return nil, fmt.Errorf("%s is not set: the manifest of the resource must say \"hostAPI\": true", mesh.EnvHostSocket)
	}
	return hostapi.Dial(r.HostSocket, hostapi.Options{})
}

// Main runs c with the program's arguments and ends it: 0 done, 1 failed, 2 wrong usage.
func Main(c Component) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	code := c.run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func (c Component) run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	fl := flag.NewFlagSet(c.Name, flag.ContinueOnError)
	fl.SetOutput(stderr)
	state := fl.String("state", c.State, "the state `folder`")
	level := fl.String("log", "info", "`level` of the log: debug, info, warn or error")
	usage := func(w io.Writer) {
		fmt.Fprintf(w, "%s: %s\n\nUsage:\n  %s serve [--state FOLDER] [--log LEVEL]\n\nIt is started by a host, which sets its environment, and serves on the socket that KINGPOST_SEAT_SOCKET\nnames until it gets SIGTERM. Flags:\n", c.Name, c.Summary, c.Name)
		fl.SetOutput(w)
		fl.PrintDefaults()
		fl.SetOutput(stderr)
	}
	fl.Usage = func() {}
	if len(args) > 0 && (args[0] == "--help" || args[0] == "-h" || args[0] == "help") {
		usage(stdout)
		return 0
	}
	if len(args) == 0 || args[0] != "serve" {
		usage(stderr)
		return 2
	}
	if err := fl.Parse(args[1:]); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			usage(stdout)
			return 0
		}
		return 2
	}
	log := logrus.New()
	log.SetOutput(stderr)
	log.SetFormatter(&logrus.TextFormatter{DisableColors: true, FullTimestamp: true})
	lvl, err := logrus.ParseLevel(*level)
	if err != nil || fl.NArg() > 0 {
		if err == nil {
			err = fmt.Errorf("serve takes no arguments, %q was given", fl.Args())
		}
		fmt.Fprintf(stderr, "%s: %v\n", c.Name, err)
		return 2
	}
	log.SetLevel(lvl)
	env, err := seat.ParseEnv(getenv)
	if err == nil {
		c.frugal(getenv)
		err = c.Serve(ctx, Run{Env: env, State: *state, Log: log})
	}
	if err != nil {
		log.WithError(err).Error(c.Name + " ends")
		return 1
	}
	log.Info(c.Name + " stopped")
	return 0
}

// frugal trades a little CPU for memory: a whole mesh must fit into the smallest nodes.
func (c Component) frugal(getenv func(string) string) {
	if getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
	if getenv("GOMEMLIMIT") == "" && c.Memory > 0 {
		debug.SetMemoryLimit(c.Memory)
	}
}

// Program identifies the running program's bytes, to tell one build from another. It is a checksum, not a
// digest: it is computed at every start, where a slow machine would feel a digest of ten megabytes.
func Program() (string, error) {
	f, err := os.Open("/proc/self/exe")
	if err != nil {
		return "", fmt.Errorf("read the running program: %w", err)
	}
	defer f.Close()
	h := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	n, err := io.Copy(h, f)
	if err != nil {
		return "", fmt.Errorf("read the running program: %w", err)
	}
	return fmt.Sprintf("%08x-%d", h.Sum32(), n), nil
}
