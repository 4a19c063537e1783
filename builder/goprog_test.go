package builder

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// What an interrupted go has left in its temporary folders goes with the build's own.
func TestInterruptedGo(t *testing.T) {
	bin, seen := t.TempDir(), filepath.Join(t.TempDir(), "seen")
	script := "#!/bin/sh\ntouch $GOTMPDIR/go-build1 $TMPDIR/cc1\nprintf %s $GOTMPDIR >" + seen + ".new && mv " + seen + ".new " + seen + "\nexec sleep 60\n"
	if err := os.WriteFile(filepath.Join(bin, "go"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":/usr/bin:/bin")
	cache, err := OpenCache(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for ctx.Err() == nil {
			if _, err := os.Stat(seen); err == nil {
				cancel()
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	defer cancel()
	tool := &goTool{cache: cache, arch: "amd64", toolchain: "local"}
	_, err = tool.build(ctx, t.TempDir(), []string{"./x"}, []string{"x"}, map[string]string{"./x": "key"}, nil)
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("the build ended with %v", err)
	}
	if dir, _ := os.ReadFile(seen); !strings.HasPrefix(string(dir), cache.path("program")) {
		t.Errorf("go's temporary folder was %q", dir)
	}
	if left, _ := os.ReadDir(cache.path("program")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}
