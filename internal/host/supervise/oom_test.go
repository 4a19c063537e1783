package supervise

import (
	"os"
	"path/filepath"
	"testing"
)

func TestOutOfMemory(t *testing.T) {
	c := &cgroups{dir: t.TempDir()}
	if err := os.Mkdir(c.path("m.a"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct{ events, want string }{
		"nothing":   {"low 0\nhigh 0\nmax 7\noom 0\noom_kill 0\noom_group_kill 0\n", ""},
		"its limit": {"low 0\nhigh 0\nmax 7\noom 1\noom_kill 2\noom_group_kill 1\n", "it ran out of the memory that its limit allows"},
		"the node":  {"low 0\nhigh 0\nmax 0\noom 0\noom_kill 1\noom_group_kill 1\n", "the node ran out of memory"},
		"no kernel": {"", ""},
	} {
		if err := os.WriteFile(filepath.Join(c.path("m.a"), "memory.events"), []byte(tt.events), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := c.outOfMemory("m.a"); got != tt.want {
			t.Errorf("%s: %q", name, got)
		}
	}
	if got := c.outOfMemory("gone.x"); got != "" {
		t.Errorf("a group that is gone: %q", got)
	}
}
