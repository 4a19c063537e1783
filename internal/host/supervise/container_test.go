package supervise

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
)

// TestConfined: what a container may not ask of the kernel.
func TestConfined(t *testing.T) {
	n := newNode(t)
	open, closed := n.container("open", "try"), n.container("closed", "try")
	closed.ReadOnlyRoot = true
	n.declare(open, closed)
	n.settled()
	for key, root := range map[string]string{"m/open": "permission denied", "m/closed": "read-only file system"} {
		line := n.said(key, `"Seccomp"`)
		var got map[string]string
		if err := json.Unmarshal([]byte(line[strings.IndexByte(line, '{'):]), &got); err != nil {
			t.Fatal(err)
		}
		for what, want := range map[string]string{
			"keyctl": "operation not permitted", "mount": "operation not permitted", "unshare": "operation not permitted",
			"bpf": "operation not permitted", "io_uring": "operation not permitted", "stat": "allowed", "Seccomp": "2", "NoNewPrivs": "1",
			"write to the root": root,
		} {
			if !strings.Contains(got[what], want) {
				t.Errorf("%s: %s: %q, wanted %q", key, what, got[what], want)
			}
		}
	}
}

// TestUnruly: containers that do not end as they are asked to.
func TestUnruly(t *testing.T) {
	n := newNode(t)
	stubborn, daemons, leaver := n.container("stubborn", "stubborn"), n.container("daemons", "daemons"), n.container("leaver", "leave", "3")
	stubborn.Stop.Grace = mesh.Duration(300 * time.Millisecond)
	leaver.Policy = mesh.PolicyNever
	n.declare(stubborn, daemons, leaver)
	n.said("m/stubborn", "stubborn")
	n.said("m/daemons", "daemon 2 of")
	r := n.until("m/leaver", "over", func(r hostapi.ResourceStatus) bool { return r.Exit != nil })
	if *r.Exit != 3 {
		t.Errorf("the exit of one whose child holds its log: %d", *r.Exit)
	}
	n.said("m/leaver", "leaves")
	for _, name := range []string{"m.leaver"} {
		if exists(n.s.cgroups.path(name)) {
			t.Errorf("the cgroup %s is left", name)
		}
	}
	n.declare()
	for range 500 {
		if len(n.s.Status().Resources) == 0 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if rs := n.s.Status().Resources; len(rs) != 0 {
		t.Errorf("not ended: %+v", rs)
	}
	if names, err := n.s.cgroups.names(); err != nil || len(names) != 0 {
		t.Errorf("cgroups left: %v, %v", names, err)
	}
}
