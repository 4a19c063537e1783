package qemutests

import (
	"context"
	"encoding/hex"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"kingpost/internal/fsverity"
	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
	"kingpost/internal/mesh/verbs"
	"kingpost/qemu-tests/lab"
)

// TestProcess asserts on a real node what only its kernel can keep: limits by cgroup, live changes of them, who dies first
// for want of memory, and programs that nobody can change.
func TestProcess(t *testing.T) {
	t.Parallel()
	n := raised(t)
	need(t, n.UntilStatus(t.Context(), lab.StepTime, lab.Settled), "the node to settle")
	digest := buildGuest(t, n)
	process := func(id string, args ...string) mesh.Resource {
		return mesh.Resource{ID: id, Type: mesh.KindProcess, Bundle: "guest", Args: args, Stop: mesh.Stop{Grace: mesh.Duration(time.Second)}}
	}
	eats, fits, forks, spins := process("eats", "eat", "209715200"), process("fits", "eat", "20971520"), process("forks", "fork", "100"), process("spins", "spin")
	eats.Policy, eats.Limits.Memory = mesh.PolicyNever, 48<<20
	fits.Limits.Memory = 48 << 20
	forks.Limits.Pids = 20
	spins.Limits.CPU = 0.1
	plain, critical := process("plain", "self"), process("critical", "self")
	critical.Critical = true
	push := func(rs ...mesh.Resource) {
		t.Helper()
		call(t, n, mesh.SeatController, verbs.Push, verbs.PushParams{
			Manifest: mesh.Manifest{Module: "probe", Resources: rs}, Digests: mesh.Digests{"bundle/guest": {"amd64": digest}},
		}, nil)
	}
	push(eats, fits, forks, spins, plain, critical)
	said := func(t *testing.T, id, expression string) []string {
		t.Helper()
		var m []string
		need(t, lab.Until(t.Context(), lab.StepTime, func(context.Context) error {
			text, err := n.Logs(t.Context(), "probe/"+id, 64<<10)
			if err != nil {
				return err
			}
			all := regexp.MustCompile(expression).FindAllStringSubmatch(text, -1)
			if len(all) == 0 {
				return fmt.Errorf("the log does not have %s: %.500s", expression, text)
			}
			m = all[len(all)-1]
			return nil
		}), "the log of %s", id)
		return m
	}

	t.Run("memory", func(t *testing.T) {
		var r hostapi.ResourceStatus
		need(t, n.UntilStatus(t.Context(), lab.StepTime, func(s *hostapi.Status) (err error) {
			if r, err = lab.Resource(s, "probe/eats"); err == nil && r.State != "failed" {
				err = fmt.Errorf("it is %s: %s", r.State, r.Reason)
			}
			return err
		}), "what eats too much to be killed")
		if r.Exit == nil || *r.Exit != 137 {
			t.Errorf("it ended with %s", lab.JSON(r))
		}
		said(t, "fits", "holds 20971520")
		if r := resource(t, n, "probe/fits"); r.Restarts != 0 || r.Memory < 20<<20 || r.Memory > 48<<20 {
			t.Errorf("what fits: %s", lab.JSON(r))
		}
	})
	t.Run("pids", func(t *testing.T) {
		m := said(t, "forks", `forked (\d+) (.*)`)
		if k, _ := strconv.Atoi(m[1]); k < 1 || k > 19 || !strings.Contains(m[2], "temporarily unavailable") {
			t.Errorf("under a limit of 20 it could start %s children: %s", m[1], m[2])
		}
	})
	t.Run("cpu", func(t *testing.T) {
		const value = `cpus (\d\.\d+)`
		share := func(what string, from, to float64) {
			t.Helper()
			var v float64
			need(t, lab.Until(t.Context(), lab.StepTime, func(context.Context) error {
				v, _ = strconv.ParseFloat(said(t, "spins", value)[1], 64)
				if v < from || v > to {
					return fmt.Errorf("it has %.3f CPUs", v)
				}
				return nil
			}), "%s to have %.2f to %.2f CPUs", what, from, to)
			t.Logf("%s it has %.3f CPUs", what, v)
		}
		share("limited to 0.1", 0.02, 0.16)
		before := resource(t, n, "probe/spins")
		spins.Limits.CPU = 0.4
		push(eats, fits, forks, spins, plain, critical)
		share("limited to 0.4", 0.2, 0.5)
		if r := resource(t, n, "probe/spins"); r.PID != before.PID || r.Restarts != before.Restarts {
			t.Errorf("a change of its limit has started it again: %s", lab.JSON(r))
		}
		// The rest of this test has better use for the CPU.
		spins.Args = []string{"stay"}
		push(eats, fits, forks, spins, plain, critical)
	})
	t.Run("who dies first", func(t *testing.T) {
		if v := said(t, "plain", `oom_score_adj (-?\d+)`)[1]; v != "100" {
			t.Errorf("of a process: %s", v)
		}
		if v := said(t, "critical", `oom_score_adj (-?\d+)`)[1]; v != "-800" {
			t.Errorf("of a critical process: %s", v)
		}
	})
	t.Run("fs-verity", func(t *testing.T) {
		program, err := theLab.Guest(t.Context(), "./qemu-tests/guest")
		need(t, err, "the guest program")
		sum := fsverity.New()
		_, err = sum.Write(program)
		need(t, err, "measure it")
		if got, want := said(t, "plain", `fs-verity (.*)`)[1], hex.EncodeToString(sum.Sum(nil)); got != want {
			t.Errorf("the kernel measures %s, wanted %s", got, want)
		}
		text, err := n.Logs(t.Context(), "probe/plain", 64<<10)
		need(t, err, "its log")
		if strings.Contains(text, "can be written") {
			t.Error("a process can write its own program")
		}
	})
}
