package supervise

import (
	"encoding/json"
	"strings"
	"testing"
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
