// Command bench measures the figures that Kingpost is held to, each beside its peer in the same run where there is one, and
// ends with one line per figure:
//
//	figure NAME VALUE UNIT limit LIMIT ok|short
//
// NAME is area.figure. What cannot be measured on this machine is said as such and has no line: no value here is ever
// anything but measured in this run. It exits 0 also where figures are short; reading them is the reader's part.
// docs/benchmarks.md keeps the last honest run.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"kingpost/qemu-tests/lab"
)

// areas in the order in which they are measured.
var areas = []struct {
	name    string
	measure func(context.Context, *bench) error
}{
	{"builder", measureBuilder},
	{"raise", measureRaise},
	{"host", measureHost},
	{"disk", measureDisk},
}

func main() {
	only := flag.String("only", "", "areas to measure, separated by commas (default: all)")
	kingpost := flag.String("kingpost", "bin/kingpost", "the operator's program")
	image := flag.String("image", "", "folder of a built image (default: build images/vm.yaml)")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *kingpost, *image, *only); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, kingpost, image, only string) error {
	wanted := map[string]bool{}
	for name := range strings.SplitSeq(only, ",") {
		if name = strings.TrimSpace(name); name != "" {
			wanted[name] = true
		}
	}
	var known []string
	for _, a := range areas {
		known = append(known, a.name)
	}
	for name := range wanted {
		if !slices.Contains(known, name) {
			return fmt.Errorf("there is no area %q; there are %s", name, strings.Join(known, ", "))
		}
	}
	l, err := lab.New(ctx, lab.Options{Kingpost: kingpost, Image: image, Log: os.Stderr})
	if err != nil {
		return err
	}
	defer l.Close()
	b := &bench{lab: l}
	defer b.close()
	for _, a := range areas {
		if len(wanted) > 0 && !wanted[a.name] {
			continue
		}
		b.say("== %s", a.name)
		if err := a.measure(ctx, b); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			b.miss(a.name, err.Error())
		}
	}
	b.print()
	return nil
}
