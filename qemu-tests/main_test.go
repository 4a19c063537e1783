// Package qemutests holds the end-to-end tests: real images in virtual machines, from power-on to a raised mesh and
// through what can go wrong on the way. The harness is package lab.
//
//	go test ./qemu-tests                      what fits `make test`
//	go test ./qemu-tests -long                everything
//	go test ./qemu-tests -run '^TestRaise$/process' -image out/vm
package qemutests

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
	"kingpost/internal/qemu"
	"kingpost/qemu-tests/lab"
)

var (
	long      = flag.Bool("long", false, "run everything, hours of it, not the sample that fits `make test`")
	image     = flag.String("image", "", "folder of a built image to test (default: build images/vm.yaml)")
	nodeImage = flag.String("node-image", "", "folder of images/node.yaml as it was built (default: build it where a test needs it)")
	kingpost  = flag.String("kingpost", "", "the operator's program to test (default: build it)")
	seed      = flag.Uint64("seed", uint64(time.Now().Unix()), "decides what a power cut loses; a failure names its own")
)

// theLab is shared by all tests of a run: one image, one operator, disks that were raised once.
var theLab *lab.Lab

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if testing.Short() {
		fmt.Println("short: the end-to-end tests are left out")
		return 0
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	theLab, err = lab.New(ctx, lab.Options{Kingpost: *kingpost, Image: *image, Log: os.Stderr})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer theLab.Close()
	over := make(chan struct{})
	defer close(over)
	go func() {
		select {
		case <-over:
		case <-ctx.Done(): // Ctrl-C: the machines end, their files go, and so do we
			theLab.Close()
			os.Exit(130)
		}
	}()
	return m.Run()
}

// need fails the test on an error. what says what was tried.
func need(t *testing.T, err error, what string, args ...any) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", fmt.Sprintf(what, args...), err)
	}
}

// start starts a node that ends with the test, and keeps what it leaves when the test fails.
func start(t *testing.T, s lab.Spec) *lab.Node {
	t.Helper()
	n, err := theLab.Start(t.Context(), s)
	need(t, err, "start %s", s.Name)
	watch(t, n)
	return n
}

// boot is start, and waits until the node is up.
func boot(t *testing.T, s lab.Spec) *lab.Node {
	t.Helper()
	n := start(t, s)
	need(t, n.WaitUp(t.Context(), 0), "boot %s", n.Name)
	return n
}

// raised boots a node that was raised once for all tests.
func raised(t *testing.T) *lab.Node {
	t.Helper()
	n, err := theLab.Raised(t.Context(), "")
	if n != nil {
		watch(t, n)
	}
	need(t, err, "boot a raised node")
	return n
}

func watch(t *testing.T, n *lab.Node) {
	t.Cleanup(func() {
		if t.Failed() {
			if dir, err := n.Keep(t.Name()); err != nil {
				t.Logf("kept in %s, not all: %v", dir, err)
			} else {
				t.Logf("console, screen and state of %s are kept in %s", n.Name, dir)
			}
		}
		n.Discard()
	})
}

// raise raises a node and logs how it went.
func raise(t *testing.T, n *lab.Node, req hostapi.RaiseRequest) *hostapi.RaiseStatus {
	t.Helper()
	s, err := n.Raise(t.Context(), req, nil)
	logSteps(t, s)
	need(t, err, "raise")
	return s
}

func logSteps(t *testing.T, s *hostapi.RaiseStatus) {
	if s == nil {
		return
	}
	var b strings.Builder
	for _, st := range s.Steps {
		fmt.Fprintf(&b, "\n%2d %-22s %-8s %6.1f s  %s", st.Number, st.Name, st.State, st.Seconds, st.Reason)
	}
	t.Log(b.String())
}

func status(t *testing.T, n *lab.Node) *hostapi.Status {
	t.Helper()
	s, err := n.Client().Status(t.Context())
	need(t, err, "status of %s", n.Name)
	return s
}

func resource(t *testing.T, n *lab.Node, key string) hostapi.ResourceStatus {
	t.Helper()
	r, err := lab.Resource(status(t, n), key)
	need(t, err, "status of %s", n.Name)
	return r
}

// call calls a verb; result may be nil.
func call(t *testing.T, n *lab.Node, seat, verb string, params, result any, opts ...mesh.CallOption) {
	t.Helper()
	need(t, n.Client().Call(t.Context(), seat, verb, params, result, opts...), "call %s %s", seat, verb)
}

// waitConsole waits for a line on the console.
func waitConsole(t *testing.T, n *lab.Node, m qemu.Mark, expression string) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), lab.BootTime)
	defer cancel()
	match, err := n.Serial.Wait(ctx, m, regexp.MustCompile(expression))
	need(t, err, "the console of %s", n.Name)
	return match
}
