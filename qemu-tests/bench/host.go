package main

import (
	"context"
	"fmt"
	"maps"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"kingpost/qemu-tests/lab"
)

// localFigures are what the host is measured by on this machine, without a node, and the most that each may be.
var localFigures = map[string]struct {
	unit  string
	limit float64
}{
	"host.process-start":    {"ms", 20},
	"host.apply-500":        {"ms", 20},
	"host.apply-500-writes": {"files", 0},
	"host.memory-200":       {"MB", 60},
	"host.takeover-50":      {"s", 1},
	"host.log-of-cat":       {"times", 2},
}

// measureLocal runs the host's own program in cgroups of this machine, beside the same work without a host: in an emulated
// node both sides of each ratio would measure the emulation.
func measureLocal(ctx context.Context, b *bench) error {
	cmd := exec.CommandContext(ctx, "go", "test", "-v", "-count", "1", "-run", "^TestFigures$", "./internal/host/supervise", "-figures")
	cmd.Dir = b.lab.Root
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("measure the host on this machine: %w: %s", err, out[max(0, len(out)-2000):])
	}
	missing := maps.Clone(localFigures)
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) < 3 || f[0] != "measured" {
			continue
		}
		v, err := strconv.ParseFloat(f[2], 64)
		known, ok := localFigures[f[1]]
		if err != nil || !ok {
			return fmt.Errorf("measure the host on this machine: it says %q", line)
		}
		delete(missing, f[1])
		b.add(f[1], v, known.unit, known.limit, "%s", strings.Join(f[3:], " "))
	}
	for name := range missing {
		b.miss(name, "the test that measures it was skipped; it needs root and cgroup v2")
	}
	return nil
}

// measureHost measures what it can on this machine, and then a node.
func measureHost(ctx context.Context, b *bench) error {
	if err := measureLocal(ctx, b); err != nil {
		if ctx.Err() != nil {
			return err
		}
		b.miss("host", err.Error())
	}
	return measureResident(ctx, b)
}

// measureResident asks a raised, idle node what host and init hold in memory.
func measureResident(ctx context.Context, b *bench) error {
	n, err := b.lab.Raised(ctx, "")
	if n != nil {
		defer n.Discard()
	}
	if err != nil {
		return err
	}
	if err := n.UntilStatus(ctx, lab.StepTime, lab.Settled); err != nil {
		return err
	}
	select { // idle: what the work before has left is given back
	case <-time.After(60 * time.Second):
	case <-ctx.Done():
		return ctx.Err()
	}
	node, err := n.Client().Node(ctx)
	if err != nil {
		return err
	}
	if node.Host.Memory == 0 || node.Host.Init == 0 {
		return fmt.Errorf("the node does not say what its host and init hold: %+v", node.Host)
	}
	b.add("host.resident", float64(node.Host.Memory+node.Host.Init)/1e6, "MB", 35, "init %.1f MB and host %.1f MB, resident, idle for a minute", float64(node.Host.Init)/1e6, float64(node.Host.Memory)/1e6)
	return nil
}
